"""Suites by name, and what Gymnasium's spaces become."""

from pathlib import Path

import numpy as np
import pytest

from embodied.errors import ConfigError
from simulators.worker.suite import load_suite
from tests.simulators.worker import tiny_gym

TINY, ODD = "gymnasium:tests.simulators.worker.tiny_gym:Tiny-v0", "gymnasium:tests.simulators.worker.tiny_gym:Odd-v0"


def test_a_dict_of_boxes_becomes_streams_and_a_symmetric_box_an_action() -> None:
    spec = load_suite(TINY, {}).spec
    assert (spec.task, spec.control_hz, spec.episode_steps) == ("Tiny-v0", 10.0, tiny_gym.STEPS)
    agent = spec.agents["robot"]
    streams = {stream.name: (stream.shape, stream.dtype) for stream in agent.observations}
    assert streams == dict.fromkeys(("observation", "achieved_goal", "desired_goal"), ((2,), "float32"))
    assert [(a.name, a.shape, a.dtype, a.limit) for a in agent.actions] == [("action", (2,), "float32", 1.0)]
    assert (spec.control_size, spec.state_size) == (2, 0)


def test_other_bounds_are_scaled_from_minus_one_to_one() -> None:
    suite = load_suite(ODD, {})
    assert suite.spec.agents["robot"].actions[0].limit == 1.0
    assert [stream.name for stream in suite.spec.agents["robot"].observations] == ["observation"]
    env = suite.make()
    env.reset(0)
    for action, applied in (([-1, -1], [0, -1]), ([1, 1], [2, 3]), ([0, 0.5], [1, 2])):
        seen = env.step(np.array(action, np.float32)).streams["observation"]
        np.testing.assert_allclose(seen, [applied, applied])
    env.close()


def test_rendered_images_are_a_stream_of_the_size_asked_for() -> None:
    suite = load_suite(TINY, {}, pixels=6)
    stream = suite.spec.agents["robot"].observations[-1]
    assert (stream.name, stream.shape, stream.dtype) == ("rgb", (6, 6, 3), "uint8")
    image = suite.make().reset(0)["rgb"]
    assert image.shape == (6, 6, 3) and (image == 100).all()


def test_a_time_limit_is_an_option() -> None:
    assert (
        load_suite("gymnasium:tests.simulators.worker.tiny_gym:Endless-v0", {"max_episode_steps": 9}).spec.episode_steps
        == 9
    )


@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        ("Tiny-v0", {}, "write <suite>:<id>"),
        ("gymnasum:Tiny-v0", {}, "did you mean gymnasium"),
        ("no.such.module:x", {}, "cannot import no.such.module"),
        ("embodied.errors:x", {}, "no function load"),
        ("..:x", {}, "'..' names no module"),
        (".a:x", {}, "names no module"),
        ("a..b:x", {}, "names no module"),
        ("a b.c:x", {}, "names no module"),
        ("gymnasium:..:x", {}, "'..' names no module"),
        ("broken.suite:x", {}, "cannot import broken.suite: ValueError: two lines"),
        ("gymnasium:broken.suite:x", {}, "cannot import broken.suite: ValueError"),
        ("gymnasium:no_such_module:Tiny-v0", {}, "cannot import no_such_module"),
        ("gymnasium:tests.simulators.worker.tiny_gym:Tyny-v0", {}, "did you mean Tiny-v0"),
        ("gymnasium:tests.simulators.worker.tiny_gym:Endless-v0", {}, "max_episode_steps"),
        (TINY, {"troubel": "raise"}, "troubel"),
        (ODD, {"discrete": True}, "Discrete"),
        (ODD, {"bounded": False}, "some actions have bounds"),
    ],
)  # fmt: skip
def test_an_environment_that_fits_no_spec_is_one_line(
    env: str, options: dict, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "suite.py").write_text("raise ValueError('two\\nlines')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_suite(env, options)
    assert said in caught.value.line() and "\n" not in caught.value.line()
