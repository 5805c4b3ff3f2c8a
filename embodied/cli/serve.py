"""`embodied serve`."""

from collections.abc import Sequence

from embodied.cli.compose import compose_config, show_help

HELP = """\
embodied serve [key=value ...]

Answers observations with a run's policy until it is interrupted. Requests of several clients are answered in one
batch; pushed weights are verified, then switched between batches.

  embodied serve run=latest address=ipc:///tmp/policy
  embodied serve run=latest address=tcp://127.0.0.1:5555
  embodied serve run=null task=reach address=ipc:///tmp/policy      an untrained policy, for a run that pushes to it:
  embodied train task=reach serve=remote serve.address=ipc:///tmp/policy
"""


def main(arguments: Sequence[str]) -> int:
    if show_help(arguments, HELP, "serve"):
        return 0
    config = compose_config("serve", arguments)
    from embodied.runtime.serve_settings import ServeSettings
    from embodied.runtime.serving import run_server
    from embodied.runtime.settings import typed

    run_server(typed(ServeSettings, config))
    return 0
