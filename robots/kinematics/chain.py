"""A serial chain of hinges read from a robot's MJCF description, without MuJoCo."""

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from embodied.errors import ConfigError
from robots.kinematics.rotations import quat_to_matrix

Attributes = dict[str, str]


@dataclass(frozen=True)
class Chain:
    """N hinges between the base frame and a tip.

    Attributes:
        joints: Names, from the base outwards.
        offset_pos: [N, 3] m, each joint's frame in the frame that the joint before it moves (the base for the first).
        offset_rot: [N, 3, 3], likewise.
        axis: [N, 3] unit vectors in the joint's frame.
        tip_pos: [3] m, the tip in the frame the last joint moves.
        tip_rot: [3, 3], likewise.
        lower, upper: [N] rad, position limits.
        velocity_limit: [N] rad/s.
        home: [N] rad, the posture that redundancy is resolved towards.
    """

    joints: tuple[str, ...]
    offset_pos: NDArray[np.float64]
    offset_rot: NDArray[np.float64]
    axis: NDArray[np.float64]
    tip_pos: NDArray[np.float64]
    tip_rot: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    velocity_limit: NDArray[np.float64]
    home: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.joints)


def load_chain(path: Path, tip: str = "ee") -> Chain:
    """Read the chain that ends at site `tip`.

    Understood are the forms our descriptions use: hinges at their body's origin with a range in radians, orientations
    as quaternions, joint defaults by class, and the `custom` numerics `home` and `velocity_limit`.

    Raises:
        ConfigError: The file is no MJCF, has no such site, or uses another form.
    """
    where = str(path.name)
    root = read_description(path)
    world = root.find("worldbody")
    branch = _branch(world, tip) if world is not None else None
    compiler = root.find("compiler")
    if branch is None:
        raise ConfigError(f"no site is called {tip!r}", where, "name a site of the description")
    if compiler is None or compiler.get("angle") != "radian":
        raise ConfigError("angles are not in radians", where, 'write <compiler angle="radian"/>')

    defaults = _joint_defaults(root)
    names, positions, rotations, axes, ranges = [], [], [], [], []
    pos, rot, childclass = np.zeros(3), np.eye(3), "main"
    for element in branch[1:]:
        step_pos, step_rot = _frame(element, where)
        pos, rot = pos + rot @ step_pos, rot @ step_rot
        childclass = element.get("childclass", childclass)
        for joint in element.findall("joint"):
            values = {**defaults.get(joint.get("class", childclass), {}), **joint.attrib}
            name = values.get("name", "")
            if values.get("type", "hinge") != "hinge" or "range" not in values or "pos" in values:
                raise ConfigError(
                    f"joint {name!r} is not a plain hinge with a range", where, "place it at its body's origin"
                )
            axis = _numbers(values.get("axis", "0 0 1"), 3, where)
            names.append(name)
            positions.append(pos)
            rotations.append(rot)
            axes.append(axis / np.linalg.norm(axis))
            ranges.append(_numbers(values["range"], 2, where))
            pos, rot = np.zeros(3), np.eye(3)
    if not names:
        raise ConfigError(f"no joint moves site {tip!r}", where, "name a site of the arm")
    lower, upper = np.array(ranges).T
    return Chain(
        tuple(names),
        np.array(positions),
        np.array(rotations),
        np.array(axes),
        pos,
        rot,
        lower.copy(),
        upper.copy(),
        numeric(root, "velocity_limit", len(names), where),
        numeric(root, "home", len(names), where),
    )


def _branch(element: ElementTree.Element, tip: str) -> list[ElementTree.Element] | None:
    """The elements from `element` down to the site, or None."""
    for child in element:
        if child.tag == "site" and child.get("name") == tip:
            return [element, child]
        below = _branch(child, tip) if child.tag == "body" else None
        if below is not None:
            return [element, *below]
    return None


def _frame(element: ElementTree.Element, where: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Position and rotation of a body or site in its parent."""
    for form in ("axisangle", "xyaxes", "zaxis", "euler"):
        if form in element.attrib:
            raise ConfigError(f"{element.get('name')!r} is oriented by {form}", where, "write a quaternion")
    quat = _numbers(element.get("quat", "1 0 0 0"), 4, where)
    return _numbers(element.get("pos", "0 0 0"), 3, where), quat_to_matrix(quat)


def _joint_defaults(root: ElementTree.Element) -> dict[str, Attributes]:
    """Class name to the joint attributes it gives, those of its parents included."""
    found: dict[str, Attributes] = {}

    def visit(default: ElementTree.Element, inherited: Attributes) -> None:
        joint = default.find("joint")
        values = {**inherited, **(joint.attrib if joint is not None else {})}
        found[default.get("class", "main")] = values
        for child in default.findall("default"):
            visit(child, values)

    for top in root.findall("default"):
        visit(top, {})
    return found


def read_description(path: Path) -> ElementTree.Element:
    """Root element of a description.

    Raises:
        ConfigError: The file is missing or no MJCF.
    """
    try:
        return ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise ConfigError(f"cannot read a robot description: {error}", path.name, "give an MJCF file") from None


def numeric(root: ElementTree.Element, name: str, count: int, where: str) -> NDArray[np.float64]:
    """The `count` numbers of a description's custom numeric.

    Raises:
        ConfigError: It is missing or has another length.
    """
    for numeric in root.iterfind("custom/numeric"):
        if numeric.get("name") == name:
            return _numbers(numeric.get("data", ""), count, where)
    raise ConfigError(f"the description has no numeric {name!r}", where, f"add it with {count} numbers")


def _numbers(text: str, count: int, where: str) -> NDArray[np.float64]:
    try:
        values = np.array([float(word) for word in text.split()])
    except ValueError:
        values = np.zeros(0)
    if len(values) != count or not np.isfinite(values).all():
        raise ConfigError(f"expected {count} numbers, found {text!r}", where, "correct the description")
    return values
