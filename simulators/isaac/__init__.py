"""Isaac Lab's environment API on batched MuJoCo: change the import from `isaaclab` to `simulators.isaac`.

The modules `envs`, `managers`, `scene`, `assets`, `actuators`, `sensors`, `sim` and `utils` hold Isaac Lab's names at
its places. Everything runs on the CPU; set `torch.set_num_threads(1)` where torch shares the cores with the physics.
"""
