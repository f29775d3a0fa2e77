"""Run every configs/*_fashion10k.yaml with one seed and write the table of docs/results.md.

    python tools/fashion10k_table.py --runs runs/fashion10k_table --seed 0

Runs that have a summary.json are not run again. The table stands between two marks in docs/results.md.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/results.md"
BEGIN, END = "<!-- fashion10k table: written by tools/fashion10k_table.py -->", "<!-- end of table -->"

AFTER = {
    "Local",
    "Ditto",
    "PFedMe",
    "APFL",
    "LpProj",
    "FedDPA",
    "FedCAC",
    "PFedSD",
    "FedSelect",
    "FedPURIN",
    "FlocoPlus",
    "PFedSOP",
    "Learn2pFed",
}
"""Methods whose authors report the model after local training; the others report it before."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/fashion10k_table"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="names of configs, e.g. fedobp")
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    args = parser.parse_args()
    configs = sorted(ROOT.glob("configs/*_fashion10k.yaml"))
    if args.only:
        configs = [c for c in configs if c.stem.removesuffix("_fashion10k") in args.only]
    for config in configs:
        run_dir = args.runs / config.stem.removesuffix("_fashion10k")
        if not args.table_only and not (run_dir / "summary.json").exists():
            print(f"--- {config.stem}", flush=True)
            command = [str(Path(sys.executable).with_name("pfl-fit")), "--config", str(config.relative_to(ROOT))]
            subprocess.run([*command, "--seed", str(args.seed), "--run_dir", str(run_dir)], check=False, cwd=ROOT)
    write(args.runs, args.seed)


def write(runs: Path, seed: int) -> None:
    found = {path.parent.name: json.loads(path.read_text()) for path in sorted(runs.glob("*/summary.json"))}
    rows = [row(name, summary) for name, summary in found.items()]
    rows.sort(key=lambda r: -r[0])
    commits = sorted({(s["git_commit"] or "?")[:10] for s in found.values()})
    head = [
        f"Command: `python tools/fashion10k_table.py --seed {seed}`, commit {', '.join(commits)}.",
        "",
        "| method | reported | its value | before | after | fine-tuned | worst tenth | global | MiB sent |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    page = PAGE.read_text()
    table = "\n".join([BEGIN, "", *head, *(line for _, line in rows), "", END])
    PAGE.write_text(page[: page.index(BEGIN)] + table + page[page.index(END) + len(END) :])
    print(table)


def row(name: str, summary: dict[str, Any]) -> tuple[float, str]:
    last = summary["last"]
    tuned = last.get("all_acc_finetuned")
    moment = "fine-tuned" if tuned is not None else "after" if summary["algorithm"] in AFTER else "before"
    value = tuned if tuned is not None else last[f"all_acc_{moment}"]
    cells = [
        last["all_acc_before"],
        last["all_acc_after"],
        tuned,
        last["all_acc_before_worst10"],
        last["all_global_acc"],
    ]
    shown = " | ".join("" if v is None or math.isnan(v) else f"{100 * v:.1f}" for v in cells)
    traffic = (summary["up_bytes"] + summary["down_bytes"]) / 2**20
    label = summary["algorithm"] + (" + fine-tuning" if name.endswith("_ft") else "")
    return (
        value,
        f"| {label} | {moment} | **{100 * value:.1f}** | {shown} | {traffic:,.0f} |",
    )


if __name__ == "__main__":
    main()
