"""Prints the rows of docs/results.md from runs that have ended: python tools/results.py vla_reach-0 vla_reach-1 ...

Runs are named `<experiment>-<seed>`. Those of one experiment make one table: a row per run with the command that made
it, and one of all seeds together, whose interval is Wilson's of the pooled episodes.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from embodied.monitor.stats import wilson
from embodied.monitor.summary import read_summary
from embodied.runs.run_folder import resolve

COLUMNS = ("clone", "same_time_clone", "rl", "wrong_instruction")
NAMES = ("command", "clone", "clone of equal time", "RL", "told another one", "seconds", "steps")


def percent(successes: int, episodes: int) -> str:
    low, high = (100 * bound for bound in wilson(successes, episodes))
    return f"{100 * successes / max(episodes, 1):.1f} ({low:.0f} to {high:.0f})"


def row(experiment: str, summary: dict[str, Any]) -> str:
    cells = [percent(summary["protocol"][name]["successes"], summary["protocol"][name]["episodes"]) for name in COLUMNS]
    command = f"`embodied train experiment={experiment} seed={summary['seed']}`"
    return f"| {command} | {' | '.join(cells)} | {summary['wall_s']:.0f} | {summary['env_steps']:,} |"


def pooled(summaries: Iterable[dict[str, Any]]) -> str:
    cells = []
    for name in COLUMNS:
        parts = [summary["protocol"][name] for summary in summaries]
        cells.append(percent(sum(p["successes"] for p in parts), sum(p["episodes"] for p in parts)))
    return f"| all seeds | {' | '.join(cells)} | | |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="+", help="names under --runs, or paths")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    arguments = parser.parse_args()
    tables: dict[str, list[dict[str, Any]]] = {}
    for name in arguments.run:
        folder = resolve(name, arguments.runs)
        tables.setdefault(folder.name.rpartition("-")[0], []).append(read_summary(folder))
    for experiment, summaries in tables.items():
        print(f"\n| {' | '.join(NAMES)} |\n|{'---|' * len(NAMES)}")
        for summary in sorted(summaries, key=lambda s: s["seed"]):
            print(row(experiment, summary))
        print(pooled(summaries))


if __name__ == "__main__":
    main()
