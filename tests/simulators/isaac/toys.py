"""A pendulum and a ball on batched MuJoCo: small environments for the tests of the Isaac façade."""

import mujoco
import torch

from simulators.isaac.actuators import ImplicitActuatorCfg
from simulators.isaac.assets import ArticulationCfg, RigidObjectCfg
from simulators.isaac.configclass import configclass
from simulators.isaac.envs import DirectRLEnv, DirectRLEnvCfg, ManagerBasedRLEnvCfg
from simulators.isaac.managers import (
    ActionTerm,
    ActionTermCfg,
    EventTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
)
from simulators.isaac.scene import InteractiveSceneCfg
from simulators.isaac.sim import MassPropertiesCfg, MjcfSpawnCfg, SphereCfg


def pendulum() -> mujoco.MjSpec:
    """Two links in a plane, each 0.5 m with a mass at its end."""
    spec = mujoco.MjSpec()
    spec.compiler.degree = False
    parent, offset = spec.worldbody, [0.0, 0.0, 1.0]
    for name in ("upper", "lower"):
        parent = parent.add_body(name=name, pos=offset)
        parent.add_joint(name=f"{name}_hinge", axis=[0, 1, 0], damping=[0.05, 0, 0], range=[-3.0, 3.0], limited=1)
        parent.add_geom(
            name=name, type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[0.05, 0, 0], pos=[0, 0, -0.5], mass=0.5, contype=0
        )
        offset = [0.0, 0.0, -0.5]
    return spec


PENDULUM = ArticulationCfg(
    spawn=MjcfSpawnCfg(build=pendulum, rename={"(.*)_hinge": r"\1_joint"}),
    init_state=ArticulationCfg.InitialStateCfg(joint_pos={"upper_joint": 0.3, "lower_joint": -0.2}),
    actuators={
        "all": ImplicitActuatorCfg(joint_names_expr=[".*_joint"], stiffness=20.0, damping=1.0, effort_limit=5.0)
    },
)


@configclass
class SceneCfg(InteractiveSceneCfg):
    robot = PENDULUM
    ball = RigidObjectCfg(
        prim_path="{ENV_REGEX_NS}/Ball",
        spawn=SphereCfg(radius=0.05, mass_props=MassPropertiesCfg(mass=0.2)),
        init_state=RigidObjectCfg.InitialStateCfg(pos=(1.0, 0.0, 2.0)),
    )


class Targets(ActionTerm):
    """Joint position targets, noted in `env.events_seen` if it exists."""

    @property
    def action_dim(self) -> int:
        return self._asset.num_joints

    @property
    def raw_actions(self) -> torch.Tensor:
        return self._raw

    processed_actions = raw_actions

    def process_actions(self, actions: torch.Tensor) -> None:
        note(self._env, "process action")
        self._raw = actions

    def apply_actions(self) -> None:
        note(self._env, "apply action")
        self._asset.set_joint_position_target(self._raw)


class HeldTargets(Targets):
    constant_over_decimation = True


def note(env, what: str) -> None:
    """Append to the list `events_seen` of the environment, if it has one."""
    env.__dict__.setdefault("seen", []).append(what)


def joint_pos(env, asset_cfg: SceneEntityCfg = SceneEntityCfg("robot")) -> torch.Tensor:  # noqa: B008
    note(env, "observe")
    return env.scene[asset_cfg.name].data.joint_pos[:, asset_cfg.joint_ids]


def ones(env) -> torch.Tensor:
    note(env, "reward")
    return torch.ones(env.num_envs)


def time_out(env) -> torch.Tensor:
    note(env, "terminate")
    return env.episode_length_buf >= env.max_episode_length


def swung(env, limit: float) -> torch.Tensor:
    return env.scene["robot"].data.joint_pos[:, 0] > limit


def restart(env, env_ids, spread: float) -> None:
    note(env, "reset")
    robot = env.scene["robot"]
    default = robot.data.default_joint_pos[env_ids]
    drawn = torch.rand(default.shape, generator=env.generator) * spread
    robot.write_joint_state_to_sim(default + drawn, torch.zeros_like(default), env_ids=env_ids)


@configclass
class ObservationsCfg:
    @configclass
    class PolicyCfg(ObservationGroupCfg):
        joints = ObservationTermCfg(func=joint_pos)

    policy: PolicyCfg = PolicyCfg()


@configclass
class ActionsCfg:
    joints = ActionTermCfg(class_type=Targets, asset_name="robot")


@configclass
class RewardsCfg:
    alive = RewardTermCfg(func=ones, weight=2.0)


@configclass
class TerminationsCfg:
    time_out = TerminationTermCfg(func=time_out, time_out=True)


@configclass
class EventsCfg:
    restart = EventTermCfg(func=restart, mode="reset", params={"spread": 0.1})


@configclass
class ToyCfg(ManagerBasedRLEnvCfg):
    """Three pendulums, 10 steps of 0.04 s."""

    scene: SceneCfg = SceneCfg(num_envs=3)
    observations: ObservationsCfg = ObservationsCfg()
    actions: ActionsCfg = ActionsCfg()
    rewards: RewardsCfg = RewardsCfg()
    terminations: TerminationsCfg = TerminationsCfg()
    events: EventsCfg = EventsCfg()

    def __post_init__(self) -> None:
        self.decimation = 2
        self.episode_length_s = 0.4
        self.sim.dt = 0.02
        self.sim.substeps = 4
        self.sim.num_threads = 1
        self.seed = 5


@configclass
class SwingCfg(DirectRLEnvCfg):
    scene: InteractiveSceneCfg = InteractiveSceneCfg(num_envs=4)
    robot: ArticulationCfg = PENDULUM
    observation_space = 4
    action_space = 2

    def __post_init__(self) -> None:
        self.decimation = 3
        self.episode_length_s = 0.3
        self.sim.dt = 0.02
        self.sim.substeps = 2
        self.seed = 1


class SwingEnv(DirectRLEnv):
    """Swing up by efforts: the hooks of a direct environment."""

    cfg: SwingCfg

    def _setup_scene(self) -> None:
        self.calls = {"apply": 0}
        self.robot = self.cfg.robot.class_type(self.cfg.robot)
        self.scene.articulations["robot"] = self.robot

    def _pre_physics_step(self, actions: torch.Tensor) -> None:
        self.efforts = actions.clamp(-1.0, 1.0) * 3.0

    def _apply_action(self) -> None:
        self.calls["apply"] += 1
        self.robot.set_joint_effort_target(self.efforts)

    def _get_observations(self) -> dict:
        return {"policy": torch.cat([self.robot.data.joint_pos, self.robot.data.joint_vel], dim=1)}

    def _get_rewards(self) -> torch.Tensor:
        return self.robot.data.body_pos_w[:, -1, 2]

    def _get_dones(self) -> tuple[torch.Tensor, torch.Tensor]:
        fallen = self.robot.data.joint_pos[:, 0].abs() > 2.9
        return fallen, self.episode_length_buf >= self.max_episode_length

    def _reset_idx(self, env_ids) -> None:
        super()._reset_idx(env_ids)
        default = self.robot.data.default_joint_pos[env_ids]
        drawn = torch.rand(default.shape, generator=self.generator) - 0.5
        self.robot.write_joint_state_to_sim(default + drawn, torch.zeros_like(default), env_ids=env_ids)
