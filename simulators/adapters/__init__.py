"""Our environments under other people's interfaces: gymnasium's `Env` and `VectorEnv`, stable-baselines3's `VecEnv`.

Importing this package registers every task, so that `gymnasium.make("simulators.adapters:embodied/lift_cube-v0")` and
`gymnasium.make_vec` work; their keyword arguments go to `SingleEnv` and `VectorEnv`.
"""

import gymnasium

from simulators.make import task_names

NAMESPACE, VERSION = "embodied", 0


def register() -> None:
    """Register with gymnasium the tasks that it does not know yet."""
    for name in task_names():
        id = f"{NAMESPACE}/{name}-v{VERSION}"
        if id not in gymnasium.registry:
            gymnasium.register(
                id,
                entry_point="simulators.adapters.gym_env:SingleEnv",
                vector_entry_point="simulators.adapters.vector:VectorEnv",
                kwargs={"task": name},
            )


register()
