"""`embodied eval`."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from embodied.cli.compose import check_groups, compose_config, show_help

if TYPE_CHECKING:
    from embodied.evaluate.evaluation import Row

HELP = """\
embodied eval [key=value ...] [--json]

Plays one episode of each seed with a run's policy and prints the success rate with its 95 % Wilson interval; with
tasks or splits, a row for each.

  embodied eval run=latest episodes=200 seed=1000 --json    the last line is JSON
  embodied eval run=a version=12                            another version, if it is kept; best: by evaluation
  embodied eval run=a splits=[unseen_instructions,colours,cameras]    what it never saw; files of configs/split/
  embodied eval run=a tasks=[reach_color,stack]             other tasks, if the policy fits them
  embodied eval run=a against=b                             the same episodes with both, and who is better
  embodied eval run=a against=a against_version=3           two versions of one run
  embodied eval run=a videos=4                              the first failures of each row, as mp4
  embodied eval client=remote client.address=ipc://policy   asks a server started by `embodied serve`
  embodied eval run=null task=reach policy=openpi policy.address=ws://HOST:8000    another project's server
"""


def main(arguments: Sequence[str]) -> int:
    if show_help(arguments, HELP, "eval"):
        return 0
    config = compose_config("eval", [word for word in arguments if word != "--json"])
    check_groups(arguments, config)
    from embodied.evaluate.evaluation import evaluate, summary
    from embodied.evaluate.settings import EvalSettings
    from embodied.runs.settings import typed

    settings = typed(EvalSettings, config)
    table, rows = _Table(settings.against is not None), list["Row"]()

    def seen(row: "Row") -> None:
        rows.append(row)
        if settings.tasks or settings.splits or settings.against:
            table.show(row.policy, row.label, row.cell.split or "as trained", row.to_dict())

    measured = evaluate(settings, seen, print)
    result = measured.to_dict()
    policies = list(dict.fromkeys(row.policy for row in rows))
    if len(rows) > len(policies):
        for policy in policies:
            table.show(policy, "total", "", summary([row.cell for row in rows if row.policy == policy]))
    everything = summary([row.cell for row in rows])
    faults = everything["outcomes"]["infrastructure_fault"]
    print(f"{everything['planned']} episodes planned, {everything['played']} played, {faults} infrastructure faults")
    for compared in result.get("comparison", ()):
        print(f"{compared['task']}{', ' + compared['split'] if compared['split'] else ''}: {compared['sentence']}")
    low, high = result["success_ci95"]
    print(
        f"{result['task']}: success {100 * result['success_rate']:.1f} % "
        f"(95 % interval {100 * low:.1f} to {100 * high:.1f}) of {result['episodes']} episodes, "
        f"{result['steps_mean']:.1f} steps, versions {', '.join(map(str, result['policy_versions']))}",
        flush=True,
    )
    try:
        for path in measured.write_videos():
            print(f"video {path}", flush=True)
    finally:  # what was measured is said whatever becomes of its videos
        if "--json" in arguments:
            print(json.dumps(measured.to_dict()))
    return 0


class _Table:
    """Rows printed as they come, under one head."""

    def __init__(self, policies: bool) -> None:
        self._policies, self._headed = policies, False

    def show(self, policy: str, task: str, split: str, measured: dict[str, Any]) -> None:
        if not self._headed:
            self._headed = True
            names = ("task", "split", "episodes", "successes", "success %", "95 % interval", "steps", "outcomes")
            self._print("policy", *names)
        low, high = (100 * end for end in measured["success_ci95"])
        outcomes = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in measured["outcomes"].items() if n)
        numbers = (str(measured["episodes"]), str(measured["successes"]), f"{100 * measured['success_rate']:.1f}")
        interval = f"{low:.1f} to {high:.1f}"
        self._print(policy, task, split, *numbers, interval, f"{measured['steps_mean']:.1f}", outcomes)

    def _print(self, policy: str, *cells: str) -> None:
        named = f"{policy:<16} " if self._policies else ""
        print(named + " ".join(f"{cell:{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)), flush=True)


_WIDTHS = ("<16", "<20", ">8", ">9", ">9", ">14", ">6", "")
