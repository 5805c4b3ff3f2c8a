"""Settings of PPO."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from embodied.errors import ConfigError
from embodied.learning.importance import Correction
from embodied.learning.losses import Granularity
from embodied.learning.ranges import Range, check_settings, shown

SHARE, POSITIVE, WEIGHT, COUNT = Range(0, 1), Range(above=True), Range(), Range()
LIMIT = Range(high=math.inf, above=True)  # infinite for none
RANGES = {
    "gamma": SHARE, "lam": SHARE, "veto": SHARE,
    "epochs": Range(1), "minibatches": Range(1), "micro_batch": COUNT,
    "lr": POSITIVE, "target_kl": WEIGHT, "lr_factor": Range(1), "lr_min": WEIGHT, "lr_max": LIMIT, "critic_lr": WEIGHT,
    "clip": LIMIT, "entropy": WEIGHT, "value": WEIGHT, "max_grad_norm": LIMIT, "truncate_at": LIMIT,
    "critic_only_updates": COUNT, "normaliser_steps": COUNT, "reference_kl": WEIGHT, "reference_every": COUNT,
    "drift": Range(high=math.inf),
}  # fmt: skip


@dataclass(frozen=True)
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
            here, see `embodied.learning.consistency.measure`; beyond it nothing is learned. 0 does not check.
        seed: Draws the minibatches.
        device: Where the network trains.
    """

    gamma: float = 0.97
    lam: float = 0.95
    epochs: int = 8
    minibatches: int = 4
    micro_batch: int = 0
    lr: float = 3e-4
    target_kl: float = 0.01
    lr_factor: float = 1.5
    lr_min: float = 1e-5
    lr_max: float = 3e-3
    critic_lr: float = 0.0
    clip: float = 0.2
    entropy: float = 0.0
    value: float = 0.5
    max_grad_norm: float = 1.0
    critic_only_updates: int = 0
    normaliser_steps: int = 10_000_000
    granularity: Granularity = "action"
    per_dimension: bool = False
    correction: Correction = "none"
    truncate_at: float = 2.0
    band: tuple[float, float] = (0.5, 5.0)
    veto: float = 1e-4
    reference_kl: float = 0.0
    reference_every: int = 0
    drift: float = 0.01
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_settings(self, "algo ppo", RANGES)
        if self.lr_min > self.lr_max:
            what, fix = f"lr_min={self.lr_min:g} is above lr_max={self.lr_max:g}", "give the lower limit first"
            raise ConfigError(what, "algo ppo", fix)
        if self.target_kl and not self.lr_min <= self.lr <= self.lr_max:
            what = f"lr={self.lr:g} is not within lr_min={self.lr_min:g} and lr_max={self.lr_max:g}"
            raise ConfigError(what, "algo ppo", "move a limit, or give target_kl=0, which keeps lr as it is")
        band = list(self.band) if isinstance(self.band, Sequence) else []
        numbers = [b for b in band if isinstance(b, int | float) and not isinstance(b, bool)]
        if len(numbers) != 2 or len(band) != 2 or not 0 <= numbers[0] <= 1 <= numbers[1]:
            raise ConfigError(f"band={shown(self.band)}", "algo ppo", "give two numbers around 1, such as [0.5, 5.0]")
