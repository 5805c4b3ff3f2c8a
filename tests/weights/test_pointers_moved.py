"""Pointers: what is served is what was asked for last, a hold holds everybody, and no kill leaves half a move."""

import time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from embodied.errors import CorruptFile, UserError, WeightsHeld, WeightsRefused
from embodied.files import sealed
from embodied.weights.manifest import Manifest
from embodied.weights.pointers import Hold, Pointers
from embodied.weights.registry import Registry
from tests.weights.published import SPEC, active, made_elsewhere, publish, tensors


def test_a_rollback_serves_an_older_version_and_holds_until_resumed(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    publish(registry, 4)
    assert active(registry) == 4
    assert registry.rollback("mlp", by="anna@lab", note="drops the cube").number == 3
    assert active(registry) == 3
    number = registry.reserve("mlp")
    for _ in range(2):
        with pytest.raises(WeightsHeld) as caught:
            registry.publish("mlp", number, tensors(5), SPEC)
        line = caught.value.line()
        assert "anna@lab" in line and "drops the cube" in line and "since 20" in line
        assert f"embodied weights resume weights={tmp_path}" in line and "restore=true" in line
    with pytest.raises(WeightsHeld):
        registry.adopt(*made_elsewhere(9))
    assert registry.publish("mlp", 4, tensors(4), SPEC).number == 4, "what is stored already is no publication"
    assert registry.resume("mlp", by="ben@lab") == registry.find("mlp", 3)
    assert registry.held("mlp") is None and active(registry) == 3, "it is served until the next one is there"
    registry.publish("mlp", number, tensors(5), SPEC)
    assert active(registry) == 5 and registry.pointers("mlp") == Pointers()
    events = [(line["event"], line.get("by"), line.get("from", "")[:1]) for line in registry.audit()]
    assert events[4:] == [("rollback", "anna@lab", "4"), ("resume", "ben@lab", "3"), ("publish", None, "")]
    for back, fourth in ((registry.rollback, 4), (registry.rollback, 3), (registry.rollback, 2)):
        assert back("mlp").number == fourth


def test_a_rollback_prefers_what_has_a_checkpoint(tmp_path: Path) -> None:
    registry = Registry(tmp_path, keep=20)
    publish(registry, 8)
    registry.pair("mlp", {2: 10, 5: 20, 8: 30, 77: 40})
    assert registry.restorable("mlp") == [
        (registry.find("mlp", number), step) for number, step in ((8, 30), (5, 20), (2, 10))
    ]
    assert registry.rollback("mlp").number == 5
    assert registry.rollback("mlp").number == 2
    assert registry.rollback("mlp").number == 1
    with pytest.raises(UserError, match="before 1-"):
        registry.rollback("mlp")
    with pytest.raises(UserError, match="no checkpoint is paired"):
        registry.resume("mlp", restore=True)
    assert registry.rollback("mlp", 6).number == 6
    assert [step for _, step in registry.restorable("mlp")] == [20, 10]


def test_a_restore_is_waited_for(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    publish(registry, 3)
    registry.pair("mlp", {2: 10})
    with pytest.raises(UserError, match="nothing is held"):
        registry.resume("mlp", restore=True)
    registry.rollback("mlp")
    first = registry.held("mlp")
    registry.resume("mlp", restore=True)
    held, number = registry.held("mlp"), registry.reserve("mlp")
    assert held is not None and held.restore
    for given in (None, first, Hold(1.0, restore=True)):
        with pytest.raises(WeightsHeld, match="until its checkpoint is restored"):
            registry.publish("mlp", number, tensors(9), SPEC, restored=given)
    registry.publish("mlp", number, tensors(2), SPEC, restored=held)
    assert active(registry) == number and registry.held("mlp") is None


def test_a_pinned_version_is_served_whatever_is_published(tmp_path: Path) -> None:
    registry = Registry(tmp_path, keep=1)
    publish(registry, 2)
    pinned = registry.pin("mlp", registry.find("mlp", 2).label, by="anna@lab")
    publish(registry, 3)
    assert registry.active("mlp") == pinned
    with pytest.raises(UserError, match=r"2-.*is pinned.*unpin it first"):
        registry.rollback("mlp")
    assert registry.unpin("mlp") == registry.find("mlp", 5)
    registry.unpin("mlp")
    assert [line["event"] for line in registry.audit() if "pin" in line["event"]] == ["pin", "unpin"]
    for number in (99, "2-abcdefabcdef", "x"):
        with pytest.raises(WeightsRefused, match=r"is not kept.*versions kept: "):
            registry.pin("mlp", number)
        with pytest.raises(WeightsRefused, match=r"is not kept.*versions kept: "):
            registry.rollback("mlp", number)
    with pytest.raises(UserError, match="did you mean mlp"):
        registry.pin("mpl", 5)


def test_a_request_sent_again_goes_back_once(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    publish(registry, 4)
    assert [registry.rollback("mlp", request="a/1").number for _ in range(3)] == [3, 3, 3]
    assert Registry(tmp_path).rollback("mlp", request="a/2").number == 2


def test_an_edge_serves_what_upstream_serves_without_a_hold(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    for number in (3, 7, 8):
        registry.adopt(*made_elsewhere(number, number))
    registry.serve("mlp", registry.find("mlp", 3))
    assert active(registry) == 3 and registry.held("mlp") is None
    registry.adopt(*made_elsewhere(5, 5))
    assert active(registry) == 3, "an old one that arrives changes nothing"
    registry.adopt(*made_elsewhere(9, 9))
    assert active(registry) == 9
    registry.rollback("mlp", 3)
    registry.serve("mlp", registry.find("mlp", 3))
    with pytest.raises(WeightsHeld, match="embodied weights resume"):
        registry.serve("mlp", registry.find("mlp", 9))


def test_a_version_made_elsewhere_keeps_its_number(tmp_path: Path) -> None:
    registry = Registry(tmp_path, keep=2)
    manifest, content = made_elsewhere(12)
    registry.adopt(manifest, content)
    registry.adopt(manifest, content)
    assert registry.read("mlp", 12)[0] == manifest
    assert [line["event"] for line in registry.audit()] == ["adopt"]
    assert registry.reserve("mlp") == 13
    with pytest.raises(WeightsRefused, match=f"number 12 already names {manifest.label}"):
        registry.adopt(*made_elsewhere(12, 7.0))
    for number in (20, 21, 22):
        registry.adopt(*made_elsewhere(number, number))
    assert not registry.has("mlp", manifest.version)
    with pytest.raises(WeightsRefused, match=f"number 12 already names {manifest.label}"):
        registry.adopt(*made_elsewhere(12, 7.0))
    registry.adopt(manifest, content)
    assert registry.has("mlp", manifest.version), "an old version that was deleted may come again"


class Stamp:
    """A signer and its truster: the signature is the manifest's label."""

    def sign(self, manifest: Manifest) -> str:
        return manifest.label.encode().hex()

    def check(self, manifest: Manifest, signature: str) -> None:
        if signature != self.sign(manifest):
            raise WeightsRefused("its signature is not trusted", manifest.label, "sign it")


def test_signatures_are_kept_and_looked_at(tmp_path: Path) -> None:
    there, here = Registry(tmp_path / "a", signer=Stamp()), Registry(tmp_path / "b", trusted=Stamp())
    publish(there)
    manifest, content = there.read("mlp", 1)
    signature = there.signature("mlp", 1)
    assert signature == Stamp().sign(manifest) and there.ls()[0].signed
    for wrong in ("", "00"):
        with pytest.raises(WeightsRefused, match="not trusted"):
            here.adopt(manifest, content, wrong)
    here.adopt(manifest, content, signature)
    assert here.read("mlp", 1)[0] == manifest and here.signature("mlp", 1) == signature
    file = here.path("mlp", manifest.version) / "manifest.sig"
    for written in (b"00", b"\xff"):
        file.write_bytes(written)
        with pytest.raises((WeightsRefused, CorruptFile)):
            here.read("mlp", 1)
    file.unlink()
    assert here.signature("mlp", 1) == "" and not here.ls()[0].signed
    with pytest.raises(WeightsRefused, match="not trusted"):
        here.read("mlp", 1)


def test_the_revision_changes_with_every_move_and_version(tmp_path: Path) -> None:
    registry, seen = Registry(tmp_path), set()

    def look() -> None:
        revision = registry.revision("mlp")
        assert revision not in seen
        assert registry.revision("mlp") == revision
        seen.add(revision)

    look()
    publish(registry)
    look()
    for step in (lambda: publish(registry), lambda: registry.pin("mlp", 1), lambda: registry.unpin("mlp"),
                 lambda: registry.rollback("mlp"), lambda: registry.resume("mlp")):  # fmt: skip
        time.sleep(0.02)
        step()
        look()


def test_pointers_are_seen_by_other_registries_at_once(tmp_path: Path) -> None:
    one, two = Registry(tmp_path), Registry(tmp_path)
    publish(one, 5)
    for number in (1, 4, 2, 5, 3) * 4:
        one.pin("mlp", number)
        assert active(two) == number and two.pointers("mlp") == one.pointers("mlp")


@pytest.mark.parametrize(
    "policies",
    [[], {"mlp": 3}, {"mlp": {"pinned": 3}}, {"mlp": {"pinned": "x"}}, {"mlp": {"held": {"time": "now"}}},
     {"mlp": {"held": {"when": 1}}}, {"mlp": {"held": None}}, {"mlp": {"paired": {"1-abcdefabcdef": "x"}}},
     {"mlp": {"held": {"time": 10**400}}}, {"mlp": {"held": {"time": 1e300}}},
     {"mlp": {"paired": []}}, {"mlp": {"previous": "1-abcdefabcdef"}}, {"mlp": {"held": {"time": 1.0, "by": 3}}}],
)  # fmt: skip
def test_pointers_that_make_no_sense_are_one_line(tmp_path: Path, policies: object) -> None:
    publish(Registry(tmp_path))
    (tmp_path / "active.json").write_bytes(sealed({"policies": policies}))
    with pytest.raises(CorruptFile, match=r"not a table of pointers.*active\.json.*delete it"):
        Registry(tmp_path).active("mlp")


def test_pointers_of_an_older_run_are_read_and_written_under_the_new_name(tmp_path: Path) -> None:
    publish(Registry(tmp_path), 2)
    pinned = Registry(tmp_path).find("mlp", 1)
    (tmp_path / "slots.json").write_bytes(sealed({"slots": {"mlp": {"pinned": pinned.label}}}))
    registry = Registry(tmp_path)
    assert registry.active("mlp") == pinned
    assert registry.unpin("mlp") == registry.find("mlp", 2) and not (tmp_path / "slots.json").exists()
    assert Registry(tmp_path).active("mlp") == registry.find("mlp", 2)


class PointerMachine(RuleBasedStateMachine):
    """A registry beside a model of a few lines: whatever is done, they agree, and nothing that is needed is deleted."""

    @initialize()
    def start(self) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.registry = Registry(Path(self.folder.name), keep=3)
        self.newest, self.pinned, self.serving, self.held, self.paired = 0, 0, 0, False, {}

    def teardown(self) -> None:
        self.folder.cleanup()

    def kept(self) -> list[int]:
        return [version.number for version in self.registry.versions("mlp")]

    @rule()
    def publish(self) -> None:
        number = self.registry.reserve("mlp")
        try:
            self.registry.publish("mlp", number, tensors(number), SPEC)
        except WeightsHeld:
            assert self.held
        else:
            assert not self.held
            self.newest, self.serving = number, 0

    @precondition(lambda self: self.newest)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        self.pinned = self.registry.pin("mlp", data.draw(st.sampled_from(self.kept()))).number

    @precondition(lambda self: self.newest)
    @rule()
    def unpin(self) -> None:
        self.registry.unpin("mlp")
        self.pinned = 0

    @precondition(lambda self: self.newest)
    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([*self.kept(), None]))
        try:
            back = self.registry.rollback("mlp", number).number
        except UserError:
            served = self.serving or self.newest
            assert self.pinned or (number is None and min(self.kept()) == served)
        else:
            assert not self.pinned and back == (number or back) and (number or back < (self.serving or self.newest))
            self.serving, self.held = back, True

    @precondition(lambda self: self.newest)
    @rule()
    def resume(self) -> None:
        self.registry.resume("mlp")
        self.held = False

    @precondition(lambda self: self.newest)
    @rule(data=st.data())
    def pair(self, data: st.DataObject) -> None:
        self.paired = dict.fromkeys(data.draw(st.lists(st.sampled_from(self.kept()), max_size=2)), 10)
        self.registry.pair("mlp", self.paired)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "registry"):
            return
        assert active(self.registry) == (self.pinned or self.serving or self.newest)
        assert (self.registry.held("mlp") is not None) == self.held
        assert {self.pinned, self.serving, self.newest, *self.paired} - {0} <= set(self.kept())
        assert len(self.kept()) <= 3 + 2 + len(self.paired)


PointerMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
TestPointerMachine = PointerMachine.TestCase
