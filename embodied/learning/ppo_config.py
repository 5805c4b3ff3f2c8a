"""Settings of PPO."""

from typing import Annotated

from annotated_types import Ge
from pydantic import AllowInfNan

from embodied.errors import ConfigError
from embodied.learning.importance import Correction
from embodied.learning.losses import Granularity
from embodied.settings import AboveZero, AtLeastOne, Count, Limit, Share, Text, Weight, require, settings

Factor = Annotated[float, Ge(1)]
Drift = Annotated[float, Ge(0), AllowInfNan(True)]


@settings("algo")
class PPOConfig:
    """Settings of PPO.

    Attributes:
        gamma: Discount per control step. lam: Decay of the advantage estimator.
        epochs, minibatches: Passes over the data of one update, and parts of each pass.
        micro_batch: Most decisions in one pass through the network: a minibatch of more is computed in parts, whose
            gradients add up to its own; for policies whose minibatches do not fit into memory. 0 for no limit.
        lr: Learning rate to begin with.
        target_kl: The learning rate moves by `lr_factor` when an update's KL is beyond twice this, or below half; 0
            keeps it.
        lr_factor, lr_min, lr_max: Its step and its limits.
        critic_lr: Learning rate of the critic, which stays; 0 lets it move with the actor's.
        clip: How far the probability ratio may pay off from 1.
        entropy: Weight of the entropy bonus. value: Weight of the value loss.
        max_grad_norm: The gradient is scaled down to this norm.
        critic_only_updates: The first updates train the critic alone; for an actor that was cloned.
        normaliser_steps: Observations after which the normaliser stands still; 0 keeps the one it starts with.
        granularity, per_dimension: See `embodied.learning.losses.reduce_log_ratio`.
        correction: For data of older versions. With `none` the ratio is taken to the version that decided. Otherwise it
            is taken to the weights before the update, and what they differ by enters as a weight; `truncated` or
            `masked`: see `embodied.learning.importance.importance_weights`, also for `truncate_at`, `band` and `veto`.
        reference_kl: Weight of the KL divergence to a reference policy, per executed number; 0 for no reference.
        reference_every: Updates after which the next published version becomes the reference; 0 stays with the first
            one published, such as the clone.
        drift: Largest drift of log-probabilities between decisions of the version last published and the same weights
            here, see `embodied.learning.consistency.measure`; beyond it nothing is learned. Where all decisions are
            older, the weights of one of their versions are read for it. 0 does not check.
        seed: Draws the minibatches.
        device: Where the network trains.
    """

    gamma: Share = 0.97
    lam: Share = 0.95
    epochs: AtLeastOne = 8
    minibatches: AtLeastOne = 4
    micro_batch: Count = 0
    lr: AboveZero = 3e-4
    target_kl: Weight = 0.01
    lr_factor: Factor = 1.5
    lr_min: Weight = 1e-5
    lr_max: Limit = 3e-3
    critic_lr: Weight = 0.0
    clip: Limit = 0.2
    entropy: Weight = 0.0
    value: Weight = 0.5
    max_grad_norm: Limit = 1.0
    critic_only_updates: Count = 0
    normaliser_steps: Count = 10_000_000
    granularity: Granularity = "action"
    per_dimension: bool = False
    correction: Correction = "none"
    truncate_at: Limit = 2.0
    band: Annotated[tuple[Drift, Drift], "around 1, such as [0.5, 5.0]"] = (0.5, 5.0)
    veto: Share = 1e-4
    reference_kl: Weight = 0.0
    reference_every: Count = 0
    drift: Drift = 0.01
    seed: int = 0
    device: Text = "cpu"

    def __post_init__(self) -> None:
        if self.lr_min > self.lr_max:
            what, fix = f"lr_min={self.lr_min:g} is above lr_max={self.lr_max:g}", "give the lower limit first"
            raise ConfigError(what, "algo.lr_min", fix)
        if self.target_kl and not self.lr_min <= self.lr <= self.lr_max:
            what = f"lr={self.lr:g} is not within lr_min={self.lr_min:g} and lr_max={self.lr_max:g}"
            raise ConfigError(what, "algo.lr", "move a limit, or give target_kl=0, which keeps lr as it is")
        around = self.band[0] <= 1 <= self.band[1]
        require(around, "algo.band", list(self.band), "give two numbers around 1, such as [0.5, 5.0]")
