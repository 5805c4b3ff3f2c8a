"""Contracts of learners, and the parts that they share."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embodied.data import Segment
from embodied.episode import Episode
from embodied.errors import ConfigError, CorruptFile, DataError, WeightsRefused
from embodied.learning.normaliser import Normaliser
from embodied.weights.manifest import Version
from policies.torch_policy import TorchPolicy


class Trained(Protocol):
    """Weights in training and their state. Knows nothing of where it runs."""

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The next version, as `policies.base.Policy.tensors`."""
        ...

    def published(self, version: Version) -> None:
        """Note that the present tensors are served as `version` from now on."""
        ...

    def load_pretrained(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Start from trained weights, before anything is learned; their normaliser is kept as it is.

        Raises:
            WeightsRefused: As `policies.base.Policy.load`.
        """
        ...

    def state(self) -> dict[str, Any]:
        """Everything the next update depends on; tensors and plain values, as `torch.load(weights_only=True)` takes."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from `state` exactly.

        Raises:
            CorruptFile: It is the state of another algorithm or another network; nothing has changed then.
        """
        ...


class Learner(Trained, Protocol):
    """Turns segments into new weights.

    Attributes:
        has_ratio: Whether its loss weighs each action by its probability now over its probability under the version
            that decided, so that it may learn from decisions of the version before.
    """

    has_ratio: bool

    def update(self, segments: list[Segment]) -> dict[str, float]:
        """Learn from segments of one policy and agent; metrics named `learner/...`.

        Raises:
            DataError: A segment is not what this algorithm may learn from, or learning broke down.
        """
        ...


TENTHS = 10
FitReport = Callable[[float, float, Mapping[str, float]], None]
"""Called after every gradient step of `fit`, with the share that is done, in [0, 1], the step's loss, and at each tenth
with metrics, else with none."""


@runtime_checkable
class EpisodeLearner(Trained, Protocol):
    """Turns whole episodes into new weights."""

    def fit(
        self,
        episodes: Iterable[Episode],
        report: FitReport | None = None,
        begun: Mapping[str, Any] | None = None,
    ) -> dict[str, float]:
        """Learn from episodes; metrics named `learner/...`.

        Args:
            episodes: Read one by one, once.
            report: Told how far learning is.
            begun: `fit_state` of an interrupted call on the same episodes, which continues.

        Raises:
            DataError: They hold nothing to learn from, or learning broke down.
        """
        ...

    def fit_state(self) -> dict[str, Any]:
        """State within `fit`, for `begun`; called by its `report`."""
        ...


class FlatParameters:
    """Parameters and their gradients as views of two flat arrays: small networks spend their time in calls."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.values = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
        self.values.grad = torch.zeros_like(self.values)

    @torch.no_grad()
    def bind(self) -> Tensor:
        """Make the parameters views of the flat array, at their present values; returns the zeroed gradient."""
        gradient = self.values.grad
        assert gradient is not None
        gradient.zero_()
        if self.parameters[0].data_ptr() != self.values.data_ptr() or self.parameters[-1].grad is None:
            self.values.copy_(torch.cat([p.reshape(-1) for p in self.parameters]))
            sizes = [p.numel() for p in self.parameters]
            for p, values, slopes in zip(self.parameters, self.values.split(sizes), gradient.split(sizes), strict=True):
                p.data, p.grad = values.view_as(p), slopes.view_as(p)
        return gradient


class Optimiser:
    """Adam with a clipped gradient norm, which skips steps that are not finite.

    Args:
        parameters: Trained, but for those that need no gradient.
        lr: Learning rate; may be changed at any time.
        max_grad_norm: The gradient is scaled down to this norm.
        max_skipped: How many steps in a row may be skipped.
        apart: Parameters with a separate learning rate and clipped norm.
        apart_lr: That learning rate, which stays.

    Raises:
        ConfigError: Nothing is left to train.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        max_grad_norm: float,
        max_skipped: int = 16,
        apart: Iterable[nn.Parameter] = (),
        apart_lr: float = 0.0,
    ) -> None:
        trained, others = [p for p in parameters if p.requires_grad], {id(p) for p in apart}
        parts = [[p for p in trained if id(p) not in others], [p for p in trained if id(p) in others]]
        self.groups = [FlatParameters(part) for part in parts if part]
        if not self.groups:
            raise ConfigError("the policy has no parameter to train", "learner", "let some of its parameters train")
        rates = [rate for part, rate in zip(parts, (lr, apart_lr), strict=True) if part]
        groups = [{"params": [g.values], "lr": rate} for g, rate in zip(self.groups, rates, strict=True)]
        self.adam = torch.optim.Adam(groups, eps=1e-5, fused=True)
        self.rates = [float(rate) for rate in rates]
        self.max_grad_norm, self.max_skipped = max_grad_norm, max_skipped
        self.skipped = 0
        self.skipped_in_a_row = 0

    @property
    def lr(self) -> float:
        return float(self.adam.param_groups[0]["lr"])

    @lr.setter
    def lr(self, value: float) -> None:
        self.adam.param_groups[0]["lr"] = value

    def step(self, losses: Tensor | Iterator[Tensor]) -> float:
        """One step down a loss, or down the sum of several that are computed one by one.

        Returns:
            The norm before clipping of the gradient of the parameters that are not apart; NaN for a skipped step.

        Raises:
            DataError: Loss or gradient were not finite more than `max_skipped` times in a row.
        """
        gradients = [group.bind() for group in self.groups]
        total = 0.0
        for loss in (losses,) if isinstance(losses, Tensor) else losses:
            loss.backward()
            total += loss.item()
        norms = [float(torch.linalg.vector_norm(gradient)) for gradient in gradients]
        if math.isfinite(sum(norms)) and math.isfinite(total):
            for gradient, norm in zip(gradients, norms, strict=True):
                if norm > self.max_grad_norm:
                    gradient.mul_(self.max_grad_norm / norm)
            self.adam.step()
            self.skipped_in_a_row = 0
            return norms[0]
        self.skipped += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row > self.max_skipped:
            raise DataError(
                f"loss or gradient was not finite {self.skipped_in_a_row} times in a row",
                "learner",
                "go back to the last checkpoint with a lower learning rate, and look for huge observations or rewards",
            )
        return float("nan")

    def state(self) -> dict[str, Any]:
        counts = {"skipped": self.skipped, "skipped_in_a_row": self.skipped_in_a_row}
        return {"adam": deepcopy(self.adam.state_dict()), "rates": list(self.rates)} | counts

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise `CorruptFile` unless `state` fits what is trained."""
        fix = "resume with the configuration the run was started with"
        try:
            moments = state["adam"]["state"]
            counts = {part["exp_avg"].numel() for part in moments.values()}
            counts |= {part["exp_avg_sq"].numel() for part in moments.values()}
            groups = len(state["adam"]["param_groups"])
            int(state["skipped"]), int(state["skipped_in_a_row"])
            rates = [float(rate) for rate in self._made_with(state)]
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            what = f"the optimiser's state cannot be read: {type(error).__name__} {error}"
            raise CorruptFile(what, "learner", "resume from an older checkpoint") from None
        own = [group.values.numel() for group in self.groups]
        if counts - set(own) or len(moments) > len(own) or {groups, len(rates)} != {len(own)}:
            theirs, ours = (", ".join(map(str, sorted(some))) or "other" for some in (counts, own))
            raise CorruptFile(f"the optimiser's state is of {theirs} parameters, not of {ours}", "learner", fix)

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from `state` exactly, but at the rates given here where the state was made with others.

        Raises:
            CorruptFile: As `check`; nothing has changed then.
        """
        self.check(state)
        self.adam.load_state_dict(deepcopy(state["adam"]))  # which would share the tensors
        for group, given, before in zip(self.adam.param_groups, self.rates, self._made_with(state), strict=True):
            if given != before:
                group["lr"] = given
        self.skipped, self.skipped_in_a_row = int(state["skipped"]), int(state["skipped_in_a_row"])

    def _made_with(self, state: Mapping[str, Any]) -> list[float]:
        """Learning rates that the optimiser of a state was made with.

        Older states lack them. The present rate of their first group may have moved, so it is taken as given here.
        """
        if "rates" in state:
            return list(state["rates"])
        return [*self.rates[:1], *(group["lr"] for group in state["adam"]["param_groups"][1:])]


def model_state(policy: TorchPolicy) -> dict[str, Tensor]:
    """The policy's tensors as torch copies on the CPU."""
    return {name: torch.from_numpy(array) for name, array in policy.tensors().items()}


class PolicyLearner(Trained):
    """Learner of one policy: all of `Trained`.

    Attributes:
        version: Last published, by this process; None before.
        algorithm: Name that its state carries.
        counts: Names of its integer counters.
    """

    algorithm: ClassVar[str]
    counts: ClassVar[tuple[str, ...]]
    policy: TorchPolicy
    optimiser: Optimiser
    normaliser: Normaliser
    generator: torch.Generator
    version: Version | None = None

    def tensors(self) -> dict[str, NDArray[Any]]:
        return self.policy.tensors()

    def published(self, version: Version) -> None:
        self.version = version

    def load_pretrained(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        self.policy.load(tensors)
        self.normaliser.hold(self.policy.network.mean, self.policy.network.std)

    def state(self) -> dict[str, Any]:
        return {
            "algorithm": self.algorithm,
            "spec": self.policy.spec.to_dict(),
            "model": model_state(self.policy),
            "optimiser": self.optimiser.state(),
            "normaliser": self.normaliser.state(),
            "generator": self.generator.get_state(),
            **{name: getattr(self, name) for name in self.counts},
        }

    @property
    def parts(self) -> set[str]:
        """Names of what `state` holds."""
        return {"algorithm", "spec", "model", "optimiser", "normaliser", "generator", *self.counts}

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise `CorruptFile` unless `load` can take `state`."""
        where, older = f"learner {self.algorithm}, policy {self.policy.spec.name}", "resume from an older checkpoint"
        if missing := sorted(self.parts - state.keys()):
            raise CorruptFile(f"the learner's state has no {missing[0]}", where, older)
        for name, own in (("algorithm", self.algorithm), ("spec", self.policy.spec.to_dict())):
            if state[name] != own:
                what = f"the learner's state is of another {name}"
                raise CorruptFile(what, where, "resume with the configuration the run was started with")
        try:
            self.policy.check_tensors({name: tensor.numpy() for name, tensor in state["model"].items()})
        except (AttributeError, TypeError) as error:
            raise CorruptFile(f"the learner's weights cannot be read: {error}", where, older) from None
        except WeightsRefused as error:
            raise CorruptFile(f"the learner's weights do not fit: {error.what}", where, older) from None
        self.optimiser.check(state["optimiser"])

    def load(self, state: Mapping[str, Any]) -> None:
        self.check(state)
        self.policy.load({name: tensor.numpy() for name, tensor in state["model"].items()})
        self.optimiser.load(state["optimiser"])
        self.normaliser.load(state["normaliser"])
        self.generator.set_state(state["generator"])
        for name in self.counts:
            setattr(self, name, int(state[name]))
