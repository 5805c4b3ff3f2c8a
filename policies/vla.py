"""Parts that vision-language-action policies share: settings, a critic, and the policy around streams and a network."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Interval, Len
from torch import Tensor

from embodied.errors import ConfigError, SpecMismatch
from embodied.settings import AtLeastOne, Count, Seed, configured, settings
from embodied.spec import AgentSpec
from policies.encoders import Critic
from policies.network import MAX_CHUNK, Inputs, PolicyNetwork, check_chunk
from policies.senses import Senses, action_scales
from policies.torch_policy import TorchPolicy
from policies.words import Words


@settings("policy")
class VLASettings:
    """Settings that all have; a policy's own ones are fields of a subclass.

    Attributes:
        chunk: K. execute: How many of them before asking again; all where 0.
        state, pictures, instruction, critic: Names of streams, as in `Senses.choose`.
        words: Tokenizer; that of `Words` where None.
        channels: Of the convolutions.
        critic_hidden: Widths of the critic's layers.
        seed: Draws the initial weights.

        identity: Fields that change what weights mean, in the order that `PolicySpec.extra` has.
        may_lack: Whether a config may choose to read no pictures or no instruction.

    Raises:
        ConfigError: A number is out of its range.
    """

    chunk: Annotated[int, Interval(ge=1, le=MAX_CHUNK)] = 4
    execute: Annotated[Count, "0 for all"] = 0
    state: tuple[str, ...] = ()
    pictures: tuple[str, ...] | None = None
    instruction: str | None = "instruction"
    critic: tuple[str, ...] = ()
    words: Words | None = None
    channels: Annotated[tuple[AtLeastOne, ...], Len(1)] = (16, 32, 48, 48)
    critic_hidden: tuple[AtLeastOne, ...] = (128, 128)
    seed: Seed = 0

    identity: ClassVar[tuple[str, ...]]
    may_lack: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_chunk(self.chunk, self.execute)

    def require_multiple(self, name: str, unit: int, why: str) -> None:
        """Raise a `ConfigError` unless a number divides by `unit`."""
        if (value := getattr(self, name)) % unit:
            raise ConfigError(f"{name} {value}", f"policy.{name}", f"give a multiple of {unit}, {why}")

    def senses(self, name: str, agent: AgentSpec) -> Senses:
        """Streams that the policy reads of those that `agent` offers.

        Raises:
            SpecMismatch: A stream is not offered, or there is no picture or instruction.
        """
        chosen = Senses.choose(agent, self.state, self.pictures, self.instruction, self.words, self.critic)
        if not chosen.pictures and (self.pictures is None or not self.may_lack):
            without = ", or policy.pictures=[] to do without" if self.may_lack else ""
            fix = f"give env.cameras, such as [front]{without}"
            raise SpecMismatch(f"policy {name} finds no picture", "spec", fix)
        if not chosen.words and not self.may_lack:
            raise SpecMismatch(f"policy {name} reads no instruction", "policy.instruction", "name the stream of one")
        if not chosen.observations:
            raise SpecMismatch(f"policy {name} reads nothing", "spec", "give policy.state, such as [joint_pos]")
        return chosen


class VLANetwork(PolicyNetwork):
    """A network whose critic has an own view of the numbers where some are its alone, and else reads `features`.

    Args:
        senses: Streams that are read.
        scale: [D] physical units of one raw unit.
        settings: Of the policy.
    """

    critic: Critic

    def __init__(self, senses: Senses, scale: Sequence[float], settings: Any) -> None:
        numbers, own = senses.sizes
        super().__init__(settings.chunk, scale, numbers + own, numbers)
        self.value_reads_rest = not own

    def features(self, inputs: Inputs) -> Tensor:
        """[N, features] of what is seen, said and felt."""
        raise NotImplementedError

    def value(self, inputs: Inputs) -> Tensor:
        return self.value_of(inputs, None)

    def value_of(self, inputs: Inputs, features: Tensor | None) -> Tensor:
        """As `value`; makes no features where they are given."""
        if self.critic.privileged:
            return self.critic.own_view(inputs)
        with torch.no_grad():
            features = self.features(inputs) if features is None else features
        return self.critic(features)


class VLAPolicy(TorchPolicy):
    """Chunks of K actions from pictures, an instruction and the robot's own state.

    Args:
        name: Name of the policy.
        agent: Streams offered.
        config: Fields of the policy's settings.

    Attributes:
        kind: Its name in the spec.
        settings_type: Its settings.
        network_type: Its network, which may draw from torch's global generator: the seed sets that for it alone.

    Raises:
        ConfigError: A setting is unknown, of the wrong kind, or out of its range.
        SpecMismatch: A stream is not offered, there is no picture or instruction, or an action is not float32.
    """

    kind: ClassVar[str]
    settings_type: ClassVar[type[VLASettings]]
    network_type: ClassVar[type[VLANetwork]]
    settings: VLASettings

    def __init__(self, name: str, agent: AgentSpec, **config: Any) -> None:
        self.settings = settings = configured(self.settings_type, config)
        senses, scale = settings.senses(name, agent), action_scales(agent)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(settings.seed)
            network = self.network_type(senses, scale, settings)
        sizes = {field: getattr(settings, field) for field in settings.identity}
        plain = {field: list(value) if isinstance(value, tuple) else value for field, value in sizes.items()}
        extra = {"kind": self.kind, **plain, "action_scale": scale}
        super().__init__(name, agent.actions, senses, network, extra, settings.execute, stored=network.stored)
