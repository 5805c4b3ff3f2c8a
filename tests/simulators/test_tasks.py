from pathlib import Path

import numpy as np
import pytest
import yaml

from embodied.data import Outcome
from embodied.errors import ConfigError
from simulators.make import make_env, make_task, task_names
from simulators.one_agent import OneAgentEnv
from simulators.tabletop import decode_text

FOLDER = Path(__file__).parents[2] / "configs/task"
CONFIGS = {path.stem: yaml.safe_load(path.read_text()) for path in FOLDER.glob("*.yaml")}
# Other bodies than ours have configurations too.
TASKS = sorted(name for name, config in CONFIGS.items() if config["name"] in task_names())
GRASPS = ("pick_place", "stack")


def environments(config, count, **options):
    """Environments of a configuration, without autoreset."""
    options = {**CONFIGS[config], **options}
    env = make_env(options.pop("name"), count, **options)
    env.autoreset = False
    return env


def expert_episodes(env, seeds, noise=0.0, discount=1.0, change=lambda actions: actions):
    """Outcomes, discounted sums of rewards and lengths of one episode per environment."""
    OneAgentEnv(env).reset(seeds)
    rng = np.random.default_rng(0)
    outcomes, returns, lengths = (np.zeros(len(seeds)) for _ in range(3))
    for step in range(env.spec.episode_steps):
        scale = noise * env.action_limit
        actions = OneAgentEnv(env).expert() + (rng.normal(size=(len(seeds), len(scale))) * scale).astype(np.float32)
        result = OneAgentEnv(env).step(change(actions))
        returns += discount**step * result.rewards
        outcomes[result.ended], lengths[result.ended] = result.outcomes[result.ended], step + 1
    return outcomes, returns, lengths


def test_every_task_is_configured_and_found_by_module_name():
    assert {CONFIGS[name]["name"] for name in TASKS} == set(task_names())
    with pytest.raises(ConfigError, match="did you mean lift_cube"):
        make_task("lift_cub")
    with pytest.raises(ConfigError, match="did you mean reward"):
        make_task("reach", rewards="dense")
    with pytest.raises(ConfigError, match="did you mean dense"):
        make_task("reach", reward="dens")


def test_a_task_of_ones_own_that_fails_is_one_line(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_tasks").mkdir()
    scene = "import mujoco\ndef make(robot='panda'):\n    return mujoco.MjSpec.from_string('<mujoco><a/></mujoco>')\n"
    texts = {"broken": "1 +", "empty": "", "scene": scene, "raises": "1 / 0"}
    for name, text in texts.items():
        (tmp_path / "own_tasks" / f"{name}.py").write_text(text)
    for name, said in (
        ("own_tasks.none", "no module own_tasks.none"),
        ("own_tasks.broken", "SyntaxError"),
        ("own_tasks.raises", "ZeroDivisionError"),
        ("own_tasks.empty", "no function make"),
        ("own_tasks.scene", "cannot be built: XML Error"),
    ):
        with pytest.raises(ConfigError, match=said) as caught:
            make_task(name)
        assert "\n" not in caught.value.line()
    with pytest.raises(ConfigError, match=r"no robot is called 'own_tasks\.none'"):
        make_task("lift_cube", robot="own_tasks.none")
    (tmp_path / "arm.xml").write_text("<mujoco")
    with pytest.raises(ConfigError, match=r"cannot read a robot description.*arm\.xml"):
        make_task("lift_cube", robot=str(tmp_path / "arm.xml"))


@pytest.mark.parametrize("config", TASKS)
def test_the_expert_succeeds(config):
    outcomes, returns, lengths = expert_episodes(environments(config, 200), np.arange(200))
    done = outcomes == Outcome.SUCCESS
    assert done.mean() >= 0.95
    assert (
        returns[done].min() > 0 and lengths[done].mean() < 0.7 * make_task(CONFIGS[config]["name"]).spec.episode_steps
    )


@pytest.mark.parametrize("config", TASKS)
def test_the_sparse_reward_is_one_for_success(config):
    outcomes, returns, _ = expert_episodes(environments(config, 10, reward="sparse"), np.arange(10), noise=0.2)
    assert np.array_equal(returns, (outcomes == Outcome.SUCCESS).astype(float))


@pytest.mark.parametrize("config", TASKS)
def test_the_dense_reward_prefers_success(config):
    _, returns, _ = expert_episodes(environments(config, 10), np.arange(10))
    _, noisy, _ = expert_episodes(environments(config, 10), np.arange(10), noise=5.0)
    assert (returns > noisy).all()


@pytest.mark.parametrize("config", TASKS)
def test_a_seed_is_one_episode_in_any_batch(config):
    small, large = environments(config, 2), environments(config, 5)
    OneAgentEnv(small).reset([5, 17])
    OneAgentEnv(large).reset([0, 17, 3, 5, 4])
    for _ in range(40):
        OneAgentEnv(small).step(OneAgentEnv(small).expert())
        OneAgentEnv(large).step(OneAgentEnv(large).expert())
    assert np.array_equal(small.batch.state, large.batch.state[[3, 1]])


@pytest.mark.parametrize("config", sorted({CONFIGS[name]["name"] for name in TASKS} - {"reach_pair"}))
def test_every_phrasing_occurs(config):
    task = environments(config, 1).task
    sentences = task.sentences()
    assert len(task.instructions) >= 3 and len(set(sentences)) == len(sentences)
    assert set(task.initial_states(np.arange(600)).drawn["sentence"]) == set(range(len(sentences)))


def test_the_instruction_names_the_chosen_object():
    for config, words in (("reach_color", ("red", "green", "blue")), ("pick_place", ("cube", "cylinder", "ball"))):
        seen, starts = OneAgentEnv(environments(config, 30)).reset(np.arange(30))
        named = starts.drawn["named"].reshape(30, -1)[:, 0]
        for text, which, goal in zip(seen.streams["instruction"], named, seen.streams["goal"], strict=True):
            assert [word in decode_text(text) for word in words] == list(np.arange(3) == which)
            assert goal[:3].argmax() == which and goal.sum() == len(goal) / 3


@pytest.mark.parametrize(("config", "outcome"), [("reach_color", Outcome.FAILURE), ("pick_place", Outcome.TIME_LIMIT)])
def test_success_at_another_instructions_goal_does_not_count(config, outcome):
    meant, misled = environments(config, 20), environments(config, 20)
    OneAgentEnv(meant).reset(np.arange(20))
    OneAgentEnv(misled).reset(np.arange(20))
    choice = misled.batch.bind("userdata")[:, 1]
    # For pick_place, half get another object and half another plate.
    choice[:] = (choice + 1) % 3 if config == "reach_color" else (choice + np.where(np.arange(20) < 10, 3, 1)) % 9
    misled.restore(misled.snapshot())
    outcomes, reached = np.zeros(20), np.zeros(20)
    for _ in range(meant.spec.episode_steps):
        actions = OneAgentEnv(misled).expert()
        misled_result, result = OneAgentEnv(misled).step(actions), OneAgentEnv(meant).step(actions)
        reached[misled_result.ended] = misled_result.outcomes[misled_result.ended]
        outcomes[result.ended] = result.outcomes[result.ended]
    assert (reached == Outcome.SUCCESS).all() and (outcomes == outcome).all()


@pytest.mark.parametrize("config", GRASPS)
def test_a_held_object_is_not_placed_and_pays_less(config):
    closed = np.zeros(10, bool)

    def hold(actions):
        closed[:] |= actions[:, -1] < 0
        actions[closed, -1] = -1.0
        return actions

    outcomes, held, _ = expert_episodes(environments(config, 10), np.arange(10), discount=0.97, change=hold)
    _, placed, _ = expert_episodes(environments(config, 10), np.arange(10), discount=0.97)
    assert (outcomes == Outcome.TIME_LIMIT).all() and (held < placed).all()


@pytest.mark.parametrize("control", ["ee_target", "ee_pose_delta", "joint_delta", "joint_target"])
def test_experts_work_with_other_controls(control):
    for config in ("reach_color", "stack", "push_to_target", "press_button", "open_drawer"):
        outcomes, _, _ = expert_episodes(environments(config, 10, control=control), np.arange(10))
        assert (outcomes == Outcome.SUCCESS).all(), config


@pytest.mark.parametrize("config", ["reach_color", "stack", "press_button"])
def test_experts_work_with_a_smaller_robot(config):
    outcomes, _, _ = expert_episodes(environments(config, 20, robot="so101"), np.arange(20))
    assert (outcomes == Outcome.SUCCESS).mean() >= 0.9


def test_objects_start_apart():
    seeds = np.arange(2000)
    places = {name: make_task(name).initial_states(seeds).drawn["cubes_xy"] for name in ("reach_color", "stack")}
    pick = make_task("pick_place").initial_states(seeds).drawn
    places["pick_place"] = np.concatenate([pick["objects_xy"], pick["mocap_pos"][:, :, :2]], axis=1)
    for name, xy in places.items():
        apart = np.linalg.norm(xy[:, :, None] - xy[:, None], axis=3)
        apart[:, np.arange(xy.shape[1]), np.arange(xy.shape[1])] = np.inf
        assert apart.min() >= 0.0999, name
        assert xy[:, 0].std(axis=0).min() > 0.05, name


def test_a_closed_gripper_pushes():
    env = environments("push_to_target", 4)
    seen, _ = OneAgentEnv(env).reset(np.arange(4))
    result = OneAgentEnv(env).step(OneAgentEnv(env).expert())
    assert np.array_equal(result.applied[:, env.task.arm.gripper_ctrl], np.zeros((4, 2)))
    assert np.allclose(env.batch.bind("qpos")[:, env.task.arm.gripper_qpos], 0.0, atol=1e-3)
    assert np.linalg.norm(seen.streams["puck_to_target"], axis=1).min() > 0.13


def test_the_target_stays_on_its_leash():
    env = make_env("lift_cube", 4)
    OneAgentEnv(env).reset()
    rng = np.random.default_rng(0)
    for _ in range(40):
        before = env.observe()["robot"].streams["ee_pos"]
        actions = (rng.choice([-1.0, 1.0], (4, 4)) * env.action_limit).astype(np.float32)
        rows = OneAgentEnv(env).step(actions)
        going = ~np.isin(np.arange(4), rows.ended)
        target = rows.observation.streams["ee_pos"] + rows.observation.streams["ee_target_offset"]
        assert (np.linalg.norm(target - before, axis=1)[going] <= 0.08 + 1e-5).all()
        low, high = env.task.arm.chain.lower, env.task.arm.chain.upper
        assert ((rows.applied[:, :7] >= low) & (rows.applied[:, :7] <= high)).all()


def test_a_button_springs_back_and_a_drawer_stays_where_it_was_pulled():
    for config, limit, rest in (("press_button", 0.012, 0.0), ("open_drawer", 0.14, 0.14)):
        env = environments(config, 2)
        OneAgentEnv(env).reset([0, 1])
        place = env.batch.bind("qpos")[:, -1]
        start = env.batch.bind("mocap_pos").copy()
        assert np.abs(place).max() < 1e-6, "a part hangs where it starts"
        snapshot = env.snapshot()
        snapshot["state"][:, env.task.model.nq] = limit  # the last of qpos: time is the first number of a state row
        env.restore(snapshot)
        for _ in range(15):
            OneAgentEnv(env).step(np.zeros((2, len(env.action_limit)), np.float32))
        assert np.abs(place - rest).max() < 1e-3, config
        assert np.array_equal(env.batch.bind("mocap_pos"), start)


FALLING = {
    "lift_cube": "cube",
    "reach_color": "blue",
    "stack": "green",
    "pick_place": "blue ball",
    "push_to_target": "puck",
}


@pytest.mark.parametrize("config", FALLING)
def test_an_object_off_the_table_is_a_failure(config):
    env = environments(config, 2)
    OneAgentEnv(env).reset([0, 1])
    snapshot = env.snapshot([1])
    at = env.task.model.joint(FALLING[config]).qposadr[0] + 1  # time is the first number of a state row
    snapshot["state"][0, at : at + 3] = [1.5, 0.0, -0.04]
    env.restore(snapshot, [1])
    for _ in range(3):
        result = OneAgentEnv(env).step(np.zeros((2, len(env.action_limit)), np.float32))
        if len(result.ended):
            break
    assert result.outcomes.tolist() == [Outcome.RUNNING, Outcome.FAILURE]
    assert result.terminated.tolist() == [False, True]
