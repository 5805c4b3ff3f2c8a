"""Bodies of assets: robots from MJCF, primitives with mass and friction, planes; each as part of an MjSpec."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar, Literal

import mujoco

from robots.descriptions import description_path
from simulators.isaac.configclass import MISSING, Config, configclass
from simulators.isaac.errors import ConfigError, nearest
from simulators.scene import ROBOT_HITS, SCENE_HITS, table_scene

Kind = Literal["bodies", "joints"]


@configclass
class MjcfSpawnCfg:
    """Robot from MJCF. The scene's first robot contributes its whole file, later ones are attached to it.

    Attributes:
        robot: A description in `robots/descriptions`, at its table.
        path: Or an MJCF or URDF file. Bodies and joints without a name are called after their parent.
        build: Or a function that makes an MjSpec.
        root: The robot's root body in the file; by default the first one.
        rename: Regular expressions of the file's body and joint names to those used here, `\\1` being a group; the
            first that matches in full counts.
        rename_bodies, rename_joints: Those of one kind alone, looked at first.
    """

    robot: str | None = None
    path: str | None = None
    build: Callable[[], mujoco.MjSpec] | None = None
    root: str | None = None
    rename: dict[str, str] = field(default_factory=dict)
    rename_bodies: dict[str, str] = field(default_factory=dict)
    rename_joints: dict[str, str] = field(default_factory=dict)

    def load(self, with_table: bool) -> tuple[mujoco.MjSpec, str]:
        """The spec and the name of the root body in it.

        Raises:
            ConfigError: Not exactly one source is given, or it cannot be read, or it has no such body.
        """
        given = [name for name in ("robot", "path", "build") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigError(f"{len(given)} sources are given", "MjcfSpawnCfg", "give robot, path or build")
        if self.robot is not None:
            alone = mujoco.MjSpec.from_file(str(description_path(self.robot)))
            return table_scene(self.robot) if with_table else alone, self._root(alone)
        if self.path is not None:
            if not Path(self.path).is_file():
                raise ConfigError(f"no file is called {self.path!r}", "MjcfSpawnCfg.path", "name an MJCF file")
            try:
                spec = mujoco.MjSpec.from_file(self.path)
            except ValueError as error:
                raise ConfigError(f"MuJoCo cannot read it: {error}", self.path, "give a whole MJCF or URDF") from None
        else:
            assert self.build is not None
            spec = self.build()
        spec.compiler.fusestatic = False  # A URDF's root would be part of the world.
        root = self._root(spec)
        _name_all(spec)
        return spec, root or spec.worldbody.first_body().name

    def _root(self, spec: mujoco.MjSpec) -> str:
        body = spec.worldbody.first_body() if self.root is None else spec.body(self.root)
        if body is None and self.root is None:
            raise ConfigError("it has no body", "MjcfSpawnCfg", "give an MJCF or URDF with a robot")
        if body is None:
            raise ConfigError(f"no body is called {self.root!r}", "MjcfSpawnCfg.root", "name one of the MJCF's bodies")
        return str(body.name)

    def renamed(self, name: str, kind: Kind) -> str:
        """The name used here of a body or joint in the file."""
        for pattern, replacement in [*getattr(self, f"rename_{kind}").items(), *self.rename.items()]:
            if match := re.fullmatch(pattern, name):
                return match.expand(replacement)
        return name

    def check_renames(self, bodies: list[str], joints: list[str], where: str) -> None:
        """Raise `ConfigError` for expressions that match none of the file's names, and for names given twice."""
        for option, names in (("rename", bodies + joints), ("rename_bodies", bodies), ("rename_joints", joints)):
            for pattern in getattr(self, option):
                if not any(re.fullmatch(pattern, name) for name in names):
                    raise ConfigError(f"nothing is called {pattern!r}", f"{option} of {where}", nearest(pattern, names))
        kinds: tuple[tuple[Kind, list[str]], ...] = (("bodies", bodies), ("joints", joints))
        for kind, names in kinds:
            for name, count in Counter(self.renamed(name, kind) for name in names).items():
                if count > 1:
                    what = f"{count} {kind} are renamed to {name!r}"
                    raise ConfigError(what, f"rename of {where}", "give each a name of its own")


def _name_all(spec: mujoco.MjSpec) -> None:
    """Name what has no name: bodies `<parent>_<n>`, joints `<body>_joint<n>`, as long as those are free."""
    taken = {body.name for body in spec.bodies} | {joint.name for joint in spec.joints}
    for body in spec.bodies:
        for index, joint in enumerate(body.joints):
            joint.name = joint.name or _free(f"{body.name}_joint{index}", taken)
        for index, child in enumerate(body.bodies):
            child.name = child.name or _free(f"{body.name}_{index}", taken)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


@configclass
class RigidBodyPropertiesCfg:
    """`kinematic_enabled`: moved by writes only. `disable_gravity`: weightless."""

    kinematic_enabled: bool = False
    disable_gravity: bool = False


@configclass
class MassPropertiesCfg:
    """`mass`, kg, or `density`, kg/m³."""

    mass: float | None = None
    density: float | None = None


@configclass
class CollisionPropertiesCfg:
    """Whether the shape collides."""

    collision_enabled: bool = True


@configclass
class RigidBodyMaterialCfg:
    """Sliding friction; MuJoCo has one coefficient, so `static_friction` counts, and takes the larger one of a pair."""

    _ignored: ClassVar[tuple[str, ...]] = ("dynamic_friction",)
    static_friction: float = 0.5
    dynamic_friction: float = 0.5


@configclass
class PreviewSurfaceCfg:
    """Colour, 0 to 1, and `opacity`."""

    diffuse_color: tuple[float, float, float] = (0.18, 0.18, 0.18)
    opacity: float = 1.0


@configclass
class ShapeCfg:
    """One geom with its motion, collisions and looks. Contact softness is that of the table scene's cube."""

    rigid_props: RigidBodyPropertiesCfg | None = None
    mass_props: MassPropertiesCfg | None = None
    collision_props: CollisionPropertiesCfg | None = None
    physics_material: RigidBodyMaterialCfg | None = None
    visual_material: PreviewSurfaceCfg | None = None

    def geom(self) -> dict[str, Any]:
        """Type, size and pose of the geom, as MjSpec's `add_geom` takes them."""
        raise NotImplementedError

    def add_to(self, body: Any, name: str) -> None:
        """Add the geom to an MjSpec body."""
        mass, material = self.mass_props or MassPropertiesCfg(), self.physics_material
        colour = self.visual_material or PreviewSurfaceCfg()
        hits = self.collision_props is None or self.collision_props.collision_enabled
        options = self.geom()
        if mass.mass is not None and mass.density is not None:
            raise ConfigError("mass and density are both given", f"mass_props of {name}", "give one of them")
        if mass.mass is not None:
            options["mass"] = mass.mass
        elif mass.density is not None:
            options["density"] = mass.density
        body.add_geom(
            name=name,
            rgba=[*colour.diffuse_color, colour.opacity],
            contype=SCENE_HITS if hits else 0,
            conaffinity=ROBOT_HITS | SCENE_HITS if hits else 0,
            friction=[1.5 if material is None else material.static_friction, 0.02, 0.0001],
            condim=4,
            solref=[0.01, 1.0],
            **options,
        )


@configclass
class CuboidCfg(ShapeCfg):
    """A box of three edges, m."""

    size: tuple[float, float, float] = MISSING

    def geom(self) -> dict[str, Any]:
        return {"type": mujoco.mjtGeom.mjGEOM_BOX, "size": [0.5 * edge for edge in self.size]}


@configclass
class SphereCfg(ShapeCfg):
    """A sphere; `radius` in m."""

    radius: float = MISSING

    def geom(self) -> dict[str, Any]:
        return {"type": mujoco.mjtGeom.mjGEOM_SPHERE, "size": [self.radius, 0, 0]}


_ALONG = {"X": [1.0, 0.0, 1.0, 0.0], "Y": [1.0, -1.0, 0.0, 0.0], "Z": [1.0, 0.0, 0.0, 0.0]}
"""Quaternions, wxyz, that turn the z axis."""


@configclass
class CylinderCfg(ShapeCfg):
    """A cylinder; `radius` and `height` in m, along `axis` X, Y or Z."""

    radius: float = MISSING
    height: float = MISSING
    axis: str = "Z"
    _type: ClassVar[Any] = mujoco.mjtGeom.mjGEOM_CYLINDER

    def geom(self) -> dict[str, Any]:
        if self.axis not in _ALONG:
            raise ConfigError(f"axis {self.axis!r} is unknown", type(self).__name__, "choose X, Y or Z")
        return {"type": self._type, "size": [self.radius, 0.5 * self.height, 0], "quat": _ALONG[self.axis]}


@configclass
class CapsuleCfg(CylinderCfg):
    """A capsule; `height` without the caps."""

    _type: ClassVar[Any] = mujoco.mjtGeom.mjGEOM_CAPSULE


@configclass
class GroundPlaneCfg(ShapeCfg):
    """An endless plane, z up."""

    def geom(self) -> dict[str, Any]:
        return {"type": mujoco.mjtGeom.mjGEOM_PLANE, "size": [0, 0, 4]}


@configclass
class LightCfg(Config):
    """Accepted, so that scenes carry over; the scene keeps its own lights."""

    _ignored: ClassVar[tuple[str, ...]] = ("intensity", "color")
    intensity: float = 1.0
    color: tuple[float, float, float] = (1.0, 1.0, 1.0)


@configclass
class DomeLightCfg(LightCfg):
    """See `LightCfg`."""


@configclass
class DistantLightCfg(LightCfg):
    """See `LightCfg`."""
