"""Write pfl_lightning/cli/help.txt. `pfl-fit --help` prints it without importing torch."""

from __future__ import annotations

from pathlib import Path


def main() -> None:
    from pfl_lightning.cli.parser import build_parser

    target = Path(__file__).parents[1] / "pfl_lightning/cli/help.txt"
    target.write_text(build_parser(with_help=True).format_help(), encoding="utf-8")
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
