import json
import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.errors import MessageError, SpecMismatch
from embodied.spec import (
    CLIENT_STREAMS,
    ROTATIONS,
    STREAM_DTYPES,
    AgentSpec,
    EnvSpec,
    PolicySpec,
    Stream,
    difference,
    match,
)

names = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8)
streams = st.builds(
    Stream,
    name=names,
    shape=st.lists(st.integers(1, 9), max_size=3).map(tuple),
    dtype=st.sampled_from(STREAM_DTYPES),
    unit=st.sampled_from(["", "rad", "m", "m/s", "1"]),
    frame=st.sampled_from(["", "base", "world"]),
    rotation=st.sampled_from(ROTATIONS),
    rate_hz=st.sampled_from([0.0, 20.0, 1000.0]),
)
stream_sets = st.lists(streams, max_size=5, unique_by=lambda s: s.name).map(tuple)
agents = st.builds(AgentSpec, observations=stream_sets, actions=stream_sets)

JOINTS = Stream("joint_pos", (7,), unit="rad")
IMAGE = Stream("front", (64, 64, 3), "uint8", rate_hz=20.0)
POSE = Stream("tcp_quat", (4,), frame="base", rotation="quat_wxyz")
ACTION = Stream("joint_delta", (8,), unit="rad")
ENV = EnvSpec("reach", {"robot": AgentSpec((JOINTS, IMAGE, POSE), (ACTION,))}, control_hz=20.0, episode_steps=60)
POLICY = PolicySpec("mlp", AgentSpec((JOINTS,), (ACTION,)))

CHANGED: dict[str, Any] = {
    "shape": (5,),
    "dtype": "int32",
    "unit": "deg",
    "frame": "world",
    "rotation": "rotvec",
    "rate_hz": 50.0,
}


@given(stream_sets, st.data())
def test_any_part_of_an_offer_fits(offers: tuple[Stream, ...], data: st.DataObject) -> None:
    needs = tuple(data.draw(st.permutations([s for s in offers if data.draw(st.booleans())])))
    match(needs, offers, "policy", "env")


@given(stream_sets)
def test_fields_left_empty_are_not_compared(offers: tuple[Stream, ...]) -> None:
    match(tuple(Stream(s.name, s.shape, s.dtype) for s in offers), offers, "policy", "env")


@given(streams, st.sampled_from(sorted(CHANGED)))
def test_a_field_that_differs_is_named(offer: Stream, field: str) -> None:
    need = replace(offer, **{field: CHANGED[field]})
    if getattr(need, field) == getattr(offer, field):
        return
    with pytest.raises(SpecMismatch) as caught:
        match((need,), (offer,), "policy mlp", "task reach")
    assert caught.value.where == f"stream {offer.name}, field {field}"
    assert repr(CHANGED[field]) in caught.value.what
    assert repr(getattr(offer, field)) in caught.value.what


def test_a_stream_that_is_not_offered_is_named() -> None:
    with pytest.raises(SpecMismatch, match=r"policy mlp needs stream joint_vel.*did you mean joint_pos"):
        match((Stream("joint_vel", (7,)),), (JOINTS, IMAGE), "policy mlp", "task reach")


def test_a_policy_fits_its_environment() -> None:
    POLICY.check_env(ENV)


@pytest.mark.parametrize(
    ("policy", "agent", "says"),
    [
        (POLICY, "left", "has no agent left"),
        (PolicySpec("mlp", AgentSpec((replace(JOINTS, unit="deg"),), (ACTION,))), "robot", "unit 'deg'"),
        (PolicySpec("mlp", AgentSpec((JOINTS,), ())), "robot", "joint_delta"),
        (PolicySpec("mlp", AgentSpec((JOINTS,), (ACTION, Stream("gripper", (1,))))), "robot", "9 action numbers"),
    ],
)
def test_a_policy_for_another_environment_is_refused(policy: PolicySpec, agent: str, says: str) -> None:
    with pytest.raises(SpecMismatch, match=says):
        policy.check_env(ENV, agent)


@pytest.mark.parametrize(
    "bad", [{"name": ""}, {"name": "robot/joint_pos"}, {"dtype": "float64"}, {"dtype": "object"}, {"rotation": "quat"}]
)
def test_streams_are_checked_when_made(bad: dict[str, str]) -> None:
    with pytest.raises(SpecMismatch):
        Stream(**{"name": "x", "shape": (1,), **bad})  # type: ignore[arg-type]


@given(agents)
def test_agent_specs_survive_a_dictionary(spec: AgentSpec) -> None:
    back = AgentSpec.from_dict(spec.to_dict())
    assert back == spec
    assert back.hash == spec.hash
    assert spec.action_dim == sum(s.size for s in spec.actions)


def test_environment_and_policy_specs_survive_a_dictionary() -> None:
    assert EnvSpec.from_dict(ENV.to_dict()) == ENV
    policy = replace(POLICY, chunk=8, execute=4, extra={"hidden": [128, 128], "name": "tanh"})
    assert PolicySpec.from_dict(policy.to_dict()) == policy


@given(agents, streams)
def test_the_hash_changes_with_the_spec(spec: AgentSpec, extra: Stream) -> None:
    assert replace(spec, observations=(*spec.observations, extra)).hash != spec.hash
    assert len(spec.hash) == 12


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(json_values)
def test_what_is_no_spec_is_a_message_error(value: Any) -> None:
    for cls in (AgentSpec, EnvSpec, PolicySpec):
        with pytest.raises(MessageError):
            cls.from_dict(value)


@given(st.sampled_from(["name", "shape", "dtype", "unit", "frame", "rotation", "rate_hz", "other"]), json_values)
def test_a_stream_with_one_wrong_field(field: str, value: Any) -> None:
    """Bytes from a peer: whatever stands in a field, nothing but the project's own errors comes out."""
    spec = POLICY.agent.to_dict()
    spec["observations"][0][field] = value
    with suppress(MessageError, SpecMismatch):
        AgentSpec.from_dict(spec)


@pytest.mark.parametrize(
    "shape", [[math.inf], [-math.inf], [math.nan], [10**400], [2**31], [70000, 70000], [-1], ["x"], 3]
)
@pytest.mark.parametrize("part", ["observations", "actions"])
def test_a_foreign_shape_that_is_none_is_a_message_error(shape: Any, part: str) -> None:
    agent = POLICY.agent.to_dict()
    agent[part][0]["shape"] = shape
    for read in (
        lambda: AgentSpec.from_dict(agent),
        lambda: EnvSpec.from_dict({**ENV.to_dict(), "agents": {"arm": agent}}),
        lambda: PolicySpec.from_dict({**POLICY.to_dict(), "agent": agent}),
        lambda: PolicySpec.from_dict({**POLICY.to_dict(), "stored": agent[part]}),
    ):
        with pytest.raises(MessageError, match=r"^not .* spec") as caught:
            read()
        assert "\n" not in caught.value.line() and len(caught.value.line()) < 700


@pytest.mark.parametrize("count", [math.inf, math.nan, "many", None])
def test_a_foreign_chunk_that_is_no_number_is_a_message_error(count: Any) -> None:
    with pytest.raises(MessageError, match="not a policy's spec"):
        PolicySpec.from_dict({**POLICY.to_dict(), "chunk": count})


def test_the_order_of_agents_is_part_of_an_environments_spec() -> None:
    agent = ENV.agents["robot"]
    two = replace(ENV, agents={"right": agent, "left": agent})
    assert list(EnvSpec.from_dict(json.loads(json.dumps(two.to_dict()))).agents) == ["right", "left"]
    assert EnvSpec.from_dict(two.to_dict()) == two != replace(ENV, agents={"left": agent, "right": agent})


def test_an_agent_is_named_unless_it_is_the_only_one() -> None:
    agent = ENV.agents["robot"]
    assert replace(ENV, agents={"arm": agent}).only_agent == "arm"
    POLICY.check_env(replace(ENV, agents={"arm": agent}))
    two = replace(ENV, agents={"left": agent, "right": agent})
    POLICY.check_env(two, "right")
    with pytest.raises(SpecMismatch, match=r"has 2 agents.*name one of left, right"):
        POLICY.check_env(two)


@pytest.mark.parametrize("field", ["agents", "task", "control_hz"])
def test_an_environment_spec_without_a_field(field: str) -> None:
    env = ENV.to_dict()
    del env[field]
    with pytest.raises(MessageError, match=field):
        EnvSpec.from_dict(env)


def test_streams_that_the_client_fills_are_not_asked_of_the_environment() -> None:
    own = tuple(Stream(name, (1,)) for name in CLIENT_STREAMS)
    agent = AgentSpec((Stream("x", (1,)), *own), (Stream("a", (1,)),))
    env = EnvSpec("t", {"robot": AgentSpec((Stream("x", (1,)),), (Stream("a", (1,)),))}, 20.0)
    PolicySpec("p", agent).check_env(env)


JSON = st.recursive(
    st.integers(-3, 3) | st.text(max_size=2) | st.just(float("nan")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=3),
    max_leaves=12,
)


@given(JSON, JSON)
def test_a_difference_is_found_where_there_is_one(one: Any, two: Any) -> None:
    assert difference(one, json.loads(json.dumps(one))) is None
    found = difference(one, two)
    assert (found is None) == (json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True))
    assert (difference(two, one) is None) == (found is None)


def test_a_policy_of_another_control_rate_is_refused_and_one_of_an_unknown_rate_is_not() -> None:
    POLICY.check_env(ENV)
    replace(POLICY, control_hz=20.0).check_env(ENV)
    with pytest.raises(SpecMismatch, match=r"acts 2 times a second, task reach 20 times \(control_hz\)"):
        replace(POLICY, control_hz=2.0).check_env(ENV)


def test_limits_of_actions_match_where_both_are_stated() -> None:
    def env(limit: float) -> EnvSpec:
        return replace(ENV, agents={"robot": AgentSpec((JOINTS,), (replace(ACTION, limit=limit),))})

    policy = replace(POLICY, agent=AgentSpec((JOINTS,), (replace(ACTION, limit=0.05),)))
    for limit in (0.0, 0.05, 0.05 * (1 + 1e-7)):
        policy.check_env(env(limit))
    with pytest.raises(SpecMismatch, match=r"joint_delta up to 5, .* gives up to 0\.05 .*field limit"):
        policy.check_env(env(5.0))


def test_a_stated_range_and_rate_travel_and_are_not_missed_in_older_specs() -> None:
    ranged = replace(JOINTS, range=(-3, 3))
    policy = PolicySpec("mlp", AgentSpec((ranged,), (ACTION,)), control_hz=20.0)
    told = json.loads(json.dumps(policy.to_dict()))
    assert PolicySpec.from_dict(told) == policy and told["agent"]["observations"][0]["range"] == [-3.0, 3.0]
    older = POLICY.to_dict()
    assert "control_hz" not in older and "range" not in older["agent"]["observations"][0]
    assert difference(older, told) is None and difference(told, older) is None
    found = difference(replace(policy, control_hz=10.0).to_dict(), told)
    assert found is not None and found[0] == "control_hz"
    for bad in ((1.0,), (2.0, 1.0), (math.nan, 1.0)):
        with pytest.raises(SpecMismatch, match="has range"):
            replace(JOINTS, range=bad)
    for value in (-1.0, math.nan, math.inf, True):
        with pytest.raises(SpecMismatch, match="has limit"):
            replace(ACTION, limit=value)
        with pytest.raises(SpecMismatch, match="has rate_hz"):
            replace(JOINTS, rate_hz=value)
