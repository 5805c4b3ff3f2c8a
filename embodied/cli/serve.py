"""`embodied serve`."""

from collections.abc import Sequence

from embodied.cli.compose import check_groups, compose_config, show_help

HELP = """\
embodied serve [key=value ...]

Answers observations with a policy until it is interrupted. Requests of several clients are answered in one batch. It
follows the run's versions, pins and rollbacks (`embodied weights`); pushed ones are verified, then switched between
batches. SIGTERM drains it.

  embodied serve run=latest address=ipc://policy
  embodied serve run=latest openpi=127.0.0.1:8000 groot=127.0.0.1:5557 embodiment=libero    openpi's, GR00T's clients
  embodied serve run=latest address=tcp://0.0.0.0:5555 credentials=site    of `embodied credentials create site`
  embodied serve run=latest engine=vllm        a token policy, decoded by vLLM: `make peer-vllm` once
  embodied serve 'policies={left: run-a, right: run-b}'                                     several, by name
  embodied serve run=null task=reach weights=served    an untrained policy, for a run that pushes to it:
  embodied train task=reach client=remote client.address=ipc://policy
  embodied serve upstream=tcp://10.0.0.2:5555 upstream_credentials=arm weights=kept    an edge (robot's PC)
"""


def main(arguments: Sequence[str]) -> int:
    if show_help(arguments, HELP, "serve"):
        return 0
    config = compose_config("serve", arguments)
    if config.upstream is None:
        check_groups(arguments, config)
    from embodied.runs.settings import typed
    from embodied.runtime.serve_settings import ServeSettings
    from embodied.runtime.serving import run_server

    # An edge makes the policy that its upstream names, unless the user says how.
    own_policy = any(word.lstrip("+").startswith(("policy=", "policy.")) for word in arguments)
    run_server(typed(ServeSettings, config), own_policy)
    return 0
