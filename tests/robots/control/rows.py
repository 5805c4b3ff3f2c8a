"""Control one row at a time, as on a robot without MuJoCo and numba.

Run as `python -m tests.robots.control.rows FOLDER`.

Each file `<robot>:<prefix>:<control>.npz` of the folder has arrays `q`, `ee_pos`, `memory` and `actions` of B rows. It
is replaced by one with `targets` and the `memory` after them.
"""

import sys
from pathlib import Path

import numpy as np


def main() -> None:
    for name in ("mujoco", "numba", "torch"):
        sys.modules[name] = None  # type: ignore[assignment]
    from robots.control import make_control
    from robots.kinematics.arm import ArmKinematics, ArmState

    for path in sorted(Path(sys.argv[1]).glob("*.npz")):
        robot, prefix, kind = path.stem.split(":")
        control = make_control(kind, ArmKinematics(robot, prefix))
        with np.load(path) as file:
            rows = dict(file)
        targets, memory = [], rows["memory"]
        for row in range(len(memory)):
            one = slice(row, row + 1)
            state = ArmState(rows["q"][one], rows["ee_pos"][one])
            targets.append(control.targets(state, memory[one], rows["actions"][one])[0])
        np.savez(path, targets=np.array(targets), memory=memory)


if __name__ == "__main__":
    main()
