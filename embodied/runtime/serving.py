"""`embodied serve` from its settings: which policies, whose registry, which fronts."""

import torch

from embodied.runtime.parts import make_body, make_policy
from embodied.runtime.published import load_policy
from embodied.runtime.serve_settings import ServeSettings
from embodied.serving.host import PolicyHost
from embodied.serving.server import serve


def run_server(settings: ServeSettings) -> None:
    """Serve until interrupted."""
    serve(_host(settings), settings.address, keys=settings.keys)


def _host(settings: ServeSettings) -> PolicyHost:
    if settings.run is None:
        torch.set_num_threads(settings.threads)
        body = make_body(settings.task, settings.body, 1, seed=0)
        policy = make_policy(settings.policy, body.spec, seed=0)
        body.close()
        return PolicyHost(policy)
    _, policy, manifest, tensors = load_policy(settings.run, settings.runs, settings.version)
    host = PolicyHost(policy)
    host.switch(manifest, tensors)
    return host
