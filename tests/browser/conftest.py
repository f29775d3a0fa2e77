"""Headless Chromium. `make test-browser` runs these tests, the usual suite leaves them out."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.report.conftest import runs as runs

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--virtual-time-budget=10000",
)  # fmt: skip
Browse = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not os.environ.get("PFL_TEST_BROWSER"):
        for item in items:
            if Path(item.fspath).parent == Path(__file__).parent:
                item.add_marker(pytest.mark.skip(reason="make test-browser runs it"))


@pytest.fixture(scope="session")
def chromium() -> str:
    """The program. Root installs Debian's package where it is missing."""
    if found := next(filter(None, map(shutil.which, NAMES)), None):
        return found
    if os.geteuid() or not shutil.which("apt-get"):
        pytest.skip("there is no Chromium, and only root can install Debian's package")
    for words in ("update", "install -y chromium"):
        done = subprocess.run(["apt-get", "-q", *words.split()], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"Chromium cannot be installed: {(done.stderr.strip().splitlines() or ['apt-get failed'])[-1]}")
    return shutil.which("chromium") or pytest.skip("Chromium was installed but is not on the path")


@pytest.fixture
def browse(chromium: str, tmp_path: Path) -> Browse:
    """Open a file with some options; returns what Chromium prints."""

    def open_file(path: Path, *options: str) -> str:
        command = [chromium, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *options, path.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout

    return open_file
