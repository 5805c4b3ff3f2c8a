"""A meshed arm and grippers as another project's files, written by a test."""

import itertools
from pathlib import Path

import numpy as np

LINKS = (  # position in the parent, axis, mesh, force limit
    ("0 0 0.16", "0 0 1", "hub", 150),
    ("0 0.14 0", "0 1 0", "upper", 150),
    ("0 -0.13 0.42", "0 1 0", "fore", 150),
    ("0 0 0.39", "0 1 0", "hub", 30),
    ("0 0.13 0", "0 0 1", "hub", 30),
    ("0 0 0.10", "0 1 0", "hub", 30),
)
BOXES = {"hub": (0.05, 0.05, 0.05), "upper": (0.04, 0.04, 0.2), "fore": (0.035, 0.035, 0.18)}


def write_box(path: Path, half: tuple[float, float, float], bottom: float = 0.0) -> None:
    """Write a box as an OBJ file, its lower face at z = `bottom` - half the height."""
    corners = np.array(list(itertools.product((-1, 1), repeat=3))) * half + [0, 0, bottom]
    faces = ("1 2 4 3", "5 7 8 6", "1 5 6 2", "3 4 8 7", "1 3 7 5", "2 6 8 4")
    path.write_text("".join([*(f"v {x} {y} {z}\n" for x, y, z in corners), *(f"f {face}\n" for face in faces)]))


def write_arm(folder: Path, joint: str = "") -> Path:
    """Six hinges like a UR's, with meshes that draw and meshes that collide; `joint` is added to the third."""
    (folder / "assets").mkdir(parents=True)
    for name, half in BOXES.items():
        write_box(folder / "assets" / f"{name}.obj", half, half[2] if half[2] > 0.1 else 0.0)
    bodies, actuators = "", ""
    for k, (pos, axis, mesh, force) in enumerate(LINKS):
        more = joint if k == 2 else ""
        bodies += (
            f'<body name="link{k}" pos="{pos}"><joint name="j{k}" axis="{axis}" range="-6.28 6.28" {more}/>'
            f'<geom mesh="{mesh}" type="mesh" contype="0" conaffinity="0" group="2" mass="0"/>'
            f'<geom mesh="{mesh}" type="mesh" group="3" density="800"/>'
        )
        actuators += f'<general name="a{k}" joint="j{k}" gainprm="2000" biastype="affine" biasprm="0 -2000 -400" forcerange="-{force} {force}"/>'  # noqa: E501
    meshes = "".join(f'<mesh name="{name}" file="{name}.obj"/>' for name in BOXES)
    path = folder / "arm.xml"
    path.write_text(
        '<mujoco model="arm"><compiler angle="radian" meshdir="assets" autolimits="true"/>'
        f"<asset>{meshes}</asset>"
        '<worldbody><geom type="plane" size="1 1 1"/><light pos="0 0 2"/><body name="base">'
        f'<geom type="cylinder" size="0.06 0.05" pos="0 0 0.05"/>{bodies}'
        '<site name="attachment_site" pos="0 0.05 0" quat="-1 1 0 0"/>'
        f"{'</body>' * len(LINKS)}</body></worldbody><actuator>{actuators}</actuator></mujoco>"
    )
    return path


def write_gripper(folder: Path) -> Path:
    """Two fingers on slides: one driven, the other tied to it by an equality; meshes throughout, no site."""
    (folder / "parts").mkdir(parents=True)
    write_box(folder / "parts/palm.obj", (0.03, 0.06, 0.03), 0.03)
    write_box(folder / "parts/finger.obj", (0.01, 0.008, 0.03), 0.03)
    fingers = "".join(
        f'<body name="{side}" pos="0 {sign * 0.008} 0.06"><joint name="{side}" type="slide" axis="0 {sign} 0" '
        'range="0 0.04"/><geom mesh="finger" type="mesh" density="500"/></body>'
        for side, sign in (("left", 1), ("right", -1))
    )
    path = folder / "hand.xml"
    path.write_text(
        '<mujoco model="hand"><compiler meshdir="parts" autolimits="true"/><option cone="elliptic"/>'
        '<asset><mesh name="palm" file="palm.obj"/><mesh name="finger" file="finger.obj"/></asset>'
        f'<worldbody><body name="palm"><geom mesh="palm" type="mesh" density="300"/>{fingers}</body></worldbody>'
        '<equality><joint joint1="right" joint2="left"/></equality>'
        '<actuator><position name="grip" joint="left" kp="500" forcerange="-60 60"/></actuator></mujoco>'
    )
    return path


def write_urdf(folder: Path) -> Path:
    """The same arm as a URDF whose meshes are named by package, with both fingers driven, and no actuator."""
    meshes = folder / "lab_arm/meshes"
    meshes.mkdir(parents=True)
    for name, half in BOXES.items():
        write_box(meshes / f"{name}.obj", half, half[2] if half[2] > 0.1 else 0.0)
    write_box(meshes / "finger.obj", (0.01, 0.008, 0.03), 0.03)
    inertial = '<inertial><mass value="1"/><inertia ixx=".01" iyy=".01" izz=".01" ixy="0" ixz="0" iyz="0"/></inertial>'
    links = f'<link name="base">{inertial}</link>'
    parent = "base"
    for k, (pos, axis, mesh, force) in enumerate(LINKS):
        shape = f'<geometry><mesh filename="package://lab_arm/meshes/{mesh}.obj"/></geometry>'
        links += f'<link name="link{k}">{inertial}<visual>{shape}</visual><collision>{shape}</collision></link>'
        links += (
            f'<joint name="j{k}" type="revolute"><parent link="{parent}"/><child link="link{k}"/><origin xyz="{pos}"/>'
            f'<axis xyz="{axis}"/><limit lower="-3.1" upper="3.1" effort="{force}" velocity="2.5"/></joint>'
        )
        parent = f"link{k}"
    shape = '<geometry><mesh filename="package://lab_arm/meshes/finger.obj"/></geometry>'
    light = inertial.replace('"1"', '"0.05"').replace(".01", ".00005")
    for side, sign in (("left", 1), ("right", -1)):
        links += (
            f'<link name="{side}">{light}<collision>{shape}</collision></link><joint name="{side}" type="prismatic">'
            f'<parent link="{parent}"/><child link="{side}"/><origin xyz="{sign * 0.008} 0.05 0" rpy="-1.570796 0 0"/>'
            f'<axis xyz="{sign} 0 0"/><limit lower="0" upper="0.04" effort="40" velocity="0.2"/></joint>'
        )
    path = folder / "lab_arm/lab_arm.urdf"
    path.write_text(f'<robot name="lab_arm">{links}</robot>')
    return path
