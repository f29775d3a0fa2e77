"""What pyproject.toml cannot say: links need the address of the repository, which the one who builds the package knows.

It comes from the environment variable PFL_REPOSITORY, or from git's remote `origin` if that is a web address. With it,
the metadata has project URLs, and the pictures and links of README.md work on a package index.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")
"""A link or picture of Markdown whose target is a file of the repository."""


def find_address() -> str | None:
    """The web address of the repository."""
    address = os.environ.get("PFL_REPOSITORY", "")
    if not address:
        command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
        try:
            address = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        except OSError:  # no git
            return None
    address = re.sub(r"(?<=^https://)[^/@]*@", "", address)  # a name or token of the one who cloned
    return address.removesuffix("/").removesuffix(".git") if address.startswith("https://") else None


def absolute_links(text: str, address: str) -> str:
    """The text with links into the repository as web addresses."""

    def replaced(link: re.Match[str]) -> str:
        picture, label, target = link.groups()
        return f"{picture}[{label}]({address}/{'raw' if picture else 'blob'}/main/{target})"

    return LINK.sub(replaced, text)


def describe(address: str | None) -> dict[str, object]:
    """The readme and the project URLs."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    urls = {}
    if address:
        text = absolute_links(text, address)
        pages = {"Documentation": "docs/index.md", "Changes": "CHANGELOG.md"}
        urls = {"Repository": address} | {name: f"{address}/blob/main/{page}" for name, page in pages.items()}
    return {"long_description": text, "long_description_content_type": "text/markdown", "project_urls": urls}


if __name__ == "__main__":
    setup(**describe(find_address()))
