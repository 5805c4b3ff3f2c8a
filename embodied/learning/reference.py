"""Reference policy that training stays close to: a frozen copy of the policy, with the weights of one version."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from embodied.errors import CorruptFile, WeightsRefused
from embodied.learning.losses import masked_mean
from embodied.weights.manifest import Version
from policies.network import Inputs, PolicyNetwork
from policies.torch_policy import TorchPolicy

MOST_LOG_RATIO = 20.0


class Reference:
    """A network that never trains and has the weights of one published version, its normaliser included.

    Args:
        policy: Copied; parameters that do not train are shared with it.

    Attributes:
        version: Version of its weights; None before `take`.
        updates: The learner's updates when it took them.
    """

    def __init__(self, policy: TorchPolicy) -> None:
        shared = {id(p): p for p in policy.network.parameters() if not p.requires_grad}
        self.policy = deepcopy(policy, dict(shared))
        self.network: PolicyNetwork = self.policy.network.requires_grad_(False).eval()
        self.version: Version | None = None
        self.updates = 0

    @torch.no_grad()
    def take(self, policy: TorchPolicy, version: Version, updates: int) -> None:
        """Hold the weights that `policy` has now and that were published as `version`."""
        theirs = policy.network.state_dict()
        for name, own in self.network.state_dict().items():
            if own.data_ptr() != theirs[name].data_ptr():
                own.copy_(theirs[name])
        self.version, self.updates = version, updates

    @torch.no_grad()
    def log_probs(self, numbers: Tensor, inputs: Inputs, actions: Tensor, stored: Inputs) -> Tensor:
        """[N, K, D] log-probabilities of actions [N, K, D] by the reference.

        Args:
            numbers: [N, F + C] physical; the reference normalises them as its own version did.
            inputs: Pictures and words.
            actions, stored: As in `PolicyNetwork.evaluate_actions`.
        """
        return self.network.evaluate_actions(inputs | self.network.normalise(numbers), actions, stored).log_probs

    def state(self) -> dict[str, Any]:
        """Tensors and plain values; empty before `take`."""
        if self.version is None:
            return {}
        model = {name: torch.from_numpy(array) for name, array in self.policy.tensors().items()}
        return {"version": list(self.version), "updates": self.updates, "model": model}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from `state` exactly.

        Raises:
            CorruptFile: It is of another network; nothing has changed then.
        """
        if not state:
            self.version, self.updates = None, 0
            return
        try:
            number, digest = state["version"]
            updates = int(state["updates"])
            self.policy.load({name: tensor.numpy() for name, tensor in state["model"].items()})
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, WeightsRefused) as error:
            why = error.what if isinstance(error, WeightsRefused) else f"{type(error).__name__} {error}"
            raise CorruptFile(
                f"the reference policy's state does not fit: {why}", "learner", "resume from an older checkpoint"
            ) from None
        self.version, self.updates = Version(int(number), str(digest)), updates


def reference_kl(log_probs: Tensor, reference: Tensor, executed: Tensor) -> Tensor:
    """KL(policy || reference) per executed number, by r - 1 - log r with r = pi_reference / pi_policy.

    k3 of Schulman 2020, "Approximating KL Divergence", as the penalty of GRPO (Shao et al. 2024, arXiv:2402.03300,
    equation 4): unbiased for actions that the policy itself sampled, and never negative. The gradient through it is on
    average, over such actions, that of KL(reference || policy).

    Args:
        log_probs, reference: [N, K, D] of the sampled actions, by the policy and by the reference.
        executed: [N, K]; actions never executed count for nothing.
    """
    mask = executed[..., None].expand_as(log_probs)
    log_ratio = torch.where(mask, reference - log_probs, 0.0).clamp(max=MOST_LOG_RATIO)
    return masked_mean(torch.expm1(log_ratio) - log_ratio, mask)
