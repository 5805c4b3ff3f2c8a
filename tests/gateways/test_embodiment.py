"""Other projects' keys to our streams and back: what ships with the project, conversions, and every refusal."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from embodied.errors import ConfigError, DataError, EmbodiedError, SpecMismatch
from embodied.gateways.embodiment import Embodiment, embodiment_names, read_config
from embodied.gateways.resize import MAX_SIDE, resize
from embodied.spec import AgentSpec, PolicySpec, Stream

TEXT = Stream("instruction", (64,), "uint8")


def image(name: str, height: int = 32, width: int = 32) -> Stream:
    return Stream(name, (height, width, 3), "uint8")


def spec(*observations: Stream, dim: int = 3) -> PolicySpec:
    return PolicySpec("p", AgentSpec(observations, (Stream("arm", (dim - 1,)), Stream("grip", (1,)))), chunk=4)


def pixels(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


FIELD: dict[str, tuple[PolicySpec, dict[str, Any]]] = {
    "libero": (
        spec(image("image"), image("wrist_image", 64, 48), Stream("state", (8,)), TEXT, dim=7),
        {
            "observation/image": pixels(224, 224, 3),
            "observation/wrist_image": pixels(224, 224, 3),
            "observation/state": np.arange(8.0),
            "prompt": "put the bowl on the plate",
        },
    ),
    "droid": (
        spec(
            image("exterior_image"), image("wrist_image"), Stream("joint_position", (7,)),
            Stream("gripper_position", (1,)), TEXT, dim=8,
        ),
        {
            "observation/exterior_image_1_left": pixels(180, 320, 3),
            "observation/wrist_image_left": pixels(224, 224, 3),
            "observation/joint_position": np.zeros(7, np.float32),
            "observation/gripper_position": np.float64(0.5),
            "prompt": "close the drawer",
        },
    ),
    "aloha": (
        spec(
            *(image(name) for name in ("cam_high", "cam_low", "cam_left_wrist", "cam_right_wrist")),
            Stream("state", (14,)), TEXT, dim=14,
        ),
        {
            "state": np.arange(14.0),
            "images": {name: pixels(3, 224, 224) for name in
                       ("cam_high", "cam_low", "cam_left_wrist", "cam_right_wrist")},
            "prompt": "fold",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIELD)
def test_requests_seen_in_the_field_become_a_policys_streams(name: str) -> None:
    policy, request = FIELD[name]
    made = Embodiment.from_config(name, policy)
    streams = made.observe(request)
    assert set(streams) == {stream.name for stream in policy.agent.observations}
    for stream in policy.agent.observations:
        value = streams[stream.name]
        assert (value.shape, value.dtype.name) == (stream.shape, stream.dtype) and value.flags.c_contiguous
    assert bytes(streams["instruction"]).rstrip(b"\0").decode() == request["prompt"]
    actions = np.arange(4 * policy.agent.action_dim, dtype=np.float32).reshape(4, -1)
    np.testing.assert_array_equal(made.reply(actions)["actions"], actions)
    assert made.request_bytes >= sum(value.nbytes for value in streams.values())


@pytest.mark.parametrize("name", FIELD)
def test_what_a_body_asks_is_what_a_gateway_reads(name: str) -> None:
    policy, request = FIELD[name]
    body, server = Embodiment.for_env(name, policy.agent), Embodiment.from_config(name, policy)
    row = {s.name: np.zeros(s.shape, s.dtype) for s in policy.agent.observations}
    row["instruction"][:2] = np.frombuffer(b"go", np.uint8)
    asked = body.request(row)
    assert set(asked) == set(request) and asked["prompt"] == "go"
    for key, value in server.observe(asked).items():
        np.testing.assert_array_equal(value, row[key])
    actions = np.ones((4, policy.agent.action_dim), np.float32)
    np.testing.assert_array_equal(body.actions_of(server.reply(actions)), actions)


def test_native_takes_every_stream_under_its_own_name() -> None:
    policy = spec(image("front"), Stream("depth", (4, 4)), Stream("ids", (2,), "int32"), TEXT)
    made = Embodiment.from_config("native", policy)
    text = np.zeros(64, np.uint8)
    for words in ("", text):
        got = made.observe(
            {"front": pixels(32, 32, 3), "depth": np.ones((4, 4)), "ids": np.array([1, 2]), "instruction": words}
        )
        assert got["ids"].dtype == np.int32 and (got["instruction"] == 0).all()
    assert made.keys["front"] == {
        "path": ["front"], "stream": "front", "dtype": "uint8", "shape": [32, 32, 3], "any_size": False
    }  # fmt: skip
    assert list(made.outputs) == ["actions"]
    assert list(Embodiment.from_config({}, policy, action_key="").outputs) == ["arm", "grip"]
    assert embodiment_names() == ["aloha", "droid", "libero", "native"]


def test_columns_are_taken_reordered_and_put_back() -> None:
    config = {
        "streams": {"arm": {"key": "state", "columns": [3, 0]}, "grip": {"key": "state", "columns": [1, 2]}},
        "actions": {"hand": {"streams": ["grip"]}, "rest": {"columns": [1, 0], "size": 2}},
    }
    policy = spec(Stream("arm", (2,)), Stream("grip", (2,)))
    made = Embodiment.from_config(config, policy)
    got = made.observe({"state": np.arange(4)})
    assert got["arm"].tolist() == [3, 0] and got["grip"].tolist() == [1, 2]
    actions = np.array([[10, 11, 12]], np.float32)
    reply = made.reply(actions)
    assert reply["hand"].tolist() == [[12]] and reply["rest"].tolist() == [[11, 10]]
    body = Embodiment.for_env(config, policy.agent)
    np.testing.assert_array_equal(body.request(got)["state"], np.arange(4))
    np.testing.assert_array_equal(body.actions_of(reply), actions)


def test_a_text_may_have_a_default() -> None:
    config = {"streams": {"instruction": {"key": "prompt", "text": True, "default": "lift"}, "state": "s"}}
    policy = spec(Stream("state", (1,)), TEXT)
    got = Embodiment.from_config(config, policy).observe({"s": 1})
    assert bytes(got["instruction"]).rstrip(b"\0") == b"lift" and got["state"].tolist() == [1]
    mute = AgentSpec(policy.agent.observations[:1], policy.agent.actions)
    assert Embodiment.for_env(config, mute).request({"state": np.ones(1, np.float32)})["prompt"] == "lift"


NATIVE = spec(image("front"), Stream("state", (3,)), Stream("ids", (2,), "int32"), TEXT)
GOOD = {"front": pixels(32, 32, 3), "state": np.zeros(3), "ids": np.zeros(2, np.int64), "instruction": "go"}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("front", pixels(32, 32, 3).astype(np.float32), "an image of float32"),
        ("front", pixels(32, 32, 4), "shape (32, 32, 4)"),
        ("front", pixels(3, 32, 32), "shape (3, 32, 32)"),
        ("front", pixels(64, 64, 3), "resize: true"),
        ("front", [1, 2], "is a list"),
        ("state", np.zeros((1, 3)), "shape (1, 3)"),
        ("state", np.zeros(3, bool), "dtype bool"),
        ("state", {"x": 1}, "is a dict"),
        ("ids", np.zeros(2), "dtype float64"),
        ("ids", np.array([0, 1 << 40]), "outside int32"),
        ("instruction", "x" * 65, "65 bytes"),
        ("instruction", b"go", "is a bytes"),
        ("instruction", np.zeros(63, np.uint8), "is a ndarray"),
    ],
)
def test_what_a_client_sends_wrong_is_named(key: str, value: Any, words: str) -> None:
    with pytest.raises(SpecMismatch) as refused:
        Embodiment.from_config("native", NATIVE).observe({**GOOD, key: value})
    assert f"key {key}, for stream {key}, " in refused.value.what and words in refused.value.line()


def test_a_missing_key_is_named_with_what_is_there() -> None:
    made = Embodiment.from_config("native", NATIVE)
    with pytest.raises(SpecMismatch, match=r"key state, for stream state, is missing .* did you mean stat"):
        made.observe({**{k: v for k, v in GOOD.items() if k != "state"}, "stat": 1})
    nested = Embodiment.from_config({"streams": {"state": {"key": ["obs", "state"]}}}, spec(Stream("state", (1,))))
    for request in ({}, {"obs": 3}, {"obs": {}}):
        with pytest.raises(SpecMismatch, match="key obs/state, for stream state,"):
            nested.observe(request)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"streams": {"state": "s"}, "sizes": 1}, "unknown field sizes"),
        ({"streams": "state"}, "no mapping"),
        ({"streams": {}}, "no mapping"),
        ({"streams": {"stat": "s"}}, "needs stream state, which has no key .*stream state.*did you mean stat"),
        ({"streams": {"state": {"keys": "s"}}}, "unknown field keys"),
        ({"streams": {"state": {}}}, "key None is no name"),
        ({"streams": {"state": {"key": ["a", ""]}}}, "is no name"),
        ({"streams": {"state": {"key": "s", "layout": "whc"}}}, "layout whc"),
        ({"streams": {"state": {"key": "s", "layout": "chw"}}}, "an image's stream is uint8"),
        ({"streams": {"state": {"key": "s", "resize": True}}}, "key s is an image, stream state is float32"),
        ({"streams": {"state": {"key": "s", "resize": "yes"}}}, "write true or false"),
        ({"streams": {"state": {"key": "s", "text": True}}}, "one axis"),
        ({"streams": {"state": {"key": "s", "default": "x"}}}, "only a text"),
        ({"streams": {"state": {"key": "s", "shape": [4]}}}, r"key s is sent as \[4\], stream state is float32 \[3\]"),
        ({"streams": {"state": {"key": "s", "shape": 4}}}, "list of counts"),
        ({"streams": {"state": {"key": "s", "columns": [0, 1]}}}, "gives 2 columns"),
        ({"streams": {"state": {"key": "s", "columns": [0, 1, 9], "shape": [8]}}}, "of which columns"),
        ({"streams": {"state": {"key": "s", "columns": [0, 1, -1]}}}, "list of counts"),
        ({"actions": {"a": {"columns": [3]}}}, "columns 0 to 2"),
        ({"actions": {"a": {"columns": 3}}}, "give a list"),
        ({"actions": {"a": {"streams": ["leg"]}}}, "no action stream leg"),
        ({"actions": {"a": {"size": 7}}}, "takes 7 action numbers"),
        ({"actions": {"a": {"sized": 7}}}, "unknown field sized"),
        ({"actions": {"a": 3}}, "no mapping"),
        ("liber", "no such embodiment .*did you mean libero"),
        ("nowhere.yaml", "no such embodiment"),
    ],
)
def test_a_wrong_config_is_named_at_the_start(config: Any, words: str) -> None:
    with pytest.raises(EmbodiedError, match=words) as refused:
        Embodiment.from_config(config, spec(Stream("state", (3,))))
    assert isinstance(refused.value, ConfigError | SpecMismatch) and "embodiment" in refused.value.line()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"shape": [64, 64, 3]}, r"is sent as hwc \[64, 64, 3\]"),
        ({"shape": [32, 32, 1]}, "is sent as"),
        ({"shape": [32, 32, 3], "layout": "chw", "resize": True}, "is sent as chw"),
        ({"shape": [9000, 32, 3], "resize": True}, "is sent as"),
        ({"shape": [32, 32]}, "is sent as"),
        ({"columns": [0]}, "gives 1 columns"),
    ],
)
def test_images_that_cannot_fit_are_named_at_the_start(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecMismatch, match=words):
        Embodiment.from_config({"streams": {"front": {"key": "f", **entry}}}, spec(image("front")))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"streams": {"leg": "s"}}, "needs stream leg, which the environment does not have"),
        ({"streams": {"a": "s", "b": "s"}}, "made twice"),
        ({"streams": {"a": "s", "b": {"key": ["s", "t"]}}}, "made twice"),
        ({"streams": {"a": {"key": "s", "columns": [0]}, "b": {"key": "s", "columns": [0]}}}, "made twice"),
        ({"streams": {"a": {"key": "s", "columns": [0]}, "b": {"key": "s", "columns": [2]}}}, "gives columns"),
        ({"actions": {"x": {"columns": [0, 1]}}}, r"no key gives action numbers \[2\]"),
    ],
)
def test_a_request_that_would_lack_something_is_named(config: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, SpecMismatch), match=words):
        Embodiment.for_env(config, spec(Stream("a", (1,)), Stream("b", (1,))).agent)


def test_bad_actions_are_data_errors() -> None:
    made = Embodiment.for_env({"actions": {"x": {"columns": [0]}, "y": {"columns": [1, 2]}}}, NATIVE.agent)
    good = {"x": np.zeros((2, 1)), "y": np.zeros((2, 2))}
    assert made.actions_of(good).shape == (2, 3)
    bad: list[Any] = [None, "up", np.zeros((3, 2)), np.zeros(2), np.zeros((2, 3)), np.full((2, 2), np.inf)]
    for value in bad:
        with pytest.raises(DataError, match="y"):
            made.actions_of({**good, "y": value})


def test_channels_first_is_turned() -> None:
    made = Embodiment.from_config({"streams": {"front": {"key": "f", "layout": "chw"}}}, spec(image("front", 4, 6)))
    sent = pixels(3, 4, 6)
    got = made.observe({"f": sent})["front"]
    np.testing.assert_array_equal(got, sent.transpose(1, 2, 0))
    assert got.flags.c_contiguous


def test_images_too_large_to_resize_are_refused() -> None:
    made = Embodiment.from_config({"streams": {"f": {"key": "f", "resize": True}}}, spec(image("f")))
    for shape in ((MAX_SIDE + 1, 1, 3), (0, 4, 3), (4, 4, 1)):
        with pytest.raises(SpecMismatch, match="channels"):
            made.observe({"f": np.zeros(shape, np.uint8)})


def test_a_file_of_ones_own(tmp_path: Any) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("streams:\n  state: {key: s}\n")
    assert Embodiment.from_config(str(path), spec(Stream("state", (1,)))).name == "mine"
    for text, words in (("[1]", "no mapping"), ("a: [", "not YAML")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            read_config(str(path))


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(0, 255))
def test_resizing_keeps_flat_images_and_ranges(tall: int, wide: int, height: int, width: int, value: int) -> None:
    flat = np.full((tall, wide, 3), value, np.uint8)
    assert (resize(flat, height, width) == value).all()
    noisy = pixels(tall, wide, 3)
    got = resize(noisy, height, width)
    assert got.shape == (height, width, 3) and got.min() >= noisy.min() and got.max() <= noisy.max()


def test_resizing_averages_and_blends() -> None:
    halves = np.zeros((4, 4, 1), np.uint8)
    halves[:, 2:] = 200
    small = resize(halves, 2, 2)[..., 0]
    assert small[0, 0] < 40 and small[0, 1] > 160 and (small[0] == small[1]).all()
    assert resize(np.array([[[0], [100]]], np.uint8), 1, 4)[0, :, 0].tolist() == [0, 25, 75, 100]
    assert abs(float(resize(pixels(64, 64, 3), 16, 16).mean()) - float(pixels(64, 64, 3).mean())) < 2


def test_keys_that_no_stream_reads_are_found() -> None:
    wanted, request = FIELD["libero"]
    made = Embodiment.from_config("libero", wanted)
    assert made.unread(request) == []
    assert made.unread({**request, "observation/depth": 0, "extra": {"a": 1}}) == ["observation/depth", "extra"]
