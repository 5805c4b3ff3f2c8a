"""Manifests: what is published is what is verified, and nothing else passes."""

import json
import subprocess
import sys

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from embodied.errors import EmbodiedError, MessageError, WeightsRefused
from embodied.weights.examine import numpy_dtype
from embodied.weights.manifest import DTYPES, Manifest, Version, content_hash

SPEC = {"name": "mlp", "chunk": 2}

FINITE = {"allow_nan": False, "allow_infinity": False}
ELEMENTS = {"float16": FINITE, "float32": FINITE, "float64": FINITE, "bfloat16": {"max_value": 0x7F7F}}
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(
        numpy_dtype(dtype).name,
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        elements=ELEMENTS.get(dtype),
    )
)
tensor_sets = st.dictionaries(st.text("abc./_", min_size=1, max_size=8), arrays, max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


def tensors() -> dict[str, np.ndarray]:
    return {
        "env.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "env.bias": np.zeros(3, np.float32),
        "steps": np.array(7, np.int64),
    }


@given(tensor_sets)
@settings(deadline=None)
def test_what_was_published_verifies_after_the_wire(sent: dict[str, np.ndarray]) -> None:
    manifest = Manifest.of("mlp", 3, sent, SPEC, parent="2-ab12cd34ef56")
    again = Manifest.from_dict(json.loads(json.dumps(manifest.to_dict())))
    assert again == manifest
    again.verify({name: array.copy() for name, array in sent.items()})
    assert again.nbytes == sum(array.nbytes for array in sent.values())


@given(tensor_sets.filter(lambda sent: any(a.size for a in sent.values())), st.data())
@settings(deadline=None)
def test_one_flipped_bit_is_refused_and_named(sent: dict[str, np.ndarray], data: st.DataObject) -> None:
    manifest = Manifest.of("mlp", 3, sent, SPEC)
    name = data.draw(st.sampled_from(sorted(n for n, a in sent.items() if a.size)))
    raw = bytearray(sent[name].tobytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    altered = np.frombuffer(bytes(raw), sent[name].dtype).reshape(sent[name].shape)
    with pytest.raises(WeightsRefused) as caught:
        manifest.verify({**sent, name: altered})
    assert f"tensor {name} " in caught.value.what
    assert manifest.label in caught.value.where


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("steps"), "tensor steps is missing"),
        (lambda t: t.update(more=np.zeros(1)), "tensor more is not in the manifest"),
        (lambda t: (t.pop("steps"), t.pop("env.bias")), "tensor env.bias and 1 more are missing"),
        (lambda t: t.update({"env.weight": t["env.weight"].T}), "env.weight has shape (3, 2), published as (2, 3)"),
        (lambda t: t.update({"env.bias": np.zeros(3)}), "env.bias has dtype float64, published as float32"),
        (
            lambda t: t.update({"env.bias": np.full(3, np.nan, np.float32)}),
            "env.bias holds numbers that are not finite",
        ),
        (lambda t: t.update({"steps": np.array(8)}), "tensor steps has other content"),
    ],
)
def test_a_refusal_says_what_differs(change, words: str) -> None:
    manifest, arrived = Manifest.of("mlp", 1, tensors(), SPEC), tensors()
    change(arrived)
    with pytest.raises(WeightsRefused) as caught:
        manifest.verify(arrived)
    assert words in caught.value.line()


def test_the_hash_is_of_content_alone() -> None:
    sent = tensors()
    one = Manifest.of("mlp", 1, sent, SPEC)
    reordered = dict(reversed([(n, a.copy(order="F")) for n, a in sent.items()]))
    assert Manifest.of("other", 9, reordered, {}).hash == one.hash
    big_endian = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in sent.items()}
    assert Manifest.of("mlp", 1, big_endian, SPEC).hash == one.hash
    renamed = {("x" if name == "steps" else name): array for name, array in sent.items()}
    assert Manifest.of("mlp", 1, renamed, SPEC).hash != one.hash
    reshaped = sent | {"env.weight": sent["env.weight"].reshape(3, 2)}
    assert Manifest.of("mlp", 1, reshaped, SPEC).hash != one.hash
    assert Manifest.of("mlp", 1, sent, {"name": "mlp", "chunk": 3}).spec_hash != one.spec_hash


def test_weights_that_are_not_finite_are_never_published() -> None:
    with pytest.raises(WeightsRefused, match=r"tensor a holds numbers that are not finite .*last good checkpoint"):
        Manifest.of("mlp", 1, {"a": np.array([1.0, np.inf])}, SPEC)
    with pytest.raises(WeightsRefused, match="tensor a has dtype complex128"):
        Manifest.of("mlp", 1, {"a": np.zeros(2, complex)}, SPEC)


@given(json_values)
@settings(deadline=None)
def test_any_json_is_a_manifest_or_a_message_error(value: object) -> None:
    with pytest.raises(MessageError):
        Manifest.from_dict(value)


@given(st.data(), json_values)
@settings(deadline=None, max_examples=200)
def test_a_manifest_with_one_part_replaced_never_breaks_its_reader(data: st.DataObject, value: object) -> None:
    message = Manifest.of("mlp", 1, tensors(), SPEC).to_dict()
    target, keys = message, sorted(message)
    if data.draw(st.booleans()):
        target = message["tensors"]
        keys = sorted(target)
    target[data.draw(st.sampled_from(keys))] = value
    try:
        Manifest.from_dict(message)
    except EmbodiedError as error:
        assert type(error) is MessageError


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(policy="../etc"),
        lambda m: m.update(number=True),
        lambda m: m.update(number=-1),
        lambda m: m.update(hash="0" * 64),
        lambda m: m.update(created=float("nan")),
        lambda m: m.update(created=10**400),
        lambda m: m.update(created=1e300),
        lambda m: m.update(parent="newest"),
        lambda m: m.update(extra=1),
        lambda m: m.pop("spec"),
        lambda m: m["tensors"]["steps"].__setitem__(0, [2**62, 2**62]),
        lambda m: m["tensors"]["steps"].__setitem__(0, [-1]),
        lambda m: m["tensors"]["steps"].__setitem__(1, "object"),
    ],
)
def test_out_of_bounds_fields_are_message_errors(change) -> None:
    message = Manifest.of("mlp", 1, tensors(), SPEC).to_dict()
    change(message)
    with pytest.raises(MessageError):
        Manifest.from_dict(message)


def test_more_bytes_than_allowed_are_refused_before_allocation() -> None:
    message = Manifest.of("mlp", 1, tensors(), SPEC).to_dict()
    message["tensors"]["steps"][0] = [2**38]
    listed = Manifest.of("mlp", 1, tensors(), SPEC).tensors
    message["hash"] = content_hash({**listed, "steps": listed["steps"]._replace(shape=(2**38,))})
    with pytest.raises(MessageError, match="bytes"):
        Manifest.from_dict(message)


def test_labels() -> None:
    version = Version(12, "ab12cd34ef56")
    assert version.label == "12-ab12cd34ef56"
    assert Version.parse(version.label) == version
    for wrong in ("", "12", "12-xyz", "-1-ab12cd34ef56", "012-ab12cd34ef56", "12-ab12cd34ef567", "12-ab12cd34ef56\n"):
        with pytest.raises(MessageError):
            Version.parse(wrong)


def test_manifests_need_neither_torch_nor_safetensors() -> None:
    code = (
        "import sys; sys.modules.update(torch=None, safetensors=None);"
        "import embodied.weights.manifest, embodied.weights.registry"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
