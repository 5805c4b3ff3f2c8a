"""Settings are checked before anything starts, and a resumed run keeps what it must."""

from pathlib import Path

import pytest

from embodied.cli.compose import compose_config
from embodied.errors import ConfigError, CorruptFile
from embodied.runs.settings import CONFIG, Settings, resumed_config, saved_config, typed


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("seed=99999999999999999999", "seed cannot be"),
        ("seed=-1", "seed cannot be -1"),
        ("evaluate.seed=99999999999999999999", r"seed cannot be .* \(evaluate\.seed\): give a whole number from 0 to"),
        ("evaluate.final_seed=-1", "evaluate.final_seed"),
        (
            "evaluate.target=97",
            r"target cannot be 97 \(evaluate\.target\): did you mean 0\.97\? .* at most 1\.01, 1\.01 never",
        ),
        ("task.name.x=3", r"task\.name cannot be \{'x': 3\}"),
        ("episodes.quota_gb=inf", "episodes.quota_gb"),
        ("episodes.quota_gb=nan", "episodes.quota_gb"),
        ("rollout={num_envs: 65536, steps: 65536}", "fit in memory"),
        ("runtime.threads=100000", "runtime.threads"),
        ("rollout.max_lag=2", r"without a correction \(rollout\.max_lag\): give algo\.correction=truncated or masked"),
        (
            "rollout.num_envs=true",
            r"num_envs cannot be true \(rollout\.num_envs\): give a whole number from 1 to 65536",
        ),
        ("rollout.num_envs=64.0", r"num_envs cannot be 64.0"),
        ("rollout={num_env: 64}", r"unknown key 'rollout\.num_env' \(command line\): did you mean rollout\.num_envs"),
        ("client=remote", "client.address has no value"),
        ("client.timeout_s=nan", "client.timeout_s"),
        ("client.timeout_s=-1", "client.timeout_s"),
        ("runs=", "runs cannot be ''"),
        ("task=null", "unknown task 'null'.*known: .*lift_cube, .*reach"),
        ("algo=", "unknown algo ''"),
        ("name=ü", "cannot be read.*quote"),
        ("name=a=b", "cannot be read.*quote"),
        ("seed=${oc.env:NO_SUCH_VARIABLE}", "NO_SUCH_VARIABLE"),
        ("policy.name=${policy.name}", "[Rr]ecursive"),
    ],
)
def test_a_mistake_is_one_line(word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        typed(Settings, compose_config("train", [word]))
    assert "\n" not in caught.value.line()


def test_steps_of_older_versions_are_trained_with_a_correction() -> None:
    words = ["rollout.max_lag=2", "algo.correction=truncated"]
    assert typed(Settings, compose_config("train", words)).rollout.max_lag == 2
    with pytest.raises(ConfigError, match="without a correction"):  # PPO's default is none
        typed(Settings, compose_config("train", ["rollout.max_lag=2", "~algo.correction"]))


def test_a_name_may_look_like_a_number() -> None:
    assert typed(Settings, compose_config("train", ["name=7", "budget.wall_s=3"])).name == "7"


def test_the_defaults_may_be_written_out() -> None:
    assert typed(Settings, compose_config("train", ["experiment=null", "name=null", "resume=null"])).name is None


@pytest.mark.parametrize("text", ["", "[1]", "a", "a: 1", "task: [", "9" * 5000, "task: {name: reach}", "\0"])
def test_a_damaged_configuration_names_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / CONFIG).write_text(text)
    with pytest.raises(CorruptFile) as caught:
        saved_config(tmp_path)
    assert str(tmp_path / CONFIG) in caught.value.line()


def test_a_configuration_that_is_no_yaml_names_the_line(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text("task:\n  name: reach\nseed: a: b\n")
    with pytest.raises(CorruptFile, match=r"config\.yaml, line 3"):
        saved_config(tmp_path)


def _resume(folder: Path, *words: str) -> Settings:
    given = compose_config("train", ["resume=a", *words])
    return typed(Settings, resumed_config(folder, given, ["resume=a", *words]))


def test_a_resumed_run_takes_only_what_is_given_anew(tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    config = compose_config(
        "train", ["task=reach", "seed=3", "name=a", "rollout.steps=8", "warm_start.demonstrations=3"]
    )
    (tmp_path / CONFIG).write_text(OmegaConf.to_yaml(config))
    same = _resume(tmp_path)
    assert (same.task["name"], same.seed, same.rollout.steps, same.resume) == ("reach", 3, 8, None)
    changed = _resume(tmp_path, "budget.env_steps=5", "algo.lr=1e-3", "seed=3")
    assert (changed.budget.env_steps, changed.algo["lr"], changed.rollout.steps) == (5, 1e-3, 8)
    assert _resume(tmp_path, "warm_start.demonstrations=3").warm_start.demonstrations == 3
    again = _resume(tmp_path, "warm_start={memory_gb: 2.0}").warm_start
    assert (again.memory_gb, again.demonstrations) == (2.0, 3)
    assert _resume(tmp_path, "task=lift_cube").task["name"] == "lift_cube"
    assert _resume(tmp_path, "randomise=default").env["randomise"]["mass"] == [0.8, 1.2]
    for word, said in (
        ("seed=4", "keeps its seed"),
        ("name=b", "keeps its name"),
        ("experiment=lift_rl", "keeps its exp"),
        ("warm_start.weights=b", "keeps its warm_start.weights"),
        ("warm_start.episodes=latest", "keeps its warm_start.episodes"),
        ("warm_start.demonstrations=5", "keeps its warm_start.demonstrations"),
        ("warm_start={demonstrations: 5}", "keeps its warm_start.demonstrations"),
        ("~rollout.steps", "removed"),
    ):
        with pytest.raises(ConfigError, match=said):
            _resume(tmp_path, word)


def test_the_configuration_of_an_older_run_is_read_under_the_names_of_today(tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    config = OmegaConf.to_container(compose_config("train", ["task=reach", "evaluate.target=0.9"]), resolve=True)
    assert isinstance(config, dict)
    old = {{"env": "body", "client": "serve"}.get(str(key), key): value for key, value in config.items()}
    for group in (old["body"], old["policy"], old["algo"], old["reward"], old["warm_start"]["clone"]):
        group["target"] = group.pop("_target_")
    old["serve"]["keys"] = old["serve"].pop("credentials")
    del old["runtime"]["_target_"]
    (tmp_path / CONFIG).write_text(OmegaConf.to_yaml(old))
    settings = typed(Settings, saved_config(tmp_path))
    assert settings == typed(Settings, compose_config("train", ["task=reach", "evaluate.target=0.9"]))
    assert (settings.env["_target_"], settings.evaluate.target) == ("simulators.make.make_env", 0.9)
