"""`embodied eval`."""

import json
from collections.abc import Sequence

from embodied.cli.compose import check_groups, compose_config, show_help

HELP = """\
embodied eval [key=value ...] [--json]

Plays one episode of each seed with a run's policy and prints the success rate with its 95 % Wilson interval.

  embodied eval run=latest episodes=200 seed=1000 --json    the last line is JSON
  embodied eval run=a version=12                            another version, if it is kept
  embodied eval serve=remote serve.address=ipc:///tmp/policy   asks a server started by `embodied serve`
  embodied eval run=null task=reach policy=openpi policy.address=ws://HOST:8000    another project's server
"""


def main(arguments: Sequence[str]) -> int:
    if show_help(arguments, HELP, "eval"):
        return 0
    config = compose_config("eval", [word for word in arguments if word != "--json"])
    check_groups(arguments, config)
    from embodied.runtime.evaluation import EvalSettings, evaluate
    from embodied.runtime.settings import typed

    result = evaluate(typed(EvalSettings, config))
    low, high = result["success_ci95"]
    print(
        f"{result['task']}: success {100 * result['success_rate']:.1f} % "
        f"(95 % interval {100 * low:.1f} to {100 * high:.1f}) of {result['episodes']} episodes, "
        f"{result['steps_mean']:.1f} steps, versions {', '.join(map(str, result['policy_versions']))}"
    )
    if "--json" in arguments:
        print(json.dumps(result))
    return 0
