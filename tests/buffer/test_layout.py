import dataclasses
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.buffer.container import write_sealed
from embodied.buffer.encode import encode
from embodied.buffer.layout import FORMAT, flat_name
from embodied.buffer.reader import read_episodes
from embodied.buffer.summary import pack_index, summarise
from embodied.data import Outcome
from embodied.episode import Episode
from embodied.errors import CorruptFile, DataError
from tests.buffer.samples import assert_same, make_episode


def store(path: Path, *episodes: Episode) -> None:
    write_sealed(path, pack_index([summarise(episode) for episode in episodes]), encode(episodes))


@given(
    st.integers(0, 10**6), st.integers(1, 20), st.integers(1, 5), st.sampled_from(Outcome), st.sampled_from([0, 1, 4]),
    st.sampled_from([("robot",), ("left", "right arm")]), st.booleans(), st.booleans(),
)  # fmt: skip
@settings(max_examples=40)
def test_episodes_come_back_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    steps: int,
    chunk: int,
    outcome: Outcome,
    control: int,
    agents: tuple[str, ...],
    bare: bool,
    more: bool,
) -> None:
    path = tmp_path_factory.mktemp("layout") / "shard.h5"
    one = make_episode(
        seed,
        steps=steps,
        chunk=chunk,
        outcome=outcome,
        control=control,
        agents=agents,
        simulated=control > 0,
        timed=more,
        changed=more and steps > 1,
    )
    if bare:
        one = dataclasses.replace(one, drawn={}, initial_state=np.zeros(0))
    two = make_episode(seed + 1, "two")
    store(path, one, two)
    second, first = read_episodes(path, ["two", one.id])
    assert_same(first, one)
    assert_same(second, two)


def test_a_plain_hdf5_reader_opens_the_file(tmp_path: Path) -> None:
    episode = make_episode(0, steps=5, mode="evaluation", outcome=Outcome.SUCCESS)
    store(tmp_path / "a.h5", episode)
    with h5py.File(tmp_path / "a.h5") as file:
        group = file["episodes"][flat_name(episode.id)]
        assert (group.attrs["task"], group.attrs["seed"]) == ("reach", episode.seed)
        assert (group["robot"].attrs["policy"], group["robot"].attrs["outcome"]) == ("mlp", "success")
        assert group["robot/obs/camera"].chunks == (1, 4, 4, 3)
        assert group["robot/steps"].dtype["applied"].base == np.float64
        np.testing.assert_array_equal(group["robot/steps"]["reward"], episode.agents["robot"].rewards)


def damaged(path: Path, change: str) -> None:
    """A file whose envelope is right, but which is not laid out as documented."""
    with h5py.File(path, "w") as file:
        file.attrs["format"] = "another" if change == "format" else FORMAT
        if change == "no group":
            return
        source = path.with_suffix(".source")
        store(source, make_episode(0, "a"))
        with h5py.File(source) as whole:
            whole.copy("episodes", file)
        group = file["episodes/a"]
        if change == "attribute":
            del group.attrs["task"]
        elif change == "kind of attribute":
            group.attrs["task"] = 3
        elif change == "outcome":
            group["robot"].attrs["outcome"] = "victory"
        elif change == "field":
            table = group["robot/steps"][()]
            del group["robot/steps"]
            group["robot/steps"] = table[["k", "reward"]]
        elif change == "pointer":
            table = group["robot/steps"][()]
            table["decision"] = 99
            group["robot/steps"][...] = table
        elif change == "length":
            del group["robot/obs/count"]
            group["robot/obs/count"] = np.zeros(3, np.int32)
        elif change == "size":
            del group["initial_state"]
            group.create_dataset("initial_state", (2**40,), "f8", chunks=(2**20,))
        elif change == "object":
            del group["initial_state"]
            group.create_dataset("initial_state", data=["a", "b"])
        elif change == "spec":
            group.attrs["spec"] = "{"


@pytest.mark.parametrize(
    "change",
    [
        "format", "no group", "attribute", "kind of attribute", "outcome", "field", "pointer", "length", "size",
        "object", "spec",
    ],
)  # fmt: skip
def test_what_is_not_laid_out_as_documented_is_corrupt(tmp_path: Path, change: str) -> None:
    bare, path = tmp_path / "bare.h5", tmp_path / "a.h5"
    damaged(bare, change)
    write_sealed(path, pack_index([summarise(make_episode(0, "a"))]), bare.read_bytes())
    with pytest.raises(CorruptFile) as caught:
        list(read_episodes(path, ["a"]))
    assert caught.value.where == str(path) and caught.value.fix and "\n" not in caught.value.line()


@pytest.mark.parametrize("id", ["", "../up", "a//b", "a/../b", ".hidden", "a\n", "a~b", "x" * 200, "a/b/c/d/e"])
def test_ids_that_are_no_names_are_refused(id: str) -> None:
    with pytest.raises(DataError, match="no name"):
        encode([make_episode(0, id)])


def test_arrays_of_unequal_length_are_refused_by_name() -> None:
    episode = make_episode(0)
    episode.agents["robot"].rewards = episode.agents["robot"].rewards[:-1]
    with pytest.raises(DataError, match="unequal length"):
        encode([episode])
    episode = make_episode(0)
    episode.agents["robot"].observations["camera"] = episode.agents["robot"].observations["camera"][:-1]
    with pytest.raises(DataError, match="observations/camera"):
        encode([episode])


@pytest.mark.parametrize("drawn", [{"a/b": np.zeros(1)}, {"name": np.array("text")}, {"any": np.array([None])}])
def test_drawn_values_that_are_no_named_numbers_are_refused(drawn: dict[str, np.ndarray]) -> None:
    with pytest.raises(DataError, match="drawn value"):
        encode([dataclasses.replace(make_episode(0), drawn=drawn)])


def test_rendered_pictures_are_compressed_and_noisy_ones_are_not(tmp_path: Path) -> None:
    episode = make_episode(0, steps=5)
    seen = episode.agents["robot"].observations
    seen["front"] = np.tile(np.arange(32, dtype=np.uint8)[:, None, None], (6, 1, 32, 3))
    seen["depth"] = np.linspace(0.5, 2.0, 6 * 32, dtype=np.float32).reshape(6, 32, 1, 1).repeat(32, axis=2)
    seen["noisy"] = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), np.uint8)
    seen["joint_pos"][:] = 0.0
    store(tmp_path / "a.h5", episode)
    with h5py.File(tmp_path / "a.h5") as file:
        streams = file["episodes"][flat_name(episode.id)]["robot/obs"]
        assert (streams["front"].compression, streams["front"].chunks) == ("gzip", (1, 32, 32, 3))
        assert (streams["depth"].compression, streams["depth"].shuffle) == ("gzip", True)
        assert streams["noisy"].compression is None and streams["joint_pos"].compression is None
    [read] = read_episodes(tmp_path / "a.h5", [episode.id])
    assert_same(read, episode)


def test_actions_that_are_as_decided_take_no_place(tmp_path: Path) -> None:
    episode = make_episode(0, steps=5)
    track = episode.agents["robot"]
    track.action_requested, track.action_executed = track.decided, track.decided
    track.action_rule = np.zeros(5, np.uint8)
    store(tmp_path / "a.h5", episode)
    with h5py.File(tmp_path / "a.h5") as file:
        assert "changed_actions" not in file["episodes"][flat_name(episode.id)]["robot"]
    [read] = read_episodes(tmp_path / "a.h5", [episode.id])
    assert read.agents["robot"].action_requested is None and read.agents["robot"].action_rule is None


def test_pictures_seen_as_jpeg_are_stored_as_those_files(tmp_path: Path) -> None:
    codec = pytest.importorskip("simplejpeg")
    episode = make_episode(0, steps=4)
    track = episode.agents["robot"]
    pictures = np.random.default_rng(0).integers(0, 256, (5, 16, 24, 3), np.uint8)
    track.jpeg["camera"] = [codec.encode_jpeg(picture, 90) for picture in pictures]
    del track.observations["camera"]
    store(tmp_path / "a.h5", episode)
    with h5py.File(tmp_path / "a.h5") as file:
        stream = file["episodes"][flat_name(episode.id)]["robot/obs/camera"]
        assert stream[2].tobytes() == track.jpeg["camera"][2]
        assert stream.attrs["jpeg_shape"].tolist() == [16, 24, 3]
    [read] = read_episodes(tmp_path / "a.h5", [episode.id])
    assert read.agents["robot"].jpeg == track.jpeg
    decoded = np.stack([codec.decode_jpeg(file, fastdct=False, fastupsample=False) for file in track.jpeg["camera"]])
    np.testing.assert_array_equal(read.agents["robot"].observations["camera"], decoded)
    store(tmp_path / "b.h5", read)
    [again] = read_episodes(tmp_path / "b.h5", [episode.id])
    assert_same(again, read)
    track.jpeg["camera"][1] = b"no picture"
    store(tmp_path / "c.h5", episode)
    with pytest.raises(CorruptFile, match="not laid out as documented"):
        list(read_episodes(tmp_path / "c.h5", [episode.id]))
