"""A policy network of your own: one file, one function `build`, trained by every algorithm that ships."""

import sys

import torch
from torch import Tensor, nn

from embodied import api
from embodied.spec import AgentSpec
from policies.mlp import GaussianActorCritic
from policies.network import Inputs
from policies.senses import Senses, action_scales
from policies.torch_policy import TorchPolicy


class Residual(nn.Module):
    """Blocks whose output is added to their input, [N, width] to [N, width]."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return x


class ResidualNetwork(GaussianActorCritic):
    """The Gaussian actor-critic with a residual actor; `sample`, `value` and the rest are inherited."""

    def __init__(self, inputs: int, scale: list[float], width: int, seed: int) -> None:
        super().__init__(inputs, 1, scale, (width, width), 0.6, seed)
        torch.manual_seed(seed)
        last = nn.Linear(width, self.action_dim)
        nn.init.normal_(last.weight, std=0.01)
        self.actor = nn.Sequential(nn.Linear(inputs, width), Residual(width, 2), last)

    def raw_mean(self, inputs: Inputs) -> Tensor:
        return self.actor(inputs["state"]).view(-1, self.chunk, self.action_dim)


def build(agent: AgentSpec, name: str, width: int = 64, seed: int = 0) -> TorchPolicy:
    """The policy of an agent's streams; the settings `policy.*` are this function's arguments."""
    senses = Senses(tuple(s for s in agent.observations if s.dtype == "float32" and len(s.shape) == 1))
    scale = action_scales(agent, None)
    network = ResidualNetwork(senses.sizes[0], scale, width, seed)
    return TorchPolicy(name, agent.actions, senses, network, {"kind": "residual", "width": width})


if __name__ == "__main__":
    steps = sys.argv[1] if len(sys.argv) > 1 else "80000"
    own = ["~policy.hidden", "~policy.init_std", "policy._target_=own_policy.build", "policy.name=residual"]
    folder = api.train("task=reach", *own, f"budget.env_steps={steps}", "render.episodes=0")
    print(f"success {api.summary(str(folder))['success_rate']:.2f}, policy {api.load_policy(str(folder)).spec.name}")
