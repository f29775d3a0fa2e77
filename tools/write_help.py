"""Write pfl_lightning/cli/help.txt, which `pfl-fit --help` prints without importing torch."""

from __future__ import annotations

import os
from pathlib import Path


def main() -> None:
    os.environ["COLUMNS"] = "100"
    from pfl_lightning.cli.parser import build_parser

    target = Path(__file__).parents[1] / "pfl_lightning/cli/help.txt"
    target.write_text(build_parser().format_help())
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
