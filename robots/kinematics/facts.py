"""Gripper, workspace and spawn region of a robot, read from its description."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError
from robots.kinematics.chain import numeric, read_description


@dataclass(frozen=True)
class Facts:
    """Constants of one arm with G gripper joints.

    Attributes:
        gripper: Names of the gripper's joints, driven alike.
        gripper_open, gripper_closed: [G] joint positions, m or rad.
        gripper_width: [2] m between the pads, closed and open.
        workspace: [2, 3] m, lowest and highest position of the end effector's target, in the base frame. At the
            lowest the fingers just clear the table.
        spawn: [2, 2] m, lowest and highest x, y at which tasks put objects, in the base frame.
        linkage: Names of joints that follow the gripper's by equalities; empty where it has none.
        linkage_open, linkage_closed: [L] their positions, m or rad.
    """

    gripper: tuple[str, ...]
    gripper_open: NDArray[np.float64]
    gripper_closed: NDArray[np.float64]
    gripper_width: NDArray[np.float64]
    workspace: NDArray[np.float64]
    spawn: NDArray[np.float64]
    linkage: tuple[str, ...]
    linkage_open: NDArray[np.float64]
    linkage_closed: NDArray[np.float64]


def load_facts(path: Path) -> Facts:
    """Read the `custom` element of a description: text `gripper`, perhaps `linkage`, and numerics named as in `Facts`.

    Raises:
        ConfigError: The file is no MJCF, or lacks one of them.
    """
    where = path.name
    root = read_description(path)
    texts = {text.get("name"): text.get("data", "") for text in root.iterfind("custom/text")}
    joints = tuple(texts.get("gripper", "").split())
    if not joints:
        raise ConfigError("the description has no text 'gripper'", where, "add it with the names of the joints")
    linkage = tuple(texts.get("linkage", "").split())
    ends = [
        numeric(root, f"linkage_{end}", len(linkage), where) if linkage else np.zeros(0) for end in ("open", "closed")
    ]
    return Facts(
        joints,
        numeric(root, "gripper_open", len(joints), where),
        numeric(root, "gripper_closed", len(joints), where),
        numeric(root, "gripper_width", 2, where),
        numeric(root, "workspace", 6, where).reshape(2, 3),
        numeric(root, "spawn", 4, where).reshape(2, 2),
        linkage,
        *ends,
    )
