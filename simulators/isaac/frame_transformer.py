"""Frames on bodies, such as a gripper's tip, as MuJoCo sites."""

from typing import Any, ClassVar

import mujoco
import torch

from simulators.isaac.asset import to_wxyz
from simulators.isaac.body_state import ordered, single
from simulators.isaac.configclass import MISSING, configclass
from simulators.isaac.math import quat_mul, subtract_frame_transforms
from simulators.isaac.quaternion import Order
from simulators.isaac.simulation import Simulation, fresh


@configclass
class OffsetCfg:
    """m, and a quaternion in the environment's order, None for no rotation; in the body's frame."""

    pos: tuple[float, float, float] = (0.0, 0.0, 0.0)
    rot: tuple[float, float, float, float] | None = None


class FrameTransformerData:
    """Poses of T target frames and of the source frame; float32, m, quaternions in the environment's order.

    Attributes:
        target_frame_names: T names.
    """

    def __init__(
        self, sim: Simulation, sites: list[int], names: list[str], offsets: torch.Tensor, order: Order
    ) -> None:
        self._sim, self._order, self._cache = sim, order, dict[str, Any]()
        self._sites, self._offsets = sites, offsets
        self._bodies = sim.model.site_bodyid[sites].tolist()
        self._pos, self._quat = sim.array("site_xpos"), sim.array("xquat")
        first = sites[1]
        self._targets = slice(first, first + len(sites) - 1)
        self.target_frame_names = names

    @fresh
    def source_pos_w(self) -> torch.Tensor:
        """[N, 3]"""
        return single(self._pos[:, self._sites[0]])

    @fresh
    def source_quat_w(self) -> torch.Tensor:
        """[N, 4]"""
        return quat_mul(ordered(self._quat[:, self._bodies[0]], self._order), self._offsets[0], self._order)

    @fresh
    def target_pos_w(self) -> torch.Tensor:
        """[N, T, 3]"""
        return single(self._pos[:, self._targets])

    @fresh
    def target_quat_w(self) -> torch.Tensor:
        """[N, T, 4]"""
        return quat_mul(ordered(self._quat[:, self._bodies[1:]], self._order), self._offsets[1:], self._order)

    @fresh
    def _in_source(self) -> tuple[torch.Tensor, torch.Tensor]:
        source = self.source_pos_w[:, None], self.source_quat_w[:, None]
        return subtract_frame_transforms(*source, self.target_pos_w, self.target_quat_w, self._order)

    target_pos_source = property(lambda self: self._in_source[0])
    target_quat_source = property(lambda self: self._in_source[1])


class FrameTransformer:
    """Sensor of frames that are fixed to bodies."""

    data: FrameTransformerData

    def __init__(self, cfg: "FrameTransformerCfg") -> None:
        self.cfg = cfg

    def _build(self, spec: mujoco.MjSpec, name: str, bodies: list[str], order: Order) -> None:
        """Add sites to `bodies`, the source's first."""
        self._name, self._bodies = name, bodies
        offsets = [self.cfg.source_frame_offset, *(frame.offset for frame in self.cfg.target_frames)]
        for index, (body, offset) in enumerate(zip(bodies, offsets, strict=True)):
            site = spec.body(body).add_site(name=f"{name}/{index}", pos=list(offset.pos), group=5)
            if offset.rot is not None:
                site.quat = to_wxyz(torch.tensor([offset.rot]), order)[0].tolist()

    def _bind(self, sim: Simulation, order: Order) -> None:
        sites = [sim.model.site(f"{self._name}/{index}").id for index in range(len(self._bodies))]
        offsets = ordered(sim.model.site_quat[sites], order)
        names = [frame.name or frame.prim_path.rsplit("/", 1)[-1] for frame in self.cfg.target_frames]
        self.data = FrameTransformerData(sim, sites, names, offsets, order)

    def update(self, dt: float) -> None:
        """Do nothing: `data` is computed on access."""

    def reset(self, env_ids: Any = None) -> None:
        """Do nothing: there is no state."""


@configclass
class FrameTransformerCfg:
    """Poses of frames in the world and in a source frame.

    Attributes:
        prim_path: Body of the source frame, `{ENV_REGEX_NS}/Robot/body`; without body, the root.
        source_frame_offset: Of the source in its body.
        target_frames: Bodies, names and offsets.
    """

    @configclass
    class FrameCfg:
        prim_path: str = MISSING
        name: str | None = None
        offset: OffsetCfg = OffsetCfg()

    _ignored: ClassVar[tuple[str, ...]] = ("debug_vis", "visualizer_cfg")
    class_type: Any = FrameTransformer
    prim_path: str = MISSING
    source_frame_offset: OffsetCfg = OffsetCfg()
    target_frames: list[FrameCfg] = MISSING
    debug_vis: bool = False
    visualizer_cfg: Any = None
