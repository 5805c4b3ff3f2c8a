"""Configurations of terms, of the entities they refer to, and of whole environments, with Isaac Lab's names."""

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Annotated, Any, ClassVar, Protocol

from gymnasium.spaces import Box

from simulators.isaac.checks import check_rotation, check_vector, check_whole, is_number
from simulators.isaac.configclass import MISSING, Config, configclass, default_of, members
from simulators.isaac.errors import ConfigError, nearest
from simulators.isaac.names import resolve_matching_names
from simulators.isaac.noise import NoiseCfg
from simulators.isaac.quaternion import Order, check_order

Names = str | list[str] | None
Ids = Any
"""Indices, or the slice of all."""


class Entities(Protocol):
    """Entities by name, as a scene has them."""

    def __getitem__(self, name: str) -> Any: ...


@configclass
class SceneEntityCfg:
    """An entity of the scene, and some of its joints and bodies, by names or regular expressions, or by indices.

    `resolve` is called once, by the manager of the term that holds it, and fills the indices from the names, or the
    names from the indices. Indices of all joints or bodies in order become `slice(None)`.
    """

    name: str = MISSING
    joint_names: Names = None
    joint_ids: Ids = slice(None)
    body_names: Names = None
    body_ids: Ids = slice(None)
    preserve_order: bool = False

    def resolve(self, scene: Entities) -> None:
        """Look the names up.

        Raises:
            ConfigError: The scene has no such entity, or the entity no such joint or body, or names and indices differ.
        """
        entity = scene[self.name]
        for kind in ("joint", "body"):
            names, ids = getattr(self, f"{kind}_names"), getattr(self, f"{kind}_ids")
            if names is None and ids == slice(None):
                continue
            known = getattr(entity, f"{kind}_names", None)
            if known is None:
                raise ConfigError(f"{self.name} has no {kind} names", f"scene entity {self.name}", "leave them out")
            ids, names = self._match(kind, names, ids, known)
            setattr(self, f"{kind}_ids", slice(None) if ids == list(range(len(known))) else ids)
            setattr(self, f"{kind}_names", names)

    def _match(self, kind: str, names: Names, ids: Ids, known: list[str]) -> tuple[list[int], list[str]]:
        where = f"{kind}_names of scene entity {self.name}"
        given = list(range(len(known)))[ids] if isinstance(ids, slice) else [ids] if isinstance(ids, int) else list(ids)
        if names is None:
            if any(not 0 <= i < len(known) for i in given):
                raise ConfigError(f"{kind}_ids {given}", where, f"choose 0 to {len(known) - 1}")
            return given, [known[i] for i in given]
        found, full = resolve_matching_names(names, known, self.preserve_order, where)
        if ids != slice(None) and given != found:
            raise ConfigError(f"{kind}_ids {given} are not {kind}_names {names}", where, f"those are {found}")
        return found, full


JointedEntityCfg = Annotated[SceneEntityCfg, "with joints"]
"""Entity with joints: an annotation of terms' parameters that managers check."""


@configclass
class ManagerTermBaseCfg:
    """A function, or a `ManagerTermBase` class, called with the environment and `params`."""

    func: Callable[..., Any] = MISSING
    params: dict[str, Any] = field(default_factory=dict)


@configclass
class ModifierCfg:
    """`func(data, **params)` that changes an observation before noise."""

    func: Callable[..., Any] = MISSING
    params: dict[str, Any] = field(default_factory=dict)


@configclass
class ObservationTermCfg(ManagerTermBaseCfg):
    """Called with (env, **params) for [N, ...] or [N] numbers; then come modifiers, noise, clip, scale and history.

    Attributes:
        clip: Lower and upper limit.
        scale: A factor, or one per element.
        history_length: Steps kept, the newest last; 0 for the present one without a history axis. After a reset all of
            them are the first.
        flatten_history_dim: Whether [N, H, D] is given as [N, H * D].
    """

    modifiers: list[ModifierCfg] | None = None
    noise: NoiseCfg | None = None
    clip: tuple[float, float] | None = None
    scale: tuple[float, ...] | float | None = None
    history_length: int = 0
    flatten_history_dim: bool = True


@configclass
class ObservationGroupCfg:
    """Terms as members, in order.

    Attributes:
        concatenate_terms: Whether the group is one tensor, or a dictionary of the terms.
        concatenate_dim: Axis, not counting that of the environments unless negative.
        enable_corruption: Whether noise is applied.
        history_length, flatten_history_dim: Replace those of every term, unless `history_length` is None.
    """

    _open: ClassVar[bool] = True
    concatenate_terms: bool = True
    concatenate_dim: int = -1
    enable_corruption: bool = False
    history_length: int | None = None
    flatten_history_dim: bool = True


@configclass
class RewardTermCfg(ManagerTermBaseCfg):
    """Called with (env, **params) for [N] numbers, multiplied by `weight` and the step's duration."""

    weight: float = MISSING


@configclass
class TerminationTermCfg(ManagerTermBaseCfg):
    """Called with (env, **params) for [N] bool; `time_out` truncates, otherwise it terminates."""

    time_out: bool = False


@configclass
class EventTermCfg(ManagerTermBaseCfg):
    """Called with (env, env_ids, **params).

    Attributes:
        mode: `prestartup`, then `startup`: once, with env_ids None. `reset`: at resets. `interval`: after a time drawn
            from `interval_range_s` [s], of each environment's own, or one for all (env_ids None) if `is_global_time`.
            Other modes are for `event_manager.apply`.
        min_step_count_between_reset: `reset` passes an environment over until this many steps after the last time.
    """

    mode: str = MISSING
    interval_range_s: tuple[float, float] | None = None
    is_global_time: bool = False
    min_step_count_between_reset: int = 0


@configclass
class CurriculumTermCfg(ManagerTermBaseCfg):
    """Called with (env, env_ids, **params) before environments are reset; its result is logged."""


@configclass
class ActionTermCfg:
    """An `ActionTerm` class and the asset it drives; `clip` holds limits of processed actions by joint names."""

    _ignored: ClassVar[tuple[str, ...]] = ("debug_vis",)
    class_type: type = MISSING
    asset_name: str = MISSING
    debug_vis: bool = False
    clip: dict[str, tuple[float, float]] | None = None


@configclass
class CommandTermCfg:
    """A `CommandTerm` class; commands are drawn anew after a time from `resampling_time_range` [s]."""

    _ignored: ClassVar[tuple[str, ...]] = ("debug_vis",)
    class_type: type = MISSING
    resampling_time_range: tuple[float, float] = MISSING
    debug_vis: bool = False


@configclass
class Unused(Config):
    """Takes any member, and nothing reads it: settings of another simulator's physics or window."""

    _open: ClassVar[bool] = True


@configclass
class SimulationCfg:
    """Physics.

    Attributes:
        dt: Seconds between two applications of actions.
        substeps: MuJoCo steps in `dt`; the control rate does not depend on it.
        num_threads: Physics threads; 0 for one per CPU.
        device: `cpu` only.
        render_interval, physx: Accepted; nothing is drawn inside a step, and MuJoCo has no such settings.
    """

    _ignored: ClassVar[tuple[str, ...]] = ("render_interval",)
    dt: float = 1.0 / 60.0
    substeps: int = 1
    num_threads: int = 0
    device: str = "cpu"
    gravity: tuple[float, float, float] = (0.0, 0.0, -9.81)
    render_interval: int = 1
    physx: Unused = Unused()


@configclass
class EnvCfg(Config):
    """Common configuration of manager-based and direct environments.

    Attributes:
        decimation: `sim.dt` steps per environment step.
        episode_length_s: Seconds until `time_out`.
        seed: Of everything the environment draws; None draws a seed.
        quaternion: `xyzw` (Isaac Lab 3.x) or `wxyz` (2.x); None is `xyzw`, and refused where the configuration holds a
            quaternion that the orders read differently.
        is_finite_horizon: Whether the time limit belongs to the task; then `extras["time_outs"]` is left out.
        viewer: Accepted; there is no window.
    """

    _open: ClassVar[bool] = True
    scene: Any = MISSING
    sim: SimulationCfg = SimulationCfg()
    decimation: int = MISSING
    episode_length_s: float = MISSING
    seed: int | None = None
    quaternion: Order | None = None
    is_finite_horizon: bool = False
    viewer: Unused = Unused()


@configclass
class ManagerBasedRLEnvCfg(EnvCfg):
    """Groups of terms, each a configuration with the terms as members, a dictionary, or None."""

    observations: Any = MISSING
    actions: Any = MISSING
    rewards: Any = MISSING
    terminations: Any = MISSING
    events: Any = None
    commands: Any = None
    curriculum: Any = None


@configclass
class DirectRLEnvCfg(EnvCfg):
    """Spaces by their sizes (an int, or those of several axes), or a Box; `state_space` of the critic, 0 for none.

    Attributes:
        action_noise_model, observation_noise_model: Noise on all actions and on the policy's observation.
    """

    observation_space: int | Sequence[int] | Box = MISSING
    action_space: int | Sequence[int] | Box = MISSING
    state_space: int | Sequence[int] | Box = 0
    events: Any = None
    action_noise_model: NoiseCfg | None = None
    observation_noise_model: NoiseCfg | None = None


def quaternion_order_of(cfg: EnvCfg) -> Order:
    """Order of a configuration's quaternions.

    Raises:
        ConfigError: It is unknown, or not said though the configuration holds a quaternion whose meaning depends on it.
    """
    where = type(cfg).__name__
    if cfg.quaternion is not None:
        return check_order(cfg.quaternion, f"{where}.quaternion")
    for name, value in members(cfg):
        if name.endswith(".rot") and isinstance(value, (list, tuple)) and len(value) == 4:
            x, y, z, w = check_rotation(value, f"rot of {name.removesuffix('.rot')}")
            if [x, y, z, w] != [w, x, y, z]:
                fix = "set quaternion to xyzw (Isaac Lab 3.x) or wxyz (2.x) in the configuration"
                raise ConfigError(f"{name} is a quaternion of unknown order", where, fix)
    return "xyzw"


def ignored(cfg: EnvCfg) -> list[str]:
    """Names of settings that are accepted and change nothing here, where they differ from their defaults."""
    names = []
    for parent, value in members(cfg):
        for name in vars(value) if isinstance(value, Unused) else getattr(value, "_ignored", ()):
            if name not in type(value).__dataclass_fields__ or getattr(value, name) != default_of(value, name):
                names.append(f"{parent}.{name}")
        if getattr(value, "spawn", MISSING) is None and value.init_state != type(value.init_state)():
            names.append(f"{parent}.init_state")
    return names


def check_env_cfg(cfg: EnvCfg) -> None:
    """Raise `ConfigError` for numbers out of range."""
    where = type(cfg).__name__
    for name, value, low, high in (
        ("scene.num_envs", cfg.scene.num_envs, 1, 65536),
        ("decimation", cfg.decimation, 1, 10_000),
        ("sim.substeps", cfg.sim.substeps, 1, 10_000),
        ("sim.num_threads", cfg.sim.num_threads, 0, 1024),
    ):
        check_whole(value, low, high, name, where)
    for name, number, most in (("sim.dt", cfg.sim.dt, 1.0), ("episode_length_s", cfg.episode_length_s, 1e6)):
        if not is_number(number) or not 0.0 < number <= most:
            raise ConfigError(f"{name} is {number!r}", where, f"give seconds, more than 0 and at most {most:g}")
    check_vector(cfg.sim.gravity, 3, f"sim.gravity of {where}")
    if cfg.sim.device != "cpu":
        raise ConfigError(f"device {cfg.sim.device!r} is not supported", "sim.device", nearest(cfg.sim.device, ["cpu"]))
