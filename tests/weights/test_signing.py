"""Signatures of versions: made, checked, and broken by any change."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embodied.errors import UserError, WeightsRefused
from embodied.weights import signing
from embodied.weights.manifest import Manifest, Tensor
from embodied.weights.signing import Signer, Trusted, create_signing_keys

TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(1, np.int64)}
MANIFEST = Manifest.of("tiny", 7, TENSORS, {"name": "tiny", "rate": 20.0, "more": [1, {"é": None}]}, "6-0123456789ab")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    create_signing_keys(folder)
    return folder


@pytest.fixture(scope="module")
def signer(folder: Path) -> Signer:
    found = Signer.from_folder(folder)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def trusted(folder: Path) -> Trusted:
    found = Trusted.from_folder(folder)
    assert found is not None
    return found


def refused(trusted: Trusted, manifest: Manifest, signature: Any, said: str) -> None:
    with pytest.raises(WeightsRefused) as caught:
        trusted.check(manifest, signature)
    line = caught.value.line()
    assert said in line and "\n" not in line and manifest.label in line and caught.value.fix


def test_what_was_signed_is_taken_however_it_travelled(signer: Signer, trusted: Trusted) -> None:
    signature = signer.sign(MANIFEST)
    assert len(signature) == 192 and signature.startswith(signer.public)
    trusted.check(MANIFEST, signature)
    trusted.check(Manifest.from_dict(json.loads(json.dumps(MANIFEST.to_dict()))), signature)
    backwards = dict(reversed(MANIFEST.to_dict().items()))
    backwards["tensors"] = dict(reversed(backwards["tensors"].items()))
    trusted.check(Manifest.from_dict(backwards), signature)
    whole = dataclasses.replace(MANIFEST, created=5)
    trusted.check(Manifest.from_dict(whole.to_dict()), signer.sign(whole))


def test_unsigned_strange_and_altered_versions_are_told_apart(signer: Signer, trusted: Trusted, tmp_path: Path) -> None:
    create_signing_keys(tmp_path)
    stranger = Signer(tmp_path / "signing.key_secret")
    good = signer.sign(MANIFEST)
    refused(trusted, MANIFEST, "", "it is not signed")
    refused(trusted, MANIFEST, stranger.sign(MANIFEST), f"key {stranger.public[:16]}..., which is not trusted here")
    refused(trusted, MANIFEST, signer.public + stranger.sign(MANIFEST)[64:], "was altered")
    refused(trusted, dataclasses.replace(MANIFEST, number=8), good, "was altered")
    for nonsense in (good[:-2], good + "00", good.upper(), good + "\n", "é" * 192, 5, b"x", None, ["x"]):
        refused(trusted, MANIFEST, nonsense, "hex digits" if nonsense else "not signed")


CHANGES: dict[str, Any] = {
    "policy": "tinz", "number": 8, "hash": "0" * 64, "spec": {**MANIFEST.spec, "rate": 21.0}, "parent": "",
    "created": MANIFEST.created + 1e-6, "tensors": {**MANIFEST.tensors, "a": Tensor((3, 2), "float32", "0" * 32)},
}  # fmt: skip


def test_every_field_is_signed(signer: Signer, trusted: Trusted) -> None:
    assert set(CHANGES) == {field.name for field in dataclasses.fields(Manifest)}
    for name, value in CHANGES.items():
        assert value != getattr(MANIFEST, name)
        refused(trusted, dataclasses.replace(MANIFEST, **{name: value}), signer.sign(MANIFEST), "altered")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
specs = st.dictionaries(st.text(max_size=5), json_values, max_size=4)
QUICK = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICK
@given(one=specs, two=specs)
def test_specs_are_signed_as_they_are(
    signer: Signer, trusted: Trusted, one: dict[str, Any], two: dict[str, Any]
) -> None:
    left, right = dataclasses.replace(MANIFEST, spec=one), dataclasses.replace(MANIFEST, spec=two)
    signature = signer.sign(left)
    trusted.check(dataclasses.replace(left, spec=json.loads(json.dumps(one))), signature)
    if json.dumps(one, sort_keys=True) != json.dumps(two, sort_keys=True):
        refused(trusted, right, signature, "altered")


@QUICK
@given(place=st.integers(0, 191), digit=st.sampled_from("0123456789abcdef"))
def test_any_changed_digit_breaks_it(signer: Signer, trusted: Trusted, place: int, digit: str) -> None:
    good = signer.sign(MANIFEST)
    changed = good[:place] + digit + good[place + 1 :]
    if changed != good:
        refused(trusted, MANIFEST, changed, "")


def test_several_keys_may_be_trusted(folder: Path, signer: Signer, tmp_path: Path) -> None:
    create_signing_keys(tmp_path)
    other = Signer.from_folder(tmp_path)
    assert other is not None
    (tmp_path / "signing-lab.key").write_bytes((folder / "signing.key").read_bytes())
    for trusted in (Trusted.from_folder(tmp_path), Trusted([other.public, folder / "signing.key"])):
        assert trusted is not None
        for one in (signer, other):
            trusted.check(MANIFEST, one.sign(MANIFEST))
    refused(Trusted([folder / "signing.key"]), MANIFEST, other.sign(MANIFEST), "not trusted")


def test_which_files_there_are_decides(tmp_path: Path, folder: Path) -> None:
    assert Signer.from_folder(None) is None and Trusted.from_folder(None) is None
    assert Signer.from_folder(tmp_path) is None and Trusted.from_folder(str(tmp_path)) is None
    (tmp_path / "signing.key").write_bytes((folder / "signing.key").read_bytes())
    assert Signer.from_folder(tmp_path) is None and Trusted.from_folder(tmp_path) is not None


def test_secrets_are_their_owners(folder: Path) -> None:
    assert (folder / "signing.key_secret").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match="exist already"):
        create_signing_keys(folder)


@pytest.mark.parametrize("text", ["", "zz" * 32, "00" * 31, "00" * 33, "\xff" * 64, "x" * 10_000])
def test_bad_key_files_are_one_line(tmp_path: Path, text: str) -> None:
    for name, read in (("signing.key_secret", Signer.from_folder), ("signing.key", Trusted.from_folder)):
        (tmp_path / name).write_bytes(text.encode("latin-1"))
        with pytest.raises(UserError) as caught:
            read(tmp_path)
        assert name in caught.value.line() and "\n" not in caught.value.line()
    with pytest.raises(UserError):
        Signer(tmp_path / "missing")
    with pytest.raises(UserError, match="no key is trusted"):
        Trusted([])


def test_without_cryptography_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.asymmetric", None)
    for read in (signing.Signer.from_folder, signing.Trusted.from_folder):
        with pytest.raises(UserError, match=r"\[serve\]"):
            read(folder)
