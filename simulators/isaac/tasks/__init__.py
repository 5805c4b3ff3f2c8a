"""Reference tasks of Isaac Lab; importing this registers them with gymnasium."""

from simulators.isaac.registry import register

_ROOM = "simulators.isaac.tasks"
for _name, _task, _runner in (
    ("Embodied-Reach-Franka", "reach:FrankaReachEnvCfg", "reach:FrankaReachPPORunnerCfg"),
    ("Embodied-Lift-Cube-Franka", "lift:FrankaCubeLiftEnvCfg", "lift:LiftCubePPORunnerCfg"),
):
    register(f"{_name}-v0", f"{_ROOM}.{_task}", f"{_ROOM}.{_runner}")
    register(f"{_name}-Play-v0", f"{_ROOM}.{_task}_PLAY", f"{_ROOM}.{_runner}")
