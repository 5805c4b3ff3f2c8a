"""Event terms that change the physics of `env_ids` (None for all): masses, friction, gains.

They start from the model's own numbers every time, so that repeated draws do not accumulate.
"""

import numpy as np
import torch

from simulators.isaac.cfg import EventTermCfg, JointedEntityCfg, SceneEntityCfg
from simulators.isaac.checks import Range, check_range
from simulators.isaac.env import ManagerBasedRLEnv
from simulators.isaac.errors import ConfigError
from simulators.isaac.managers import ManagerTermBase
from simulators.isaac.mdp.sampling import Ids, Pair, all_ids, combine, sample


def randomize_rigid_body_mass(
    env: ManagerBasedRLEnv,
    env_ids: Ids,
    asset_cfg: SceneEntityCfg,
    mass_distribution_params: Pair,
    operation: str,
    distribution: str = "uniform",
    recompute_inertia: bool = True,
) -> None:
    """Change the masses of the chosen bodies.

    Args:
        mass_distribution_params: kg, or factors; see `sample`.
        operation: `add`, `scale` or `abs`.
        distribution: `uniform`, `log_uniform` or `gaussian`.
        recompute_inertia: Whether the inertia is scaled as the mass is.

    Raises:
        ConfigError: A drawn mass is not positive, or a word is unknown.
    """
    ids, bodies, model = all_ids(env, env_ids).numpy(), _bodies(env, asset_cfg), env.sim.model
    default = torch.from_numpy(model.body_mass[bodies])
    where = f"mass of {asset_cfg.name}"
    drawn = sample(env, mass_distribution_params, (len(ids), len(bodies)), distribution, where)
    mass = combine(default.expand_as(drawn), drawn, operation, where).numpy()
    if not (mass > 0.0).all():
        raise ConfigError(f"a mass of {mass.min():.4g} kg was drawn", where, "narrow mass_distribution_params")
    at = np.ix_(ids, bodies)
    env.sim.batch.expand("body_mass")[at] = mass
    if recompute_inertia:
        ratio = (mass / default.numpy())[..., None]
        env.sim.batch.expand("body_inertia")[at] = model.body_inertia[bodies] * ratio
    env.sim.batch.set_const(ids.astype(np.int32))
    env.sim.touch(torch.from_numpy(ids))


def randomize_rigid_body_material(
    env: ManagerBasedRLEnv,
    env_ids: Ids,
    static_friction_range: Range,
    dynamic_friction_range: Range,
    restitution_range: Range,
    num_buckets: int,
    asset_cfg: SceneEntityCfg,
    make_consistent: bool = False,
) -> None:
    """Draw the sliding friction of every geom of the chosen bodies.

    MuJoCo has one sliding coefficient, drawn from `static_friction_range`, and takes the larger one of two geoms in
    contact. `dynamic_friction_range`, `num_buckets` and `make_consistent` mean nothing here.

    Raises:
        ConfigError: `restitution_range` is not (0, 0): MuJoCo has no coefficient of restitution.
    """
    if tuple(restitution_range) != (0.0, 0.0):
        where = f"restitution_range of {asset_cfg.name}"
        raise ConfigError("MuJoCo has no coefficient of restitution", where, "give (0.0, 0.0)")
    check_range(static_friction_range, f"static_friction_range of {asset_cfg.name}", 0.0)
    ids, bodies = all_ids(env, env_ids).numpy(), _bodies(env, asset_cfg)
    geoms = np.flatnonzero(np.isin(env.sim.model.geom_bodyid, bodies))
    drawn = sample(env, static_friction_range, (len(ids), len(geoms)), "uniform", "static_friction_range")
    env.sim.batch.expand("geom_friction")[(*np.ix_(ids, geoms), 0)] = drawn.numpy()
    env.sim.touch(torch.from_numpy(ids))


class randomize_actuator_gains(ManagerTermBase):
    """Change stiffness and damping of the chosen joints; a parameter of None leaves its gain alone."""

    def __init__(self, cfg: EventTermCfg, env: ManagerBasedRLEnv) -> None:
        super().__init__(cfg, env)
        data = env.scene[cfg.params["asset_cfg"].name].data
        self._stiffness, self._damping = data.joint_stiffness.clone(), data.joint_damping.clone()

    def __call__(
        self,
        env: ManagerBasedRLEnv,
        env_ids: Ids,
        asset_cfg: JointedEntityCfg,
        stiffness_distribution_params: Pair | None = None,
        damping_distribution_params: Pair | None = None,
        operation: str = "abs",
        distribution: str = "uniform",
    ) -> None:
        """As `randomize_rigid_body_mass`; gains in N m/rad and N m s/rad, or N/m and N s/m, or factors."""
        asset, ids, joints = env.scene[asset_cfg.name], all_ids(env, env_ids), asset_cfg.joint_ids
        for name, params, defaults, write in (
            ("stiffness", stiffness_distribution_params, self._stiffness, asset.write_joint_stiffness_to_sim),
            ("damping", damping_distribution_params, self._damping, asset.write_joint_damping_to_sim),
        ):
            if params is None:
                continue
            default = defaults[ids][:, joints]
            drawn = sample(env, params, tuple(default.shape), distribution, f"{name} of {asset_cfg.name}")
            gains = combine(default, drawn, operation, f"{name} of {asset_cfg.name}")
            if not (gains >= 0.0).all():
                what = f"a {name} of {gains.min().item():.4g} was drawn"
                raise ConfigError(what, f"{name} of {asset_cfg.name}", f"narrow {name}_distribution_params")
            write(gains, joint_ids=joints, env_ids=ids)


def _bodies(env: ManagerBasedRLEnv, asset_cfg: SceneEntityCfg) -> np.ndarray:
    """Ids in the model of the chosen bodies."""
    asset = env.scene[asset_cfg.name]
    names = np.array(asset.body_names, dtype=object)[asset_cfg.body_ids]
    inner = [asset.inner_body(name) for name in names]
    return np.array([env.sim.model.body(name).id for name in inner])
