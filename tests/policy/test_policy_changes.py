"""Changes of a policy: who may make them, in which order, and what is refused."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hpcdet.errors import HpcdetError, Unavailable
from hpcdet.policy.changes import change_records, policy_history, strictness
from hpcdet.policy.changes.change_writer import ChangeWriter, approve
from hpcdet.policy.changes.policy_in_effect import PolicyInEffect, in_effect
from hpcdet.policy.codes import RESUME_CODES, GovernanceBroken, PolicyRefused
from hpcdet.policy.compiled import (
    Canaries,
    Changes,
    CompiledPolicy,
    Coverage,
    DataSource,
    FileDigest,
    LayerGroup,
    LedgerRules,
    Memorization,
    PolicyText,
    Requires,
    TrustedKey,
    Twins,
    UseAgreement,
)
from hpcdet.policy.keys import key_files
from hpcdet.policy.ledger.records import LedgerOwner
from hpcdet.policy.ledger.writer import LedgerWriter
from hpcdet.store.config.resolved_config import Governance
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files

LEE, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
TODAY = datetime.date(2027, 6, 1)
BASE = CompiledPolicy(
    name="onc",
    version=1,
    text_digest="sha256:00",
    layers=(LayerGroup("low", "^l"), LayerGroup("head", "^h")),
    sources=(DataSource("a"), DataSource("b", agreement=UseAgreement("DUA-1", "2027-12-31"))),
    matrix=((1.0, 1.0), (0.5, 1.0)),
    trust=(
        TrustedKey("pi-lee", "policy", key_files.public(LEE)),
        TrustedKey("steward", "data", key_files.public(OTHER)),
    ),
)


def other(*, matrix: Any = BASE.matrix, **changes: Any) -> CompiledPolicy:
    return dataclasses.replace(BASE, version=2, matrix=matrix, **changes)


def text(policy: CompiledPolicy) -> PolicyText:
    return PolicyText(f"name: {policy.name}\n", policy)


TIGHT = other(matrix=((1.0, 1.0), (0.0, 1.0)))
LOOSE = other(matrix=((1.0, 1.0), (1.0, 1.0)))
MIXED = other(matrix=((1.0, 0.0), (1.0, 1.0)))


@dataclasses.dataclass
class Folder:
    """An experiment as far as its policy goes."""

    paths: ExperimentPaths
    governance: Governance

    def writer(self) -> ChangeWriter:
        return ChangeWriter(self.paths, self.governance)

    def load(self) -> policy_history.PolicyHistory:
        return policy_history.load(self.paths, self.governance)

    def broken(self) -> tuple[str, str]:
        with pytest.raises(GovernanceBroken) as found:
            self.load()
        return found.value.check, f"{found.value.what} {found.value.hint}"

    def record(self, number: int) -> Path:
        return self.paths.policy_changes / f"{number:04d}.json"


def made(root: Path, policy: CompiledPolicy = BASE, name: str = "onc-7f3a") -> Folder:
    paths = ExperimentPaths(root / name)
    paths.root.mkdir(parents=True)
    paths.compiled_policy.write_text(policy.to_json())
    secret = Ed25519PrivateKey.generate().private_bytes_raw().hex()
    paths.secrets.write_text(json.dumps({"governance.run_key": secret}))
    paths.secrets.chmod(0o600)
    stored = {"stored": "governance.run_key"}
    return Folder(paths, Governance(policy="policy.yaml", run_key=stored, digest=policy.digest))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return made(tmp_path)


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(PolicyRefused) as found:
        call()
    return f"{found.value.what} {found.value.hint}"


def test_tightening_needs_nobody_and_records_are_in_order(folder: Folder) -> None:
    assert folder.load().newest == BASE
    written = folder.writer().change(text(TIGHT), "the owner asked for it")
    assert (written.change.kind, written.path.name) == ("tighten", "0001.json")
    assert written.path.stat().st_mode & 0o777 == 0o600
    folder.writer().revoke("b", "withdrawn")
    found = folder.load()
    assert [one.act for one in found.changes] == ["change", "revoke"]
    assert found.policies == (BASE, TIGHT, TIGHT.denying({"b"}))
    assert found.newest.matrix == ((1.0, 1.0), (0.0, 0.0))
    assert policy_history.load(folder.paths, folder.governance, own=False).newest == found.newest


@pytest.mark.parametrize("wanted", [LOOSE, MIXED])
def test_loosening_needs_a_key_that_the_policy_trusts(folder: Folder, wanted: Any) -> None:
    run = key_files.public(Ed25519PrivateKey.generate())
    said = refused(lambda: folder.writer().change(text(wanted), "why"))
    assert said.startswith("G108: the change (") and "needs 1 approvals, and has 0" in said
    assert "pi-lee" in said
    for wrong in (
        approve(wanted, OTHER, BASE.digest),
        approve(TIGHT, LEE, BASE.digest),
        approve(wanted, LEE, TIGHT.digest),
        approve(wanted, LEE, BASE.digest, run),
    ):
        assert "has 0" in refused(lambda w=wrong: folder.writer().change(text(wanted), "why", [w]))
    assert "does not trust the key" in refused(
        lambda: folder.writer().change(text(wanted), "why", by=OTHER)
    )
    assert not folder.paths.policy_changes.exists()
    folder.writer().change(text(wanted), "why", by=LEE)
    assert folder.load().newest == wanted


def test_an_approval_made_elsewhere_counts(folder: Folder) -> None:
    folder.writer().change(text(LOOSE), "why", [approve(LOOSE, LEE, BASE.digest)])
    assert folder.load().newest == LOOSE


def test_an_approval_is_of_one_change_and_counts_once(folder: Folder) -> None:
    approval = approve(LOOSE, LEE, BASE.digest)
    folder.writer().change(text(LOOSE), "why", [approval])
    folder.writer().revoke("b", "withdrawn")
    said = refused(lambda: folder.writer().change(text(LOOSE), "again", [approval]))
    assert "its version is 2, and that of the policy in effect 2" in said and "version: 3" in said
    third = dataclasses.replace(LOOSE, version=3)
    elsewhere = approve(third, LEE, LOOSE.digest)  # of the policy before the source was withdrawn
    assert "has 0" in refused(lambda: folder.writer().change(text(third), "why", [elsewhere]))
    assert folder.load().newest == LOOSE.denying({"b"})
    folder.writer().change(text(third), "back", by=LEE)
    for old in (BASE, LOOSE, TIGHT):  # nothing that was in effect ever is again
        assert "count up" in refused(lambda one=old: folder.writer().change(text(one), "why"))


def test_several_approvals_are_of_several_keys(tmp_path: Path) -> None:
    trust = (*BASE.trust, TrustedKey("second", "policy", key_files.public(OTHER)))
    base = dataclasses.replace(BASE, trust=trust, changes=Changes(1, 2))
    folder = made(tmp_path, base)
    tight = dataclasses.replace(TIGHT, trust=trust, changes=Changes(1, 2))
    loose = dataclasses.replace(LOOSE, trust=trust, changes=Changes(1, 2))
    assert "needs 1 approvals" in refused(lambda: folder.writer().change(text(tight), "why"))
    twice = [approve(loose, LEE, base.digest), approve(loose, LEE, base.digest)]
    said = refused(lambda: folder.writer().change(text(loose), "why", twice))
    assert "needs 2 approvals, and has 1" in said
    folder.writer().change(text(loose), "why", [approve(loose, OTHER, base.digest)], by=LEE)
    assert folder.load().newest == loose


def test_keys_of_the_new_policy_approve_nothing(folder: Folder) -> None:
    mine = TrustedKey("me", "policy", key_files.public(OTHER))
    loose = dataclasses.replace(LOOSE, trust=(*BASE.trust, mine))
    approval = approve(loose, OTHER, BASE.digest)
    assert "has 0" in refused(lambda: folder.writer().change(text(loose), "why", [approval]))


def test_a_key_that_a_change_has_withdrawn_approves_nothing_any_more(tmp_path: Path) -> None:
    second = TrustedKey("second", "policy", key_files.public(OTHER))
    run = TrustedKey("site", "run", key_files.public(third := Ed25519PrivateKey.generate()))
    base = dataclasses.replace(BASE, trust=(*BASE.trust, second, run))
    folder = made(tmp_path, base)
    without = dataclasses.replace(base, version=2, trust=(second, run))
    loose = dataclasses.replace(without, version=3, matrix=LOOSE.matrix)
    before = approve(loose, LEE, base.digest)
    assert folder.writer().change(text(without), "her key was lost").change.kind == "tighten"
    for wrong in (
        before,
        approve(loose, LEE, without.digest),
        approve(loose, third, without.digest),
    ):
        assert "has 0" in refused(lambda w=wrong: folder.writer().change(text(loose), "why", [w]))
    folder.writer().change(text(loose), "why", [approve(loose, OTHER, without.digest)])
    assert folder.load().newest == loose


FIXED: dict[str, dict[str, Any]] = {
    "layers": {"layers": (LayerGroup("low", "^x"), BASE.layers[1])},
    "sources": {"sources": BASE.sources[:1], "matrix": BASE.matrix[:1]},
    "normalize": {"normalize": "global"},
    "memorization": {"memorization": Memorization()},
    "requires": {"requires": Requires(("enclave",))},
    "coverage.min": {"coverage": Coverage(0.5)},
}


@pytest.mark.parametrize("what", FIXED)
def test_what_an_experiment_rests_on_cannot_change(folder: Folder, what: str) -> None:
    wanted = dataclasses.replace(BASE, **FIXED[what])
    said = refused(lambda: folder.writer().change(text(wanted), "why", by=LEE))
    assert what in said and "cannot change while an experiment lives" in said
    assert "searcher.begin_from" in said


def until(day: str) -> DataSource:
    return DataSource("b", agreement=UseAgreement("DUA-1", day))


RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing but its text": ("same", {"text_digest": "sha256:11"}),
    "assurance": ("loosen", {"assurance": "direct"}),
    "assures more": ("tighten", {"assurance": "isolated"}),
    "drops unknown sources": ("loosen", {"unknown_source": "drop"}),
    "rejects mixtures": ("tighten", {"mixed": "reject"}),
    "asks for less coverage": ("loosen", {"coverage": Coverage(0.5)}),
    "a key more": (
        "loosen",
        {"trust": (*BASE.trust, TrustedKey("x", "data", "ab" * 32))},
    ),
    "a key less": ("tighten", {"trust": BASE.trust[:1]}),
    "who signs": ("tighten", {"trust": (*BASE.trust, TrustedKey("x", "run", "ab" * 32))}),
    "an anchor": ("tighten", {"ledger": LedgerRules(anchor=("syslog",))}),
    "no approvals": ("loosen", {"changes": Changes(0, 0)}),
    "stops": ("tighten", {"changes": Changes(revoke="stop")}),
    "never probes": ("loosen", {"probe_every": 0}),
    "a longer agreement": (
        "loosen",
        {
            "sources": (
                BASE.sources[0],
                DataSource("b", agreement=UseAgreement("DUA-1", "2031-01-01")),
            )
        },
    ),
    "a shorter agreement": (
        "tighten",
        {
            "sources": (
                BASE.sources[0],
                DataSource("b", agreement=UseAgreement("DUA-1", "2027-01-01")),
            )
        },
    ),
    "no agreement": ("loosen", {"sources": (BASE.sources[0], DataSource("b"))}),
    "other labels": (
        "mixed",
        {"sources": (DataSource("a", {"license": "MIT"}), BASE.sources[1])},
    ),
}


@pytest.mark.parametrize("what", RULES)
def test_rules_beside_weights_are_rules(what: str) -> None:
    kind, changes = RULES[what]
    assert strictness.kind_between(BASE, dataclasses.replace(BASE, **changes)) == kind
    tight = dataclasses.replace(TIGHT, **changes)
    assert strictness.kind_between(BASE, tight) == (
        "tighten" if kind in ("same", "tighten") else "mixed"
    )


FULL = dataclasses.replace(
    BASE,
    sources=(
        DataSource("a", {"license": "MIT"}, share=0.4),
        DataSource(
            "b",
            manifest=FileDigest("b.json", "sha256:1"),
            chain=FileDigest("b.chain", "sha256:2"),
            agreement=UseAgreement("DUA-1", "2027-12-31", ("enclave",)),
        ),
    ),
    memorization=Memorization(Twins(), Canaries()),
)
"""A policy in which every key has a value."""

OTHERWISE: dict[str, Any] = {
    "assurance": "direct",
    "normalize": "global",
    "unknown_source": "drop",
    "mixed": "reject",
    "entropy.on_violation": "hold",
    "memorization.on_violation": "warn",
    "requires.statement": "signed",
    "changes.revoke": "stop",
    "ablation": "allowed",
    "trust.role": "run",
    "sources.agreement.expires": "2027-12-30",
    "layers.depth": (0.5, 1.0),
    "matrix": ((1.0, 1.0), (0.25, 1.0)),
}
"""Other values of keys of which not every value is possible."""


def varied(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each dotted key of a policy, and the policy with another value of it alone."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for one in dataclasses.fields(value):
            for inner, changed in varied(getattr(value, one.name), f"{key}.{one.name}".strip(".")):
                # the control of an ablation alone assures nothing
                none = {"assurance": "none"} if inner == "ablates" else {}
                yield inner, dataclasses.replace(value, **{one.name: changed}, **none)
    elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        for place, item in enumerate(value):
            for inner, changed in varied(item, key):
                yield inner, (*value[:place], changed, *value[place + 1 :])
    elif value is not None:
        kinds: dict[type, Callable[[Any], Any]] = {
            bool: lambda x: not x,
            int: lambda x: x + 1,
            float: lambda x: x / 2 + 0.15,
            str: lambda x: f"{x}x",
            tuple: lambda x: (*x, "more"),
            dict: lambda x: {**x, "more": (0.0, 0.0)},
        }
        yield key, OTHERWISE.get(key) or kinds[type(value)](value)


EVERY = [(key, number) for number, (key, _) in enumerate(varied(FULL))]


@pytest.mark.parametrize(("key", "number"), EVERY)
def test_every_key_of_a_policy_is_a_rule_or_said_to_be_none(key: str, number: int) -> None:
    """A key that comes later is decided upon in ``strictness``, too."""
    changed = list(varied(FULL))[number][1]
    assert changed != FULL
    found = strictness.kind_between(FULL, changed) != "same"
    found |= strictness.fixed_difference(FULL, changed) != ""
    assert found != (key in strictness.COSMETIC), key


def test_what_has_no_order_is_neither_less_nor_more() -> None:
    shorter = dataclasses.replace(BASE, ledger=LedgerRules(segment_records=10))
    assert strictness.kind_between(BASE, shorter) == "tighten"
    assert strictness.kind_between(shorter, BASE) == "loosen"
    more = (dataclasses.replace(BASE.layers[0], min_mass=0.2), BASE.layers[1])
    assert strictness.kind_between(BASE, dataclasses.replace(BASE, layers=more)) == "tighten"
    shared = (dataclasses.replace(BASE.sources[0], share=0.2), BASE.sources[1])
    assert strictness.kind_between(BASE, dataclasses.replace(BASE, sources=shared)) == "mixed"


def twice(folder: Folder) -> None:
    folder.writer().change(text(TIGHT), "first")
    folder.writer().revoke("b", "second")


def forged(path: Path, key: Ed25519PrivateKey, **changes: Any) -> None:
    """Write a record anew, as another key's."""
    found = json.loads(path.read_bytes())
    payload = json.loads(base64.b64decode(found["record"]["payload"]))["predicate"]
    change = change_records.PolicyChange(**{**payload, **changes})
    path.unlink()
    path.write_bytes(change_records.to_file(change_records.sign(change, key), found["approvals"]))


def own_key(folder: Folder) -> Ed25519PrivateKey:
    secret = json.loads(folder.paths.secrets.read_text())["governance.run_key"]
    return key_files.parse(secret, "")


def flipped(folder: Folder) -> None:
    data = bytearray(folder.record(1).read_bytes())
    data[data.index(b'"payload":"') + 40] ^= 1
    folder.record(1).write_bytes(data)


def edited(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))


def swapped(folder: Folder) -> None:
    first, second = folder.record(1).read_bytes(), folder.record(2).read_bytes()
    folder.record(1).write_bytes(second)
    folder.record(2).write_bytes(first)


TAMPERS: dict[str, tuple[str, str, Callable[[Folder], Any]]] = {
    "the first is gone": ("G108", "0001 of the policy is missing", lambda f: f.record(1).unlink()),
    "a byte": ("G102", "", flipped),
    "torn": ("G102", "no JSON (", lambda f: f.record(2).write_bytes(f.record(2).read_bytes()[:99])),
    "empty": ("G102", "no JSON, but empty", lambda f: f.record(2).write_bytes(b"")),
    "of zeros": ("G102", "no JSON", lambda f: f.record(2).write_bytes(bytes(4096))),
    "a list": ("G102", "no record of a change", lambda f: f.record(2).write_text("[]")),
    "no version": ("G101", "says no version", lambda f: f.record(2).write_text("{}")),
    "no record": ("G102", "has no 'record'", lambda f: edited(f.record(2), record=None)),
    "no approvals": ("G102", "has no 'approvals'", lambda f: edited(f.record(2), approvals={})),
    "no envelope": ("G102", "no signed statement", lambda f: edited(f.record(2), record={})),
    "a folder": (
        "G102",
        "cannot read it",
        lambda f: (f.record(2).unlink(), f.record(2).mkdir(mode=0o700)),
    ),
    "a pipe": (
        "G102",
        "cannot read it",
        lambda f: (f.record(2).unlink(), os.mkfifo(f.record(2), 0o600)),
    ),
    "too large": (
        "G102",
        "cannot read it",
        lambda f: os.truncate(f.record(2), change_records.LARGEST + 1),
    ),
    "no folder": (
        "G108",
        "cannot list",
        lambda f: (shutil.rmtree(f.paths.policy_changes), f.paths.policy_changes.touch()),
    ),
    "version": (
        "G101",
        "version",
        lambda f: f.record(1).write_text(f.record(1).read_text().replace("change/1", "change/2")),
    ),
    "swapped": ("G108", "does not follow", swapped),
    "another's": ("G102", "", lambda f: forged(f.record(2), OTHER)),
    "renumbered": ("G108", "does not follow", lambda f: f.record(2).rename(f.record(1))),
    "a gap": ("G108", "0002 of the policy is missing", lambda f: f.record(2).rename(f.record(3))),
    "its group may write": ("G108", "changed by everybody", lambda f: f.record(1).chmod(0o666)),
    "all may add": ("G108", "may be changed", lambda f: f.paths.policy_changes.chmod(0o777)),
    "a link into nothing": (
        "G108",
        "names are 0001.json",
        lambda f: (f.record(2).unlink(), os.symlink("nowhere", f.record(2))),
    ),
}


@pytest.mark.parametrize("how", TAMPERS)
def test_each_tamper_of_the_records_is_found(folder: Folder, how: str) -> None:
    twice(folder)
    folder.load()
    code, words, tamper = TAMPERS[how]
    tamper(folder)
    found = folder.broken()
    assert found[0] == code and words in found[1], found
    with pytest.raises(GovernanceBroken) as error:
        folder.load()
    assert str(folder.paths.policy_changes) in error.value.where and error.value.hint
    assert "Error(" not in f"{error.value}"


def test_the_owner_cannot_forge_what_only_others_may_allow(folder: Folder) -> None:
    """The run key is the owner's: what it signs is checked all the same."""
    folder.writer().change(text(TIGHT), "first")
    key = own_key(folder)
    kept = folder.record(1).read_bytes()
    older = dataclasses.replace(TIGHT, version=1)
    forgeries: list[dict[str, Any]] = [
        {"policy": older.to_json(), "after": older.digest},
        {"policy": LOOSE.to_json(), "after": LOOSE.digest, "kind": "tighten"},
        {"after": BASE.digest},
        {"before": LOOSE.digest},
        {"act": "revoke", "source": "b"},
        {"act": "override", "code": "G115", "after": BASE.digest},
        {"act": "override", "code": "G108", "after": BASE.digest},
    ]
    for changes in forgeries:
        forged(folder.record(1), key, **changes)
        assert folder.broken()[0] == "G108", changes
        folder.record(1).write_bytes(kept)
    folder.load()


def test_changes_that_a_trial_has_trained_with_cannot_be_taken_away(folder: Folder) -> None:
    twice(folder)
    seen = len(folder.load().changes), folder.load().last
    ledger = folder.paths.trial(2).attempt(3).ledger
    LedgerWriter(ledger, LedgerOwner("onc-7f3a", 2, 3), changes=seen).abandon()
    LedgerWriter(folder.paths.trial(1).attempt(1).ledger, LedgerOwner("onc-7f3a", 1, 1)).abandon()
    later = folder.paths.trial(2).attempt(4).ledger
    files.make_folder(later.parent)
    later.write_bytes(b"torn")  # it was killed before it could say so
    folder.load()
    kept = folder.record(2).read_bytes()
    forged(folder.record(2), own_key(folder), reason="another")
    assert folder.broken()[0] == "G108" and "is another one" in folder.broken()[1]
    folder.record(2).unlink()
    code, words = folder.broken()
    assert code == "G108" and "change 0002 of the policy is gone: attempt 3 of trial 2" in words
    with pytest.raises(GovernanceBroken, match="G108"):
        folder.writer()
    folder.record(2).write_bytes(kept)
    folder.writer().override("G117", "goes on")
    assert len(folder.load().changes) == 3


def test_records_of_another_experiment_count_nothing(folder: Folder, tmp_path: Path) -> None:
    folder.writer().change(text(LOOSE), "first", by=LEE)
    neighbour = made(tmp_path, name="onc-0000")
    shutil.copytree(folder.paths.policy_changes, neighbour.paths.policy_changes)
    assert neighbour.broken()[0] == "G102"
    # an heir that was made of it has its key, and its policy with it
    shutil.copy(folder.paths.secrets, neighbour.paths.secrets)
    assert neighbour.load().newest == LOOSE


def test_of_two_at_once_one_is_told(folder: Folder) -> None:
    first, second = folder.writer(), folder.writer()
    first.change(text(TIGHT), "first")
    with pytest.raises(Unavailable, match="same time"):
        second.revoke("b", "second")

    def again(number: int) -> bool:
        try:
            folder.writer().override(policy_history.OVERRIDABLE[number], "why")
        except Unavailable:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(again, range(8)))
    assert sum(won) >= 1
    assert len(folder.load().changes) == 1 + sum(won)


@pytest.mark.parametrize("code", policy_history.HARD)
def test_no_override_reaches_evidence_of_a_leak(folder: Folder, code: str) -> None:
    said = refused(lambda: folder.writer().override(code, "why"))
    assert said.startswith(f"{code}: cannot be overridden") and "G117" in said


def test_the_other_checks_are_overridden_or_named(folder: Folder) -> None:
    for code in RESUME_CODES:
        if code in policy_history.OVERRIDABLE:
            folder.writer().override(code, f"because of {code}")
        else:
            assert code in refused(lambda c=code: folder.writer().override(c, "why"))
    assert "there is no check G999" in refused(lambda: folder.writer().override("G999", "why"))
    now = in_effect(folder.load(), TODAY)
    assert now.overriding(1, 0, 10)["G117"]["reason"] == "because of G117"
    assert now.policy == BASE
    assert PolicyInEffect.decode(json.loads(json.dumps(now.encode()))) == now


def test_an_override_counts_for_what_it_says_and_for_nothing_else(folder: Folder) -> None:
    folder.writer().override("G116", "of all trials")
    folder.writer().override("G116", "of trial 2", trial=2)
    folder.writer().override("G117", "for a while", until=500)
    now = in_effect(folder.load(), TODAY)

    def counting(trial: int, made: int, step: int) -> dict[str, int]:
        return {code: act["number"] for code, act in now.overriding(trial, made, step).items()}

    assert counting(1, 0, 900) == {"G116": 1, "G117": 3}  # the checkpoint was there
    assert counting(2, 0, 900) == {"G116": 2, "G117": 3}
    assert counting(2, 1, 900) == {"G116": 2, "G117": 3}
    assert counting(1, 3, 500) == {"G117": 3}  # it was made later, up to the step
    assert counting(1, 3, 501) == counting(2, 3, 501) == {}
    assert [act["number"] for act in now.overrides(1)] == [1, 3]


def test_what_changes_nothing_is_refused(folder: Folder) -> None:
    assert "in effect already" in refused(lambda: folder.writer().change(text(BASE), "why"))
    assert "no such source" in refused(lambda: folder.writer().revoke("z", "why"))
    folder.writer().revoke("b", "why")
    assert "nothing already" in refused(lambda: folder.writer().revoke("b", "why"))


def test_after_its_agreement_a_source_is_left_out(folder: Folder) -> None:
    later = datetime.date(2028, 1, 1)
    assert not in_effect(folder.load(), datetime.date(2027, 12, 31)).dropped
    found = in_effect(folder.load(), later)
    assert found.policy.matrix == ((1.0, 1.0), (0.0, 0.0))
    assert "DUA-1" in found.dropped["b"] and "2027-12-31" in found.dropped["b"]
    assert found.place(found.policy, found.dropped) == 0
    assert found.place(TIGHT, {}) is None
    folder.writer().change(text(other(changes=Changes(revoke="stop"))), "stop then")
    with pytest.raises(GovernanceBroken, match=r"G112.*says to stop"):
        in_effect(folder.load(), later)


def test_where_no_source_is_left_training_stops(folder: Folder) -> None:
    folder.writer().revoke("a", "withdrawn")
    with pytest.raises(GovernanceBroken, match=r"G112.*no source is left"):
        in_effect(folder.load(), datetime.date(2028, 1, 1))
    with pytest.raises(GovernanceBroken, match=r"G112.*no source is left.*withdrawn by ada"):
        in_effect(folder.load(), TODAY, {"b": "withdrawn by ada"})


def test_a_full_disk_leaves_no_record(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    def full(fd: int, data: bytes) -> None:
        os.write(fd, data[:9])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "write_all", full)
    with pytest.raises(HpcdetError, match="No space"):
        folder.writer().change(text(TIGHT), "why")
    monkeypatch.undo()
    assert folder.load().newest == BASE
    folder.writer().change(text(TIGHT), "why")
