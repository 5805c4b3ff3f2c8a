"""GR00T's modalities and our streams, from an embodiment's config, in both directions."""

from typing import Any

import msgpack
import numpy as np
import pytest
from numpy.typing import NDArray

from embodied.errors import ConfigError, DataError, SpecMismatch
from embodied.gateways.groot.key_mapping import GrootKeys
from embodied.gateways.groot.messages import unpack
from embodied.spec import AgentSpec, PolicySpec, Stream

AGENT = AgentSpec(
    (
        Stream("front", (4, 6, 3), dtype="uint8"),
        Stream("joint_pos", (7,), unit="rad"),
        Stream("contact", (2,), dtype="int32"),
        Stream("instruction", (16,), dtype="uint8"),
    ),
    (Stream("joint_vel", (6,)), Stream("grip", (1,))),
)
SPEC = PolicySpec("arm", AGENT, chunk=5)
CONFIG: dict[str, Any] = {
    "name": "mine",
    "groot": {
        "video": {"ego_view": "front"},
        "state": {"hand": ["joint_pos", [6]], "arm": ["joint_pos", [5, 4, 3, 2, 1, 0]], "touch": "contact"},
        "action": {"gripper": "grip", "arm": [5, 4, 3, 2, 1, 0]},
        "language": "annotation.human.action.task_description",
        "resize": True,
    },
}


def streams(rows: int) -> dict[str, NDArray[Any]]:
    draw = np.random.default_rng(rows)
    text = np.zeros((rows, 16), np.uint8)
    text[:, :4] = np.frombuffer("höh".encode(), np.uint8)
    return {
        "front": draw.integers(0, 255, (rows, 4, 6, 3), dtype=np.uint8),
        "joint_pos": draw.normal(size=(rows, 7)).astype(np.float32),
        "contact": draw.integers(-5, 5, (rows, 2), dtype=np.int32),
        "instruction": text,
    }


@pytest.mark.parametrize("config", [CONFIG, {"name": "native"}, "native"])
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
def test_what_is_asked_is_what_was_seen(config: Any, nested: bool, rows: int) -> None:
    theirs, ours = GrootKeys.for_env(config, AGENT), GrootKeys.for_policy(config, SPEC)
    seen = streams(rows)
    asked = ours.observe(theirs.request(seen, nested), most=3)
    assert (asked.rows, asked.nested, asked.batched) == (rows, nested, True)
    for name, array in seen.items():
        np.testing.assert_array_equal(asked.streams[name], array)
        assert asked.streams[name].dtype == array.dtype
    actions = np.random.default_rng(0).normal(size=(rows, 5, 7)).astype(np.float32)
    answer = ours.answer(actions, asked)
    assert all(array.dtype == np.float32 and array.flags.c_contiguous for array in answer.values())
    np.testing.assert_array_equal(theirs.actions_of(answer, rows), actions)


def test_keys_and_columns_are_those_of_the_config() -> None:
    keys = GrootKeys.for_policy(CONFIG, SPEC)
    asked = keys.request(streams(2), nested=True)
    assert set(asked["video"]) == {"ego_view"} and asked["video"]["ego_view"].shape == (2, 1, 4, 6, 3)
    np.testing.assert_array_equal(asked["state"]["hand"][:, 0], streams(2)["joint_pos"][:, [6]])
    assert asked["language"] == {"annotation.human.action.task_description": [["höh"], ["höh"]]}
    plain = keys.modality(5, "n1.6")
    assert plain["action"].modality_keys == ["gripper", "arm"] and list(plain["action"].delta_indices) == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert keys.modality(5, "n1.5")["video"].modality_keys == ["video.ego_view"]
    assert plain["language"].modality_keys == ["annotation.human.action.task_description"]


def test_one_row_may_come_without_a_row_axis_and_without_frames() -> None:
    keys = GrootKeys.for_policy(CONFIG, SPEC)
    whole = keys.request(streams(1), nested=False)
    for cut in (lambda a: a[0], lambda a: a[0, 0]):
        asked = keys.observe({k: cut(v) if isinstance(v, np.ndarray) else v for k, v in whole.items()}, 1)
        assert not asked.batched
        np.testing.assert_array_equal(asked.streams["joint_pos"], streams(1)["joint_pos"])
        assert {k: v.shape for k, v in keys.answer(np.zeros((1, 5, 7), np.float32), asked).items()} == {
            "action.gripper": (5, 1),
            "action.arm": (5, 6),
        }


@pytest.mark.parametrize(
    "language",
    [
        {"task": "höh"},
        {"task": ["höh", "höh"]},
        {"task": ["höh"]},
        {"task": [["höh"], ["höh"]]},
        {"task": np.array(["höh", "höh"])},
        {"annotation.human.coarse_action": [["first", "höh"]] * 2},
        {"annotation.human.validity": "höh"},
    ],
)
def test_texts_in_every_form(language: dict[str, Any]) -> None:
    keys = GrootKeys.for_policy(CONFIG, SPEC)
    asked = {k: v for k, v in keys.request(streams(2), nested=False).items() if not k.startswith("annotation")}
    seen = keys.observe({**asked, **language}, 2)
    np.testing.assert_array_equal(seen.streams["instruction"], streams(2)["instruction"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"annotation.human.action.task_description": [1, 2]}, "holds a int in row 0"),
        ({"annotation.human.action.task_description": [[], []]}, "holds a list in row 0"),
        ({"annotation.human.action.task_description": ["a", "b", "c"]}, "no text for each of 2 rows"),
        ({"annotation.human.action.task_description": "x" * 17}, "17 bytes"),
        ({"state.touch": np.zeros((2, 1, 2), np.float32)}, "float32.*send int32"),
        ({"state.touch": np.full((2, 1, 2), 1 << 40)}, "outside int32"),
        ({"state.hand": np.zeros((2, 0, 1), np.float32)}, "has shape"),
        ({"state.hand": np.zeros((0, 1, 1), np.float32)}, "has shape"),
        ({"state.hand": np.zeros((3, 1, 1), np.float32)}, "has 3 rows"),
        ({"state.hand": np.zeros((2, 1, 1, 1), np.float32)}, "has shape"),
        ({"state.hand": np.zeros((1, 1), np.float32)}, "the same rows"),
        ({"state.hand": np.array([[["a"]]] * 2)}, "is <U1"),
        ({"state.hand": None}, "no array"),
        ({"video.ego_view": np.zeros((2, 1, 4, 6, 4), np.uint8)}, "has shape"),
        ({"video.ego_view": np.zeros((2, 1, 4, 5000, 3), np.uint8)}, "has shape"),
        ({"video.ego_view": np.zeros((2, 1, 4, 0, 3), np.uint8)}, "has shape"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], says: str) -> None:
    keys = GrootKeys.for_policy(CONFIG, SPEC)
    with pytest.raises(SpecMismatch, match=says):
        keys.observe({**keys.request(streams(2), nested=False), **change}, 2)


def test_images_of_another_size_need_the_configs_leave() -> None:
    seen, large = streams(2), np.full((2, 1, 9, 13, 3), 7, np.uint8)
    taken = GrootKeys.for_policy(CONFIG, SPEC)
    asked = taken.observe({**taken.request(seen, nested=False), "video.ego_view": large}, 2)
    assert asked.streams["front"].shape == (2, 4, 6, 3) and (asked.streams["front"] == 7).all()
    native = GrootKeys.for_policy("native", SPEC)
    with pytest.raises(SpecMismatch, match=r"video\.front has shape"):
        native.observe({**native.request(seen, nested=False), "video.front": large}, 2)


def section(**parts: Any) -> dict[str, Any]:
    return {"name": "mine", "groot": {**CONFIG["groot"], **parts}}


@pytest.mark.parametrize(
    ("config", "error", "says"),
    [
        ({"name": "mine", "groo": {}}, ConfigError, "unknown field groo"),
        ({"name": "mine", "groot": [1]}, ConfigError, "no mapping"),
        (section(videos={}), ConfigError, "unknown field videos"),
        (section(video=["front"]), ConfigError, "video is no mapping"),
        (section(video={"ego": "frnt"}), SpecMismatch, "no stream frnt.*front"),
        (section(video={"ego": "joint_pos"}), SpecMismatch, "is no image"),
        (section(video={}), SpecMismatch, "needs front"),
        (section(state={"arm": "joint_pos"}), SpecMismatch, "needs contact"),
        (section(state={"arm": ["joint_pos", [0, 1]], "touch": "contact"}), SpecMismatch, "gives 2, 3, 4, 5, 6"),
        (section(state={"arm": ["joint_pos", [7]]}), ConfigError, "columns"),
        (section(state={"arm": ["joint_pos"]}), ConfigError, r"\[stream, \[columns\]\]"),
        (section(action={"arm": "grp"}), SpecMismatch, "no action stream grp"),
        (section(action={"arm": [9]}), ConfigError, "columns"),
        (section(language=5), ConfigError, "language"),
        (section(resize="yes"), ConfigError, "resize"),
    ],
)
def test_mistakes_of_a_config_are_named(config: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        GrootKeys.for_policy(config, SPEC)


def test_a_body_needs_every_action_number() -> None:
    with pytest.raises(ConfigError, match="gives action numbers 6"):
        GrootKeys.for_env(section(action={"arm": [0, 1, 2, 3, 4, 5]}), AGENT)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ([1], "no map of actions"),
        ({}, "no array of numbers joint_vel"),
        ({"joint_vel": np.zeros((2, 5, 6)), "grip": "none"}, "no array of numbers grip"),
        ({"joint_vel": np.zeros((2, 5, 5)), "grip": np.zeros((2, 5, 1))}, r"not \(2, K, 6\)"),
        ({"joint_vel": np.zeros((2, 5, 6)), "grip": np.zeros((2, 4, 1))}, "grip has shape"),
        ({"joint_vel": np.full((2, 5, 6), np.inf), "grip": np.zeros((2, 5, 1))}, "joint_vel is not finite"),
    ],
)
def test_answers_that_do_not_fit_are_named(answer: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        GrootKeys.for_env("native", AGENT).actions_of(answer, 2)


def test_rows_and_sizes_of_empty_arrays_are_bounded_too() -> None:
    """An array of no bytes may claim any number of rows."""
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (100000000000, 1, 0, 6, 3), }"
    npy = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    keys = GrootKeys.for_policy(CONFIG, SPEC)
    empty = unpack(msgpack.packb({"__ndarray_class__": True, "as_npy": npy}))
    with pytest.raises(SpecMismatch, match="100000000000 rows"):
        keys.observe({**keys.request(streams(2), nested=False), "video.ego_view": empty}, 2)


def test_libero_as_clients_of_groot_send_it() -> None:
    streams = (Stream("image", (8, 8, 3), dtype="uint8"), Stream("wrist_image", (8, 8, 3), dtype="uint8"),
               Stream("state", (8,)), Stream("instruction", (16,), dtype="uint8"))  # fmt: skip
    keys = GrootKeys.for_policy("libero", PolicySpec("vla", AgentSpec(streams, (Stream("delta", (7,)),)), chunk=2))
    numbers = dict(zip(("x", "y", "z", "roll", "pitch", "yaw"), range(6), strict=True))
    asked = keys.observe(
        {
            "video.image": np.zeros((1, 256, 256, 3), np.uint8),
            "video.wrist_image": np.zeros((1, 256, 256, 3), np.uint8),
            **{f"state.{name}": np.array([[float(number)]]) for name, number in numbers.items()},
            "state.gripper": np.array([[6.0, 7.0]]),
            "annotation.human.action.task_description": ["open it"],
        },
        most=1,
    )
    assert asked.streams["state"].tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    answer = keys.answer(np.arange(14, dtype=np.float32).reshape(1, 2, 7), asked)
    assert answer["action.gripper"].tolist() == [[6], [13]] and answer["action.x"].tolist() == [[0], [7]]


def test_keys_that_are_not_read_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    theirs, ours = GrootKeys.for_env(CONFIG, AGENT), GrootKeys.for_policy(CONFIG, SPEC)
    request = theirs.request(streams(1), nested=True)
    request["state"]["elbow"] = request["state"]["hand"]
    for _ in range(2):
        ours.observe(request, most=1)
    assert [record.message for record in caplog.records] == [
        "clients send keys that the gateway's embodiment does not read: state.elbow"
    ]
