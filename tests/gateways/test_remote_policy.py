"""Policies whose decisions another server takes: what is the same for all, with a client that makes them up."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embodied.data import Observation, Rows
from embodied.errors import ConfigError, DataError, WeightsRefused
from embodied.gateways.remote_policy import RemotePolicy, check_sizes, secret
from embodied.spec import AgentSpec, PolicySpec, Stream

SPEC = PolicySpec("far", AgentSpec((Stream("state", (2,)),), (Stream("move", (3,)),)), chunk=2)


class Echo:
    where = "server far away"

    def __init__(self, length: int) -> None:
        self.length = length

    def infer(self, streams: Mapping[str, NDArray[Any]], rows: int) -> list[NDArray[np.float32]]:
        return [np.full((self.length, 3), streams["state"][row, 0], np.float32) for row in range(rows)]

    def close(self) -> None:
        pass


def seen(rows: int) -> Observation:
    state = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    return Observation(Rows.of_envs(rows), {"state": state}, np.zeros(rows))


def test_chunks_are_cut_and_have_no_log_probabilities() -> None:
    policy = RemotePolicy(SPEC, Echo(4))
    for rows in (0, 1, 3):
        observation = seen(rows)
        chunk = policy.act(observation, observation.rows.noise_keys(0), "mean")
        assert chunk.actions.shape == (rows, 2, 3) and chunk.actions.dtype == np.float32
        np.testing.assert_array_equal(chunk.actions[:, 0, 0], observation.streams["state"][:, 0])
        assert np.isnan(chunk.log_probs).all() and chunk.log_probs.shape == chunk.actions.shape
        assert np.isnan(chunk.values).all() and chunk.values.dtype == np.float32 and (chunk.versions == 0).all()


def test_chunks_that_are_too_short_are_refused() -> None:
    observation = seen(1)
    with pytest.raises(DataError, match=r"chunks of 1 actions, and 2 are wanted \(server far away\): set chunk=1"):
        RemotePolicy(SPEC, Echo(1)).act(observation, observation.rows.noise_keys(0), "mean")


def test_it_has_no_weights() -> None:
    policy = RemotePolicy(SPEC, Echo(2))
    assert policy.tensors() == {}
    policy.load({})
    with pytest.raises(WeightsRefused, match="server far away"):
        policy.load({"weight": np.zeros(1)})


@pytest.mark.parametrize(
    "sizes", [(0, None, 1.0), (5000, None, 1.0), (4, 5, 1.0), (4, 0, 1.0), (4, 2, 0.0), (4, 2, float("inf"))]
)
def test_sizes_out_of_range(sizes: tuple[int, int | None, float]) -> None:
    with pytest.raises(ConfigError):
        check_sizes(*sizes)


def test_a_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAR_KEY", "sesame")
    assert secret("env:FAR_KEY", "policy.api_key") == "sesame"
    assert secret("mustard", "policy.api_key") == "mustard" and secret(None, "policy.api_key") is None
    monkeypatch.delenv("FAR_KEY")
    with pytest.raises(ConfigError, match="no FAR_KEY"):
        secret("env:FAR_KEY", "policy.api_key")
