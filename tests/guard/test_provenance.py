"""Chains and data are verified before training and at each resume, and what they cover counts."""

from __future__ import annotations

import dataclasses
import datetime
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, Subset

from hpcdet.data.sourced import Sourced, record_of
from hpcdet.guard.counting.exposure import Exposure
from hpcdet.guard.resume.active_chains import ActiveChains
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy, Coverage, UseAgreement
from hpcdet.policy.provenance import source_provenance
from hpcdet.policy.provenance.chains import Artifact, SourceChain, extend
from hpcdet.store.folder.layout import TrialPaths
from tests import ranks, sources
from tests.governed_model import SIZES
from tests.guard.test_governed import MODEL, make, policy, state_of
from tests.pytorch.test_bits_local import interrupt, signals

pytestmark = pytest.mark.xdist_group("governed")

FILES = {"x.csv": b"1,2\n3,4\n", "sub/y.csv": b"5,6\n"}


def governed(folder: Path, *names: str, least: float = 1.0, **how: Any) -> CompiledPolicy:
    """The policy of three sources, of which those that are named have data and chains."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {name: sources.provided(folder, name, FILES, **how) for name in names}
    plain = policy(coverage=Coverage(least), trust=(sources.STEWARD,))
    found = tuple(given.get(one.id, one) for one in plain.sources)
    return dataclasses.replace(plain, sources=found)


def verified(wanted: CompiledPolicy, folder: Path, **how: Any) -> dict[str, bool]:
    found = source_provenance.verified(wanted, folder, **how)
    return {one.source: one.complete for one in found}


def flip(path: Path, at: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_sources_with_whole_chains_and_data_are_complete(tmp_path: Path) -> None:
    wanted = governed(tmp_path, "a", "b", records="lines")
    assert verified(wanted, tmp_path, deep=True) == {"a": True, "b": True, "c": False}
    assert verified(wanted, tmp_path / "." / "data" / "..") == {"a": True, "b": True, "c": False}


def drop_line(path: Path, number: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))


def other_data(folder: Path) -> None:
    """Data, manifest and chain are whole, and others than those that the policy names."""
    sources.provided(folder, "a", {**FILES, "more.csv": b"7"})


def revoke(folder: Path) -> None:
    path = folder / "a.chain"
    chain = SourceChain.load(path)
    link = extend(chain, "revoke", [Artifact("a", chain.links[-1].subject[0].sha256)], actor="ada")
    path.write_bytes(path.read_bytes() + link.to_bytes() + b"\n")


TAMPERS: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "a byte of the data": ("G111", "x.csv", lambda p: flip(p / "data/a/x.csv")),
    "a file less": ("G111", "missing", lambda p: (p / "data/a/sub/y.csv").unlink()),
    "a file more": ("G111", "not listed", lambda p: (p / "data/a/z.csv").write_text("1")),
    "a pipe": ("G111", "y.csv", lambda p: (p / "data/a/sub/y.csv").rename(p / "data/a/y.csv")),
    "a record digest": ("G111", ".records", lambda p: flip(p / "a.manifest.json.records")),
    "no record digests": ("G111", ".records", lambda p: (p / "a.manifest.json.records").unlink()),
    "the manifest": ("G111", "manifest", lambda p: flip(p / "a.manifest.json", 40)),
    "no manifest": ("G111", "cannot read", lambda p: (p / "a.manifest.json").unlink()),
    "a link": ("G111", "line", lambda p: flip(p / "a.chain", -400)),
    "a link dropped": ("G111", "link 0", lambda p: drop_line(p / "a.chain", 0)),
    "no signature": ("G111", "not signed", lambda p: drop_line(p / "a.chain", 3)),
    "a chain of others": ("G111", "not the manifest", other_data),
    "no chain": ("G111", "cannot read", lambda p: (p / "a.chain").unlink()),
    "a folder for a chain": (
        "G111",
        "cannot read",
        lambda p: ((p / "a.chain").unlink(), (p / "a.chain").mkdir()),
    ),
    "withdrawn": ("G112", "revoked by ada", revoke),
}


@pytest.mark.parametrize("how", TAMPERS)
def test_each_tamper_is_found_by_its_own_code(how: str, tmp_path: Path) -> None:
    code, what, tamper = TAMPERS[how]
    wanted = governed(tmp_path, "a", "b", records="lines")
    tamper(tmp_path)
    with pytest.raises(GovernanceBroken, match=what) as found:
        source_provenance.verified(wanted, tmp_path)
    assert found.value.check == code and found.value.hint and "a" in found.value.where


def test_of_many_files_only_reading_all_finds_each_change(tmp_path: Path) -> None:
    many = {f"{n:03}.csv": b"%d" % n for n in range(300)}
    given = sources.provided(tmp_path, "a", many)
    wanted = dataclasses.replace(policy(coverage=Coverage(1.0), trust=(sources.STEWARD,)))
    wanted = dataclasses.replace(wanted, sources=(given, *wanted.sources[1:]))
    flip(tmp_path / "data" / "a" / "123.csv")
    with pytest.raises(GovernanceBroken, match=r"123\.csv"):
        source_provenance.verified(wanted, tmp_path, deep=True)


@pytest.mark.parametrize("ends", ["2027-05-31", "2027-06-01"])
def test_an_agreement_that_has_ended_is_found(ends: str, tmp_path: Path) -> None:
    wanted = governed(tmp_path, "a", "b")
    agreed = dataclasses.replace(wanted.sources[0], agreement=UseAgreement("DUA-1", ends))
    wanted = dataclasses.replace(wanted, sources=(agreed, *wanted.sources[1:]))
    today = datetime.date(2027, 6, 1)
    if ends < today.isoformat():
        with pytest.raises(GovernanceBroken, match=r"G112: .*2027-05-31"):
            source_provenance.verified(wanted, tmp_path, today=today)
    else:
        assert verified(wanted, tmp_path, today=today)["a"]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"key": ""}, "not signed"),
        ({"key": "22" * 32}, "not signed"),
        ({"kinds": ("acquire", "shard")}, "no link of kind admit"),
    ],
    ids=["unsigned", "by others", "not admitted"],
)
def test_an_incomplete_chain_covers_nothing_or_is_refused(
    how: dict[str, Any], why: str, tmp_path: Path
) -> None:
    strict = governed(tmp_path / "s", "a", "b", "c", **how)
    with pytest.raises(GovernanceBroken, match=rf"G111: .*{why}"):
        source_provenance.verified(strict, tmp_path / "s")
    with pytest.raises(PolicyRefused, match=rf"P06: .*{why}"):
        source_provenance.refuse_incomplete(strict, tmp_path / "s")
    if "kinds" in how:
        return  # it cannot be the one that a policy names
    lenient = governed(tmp_path / "l", "a", "b", least=0.5, **how)
    [found, *_] = source_provenance.verified(lenient, tmp_path / "l")
    assert not found.complete and why in found.reason
    assert (found.links_verified, found.links_required) == (3, 3)


def test_what_cannot_be_complete_is_refused_before_it_is_submitted(tmp_path: Path) -> None:
    whole = governed(tmp_path, "a", "b", "c")
    source_provenance.refuse_incomplete(whole, tmp_path)
    without = dataclasses.replace(whole.sources[0], manifest=None)
    cases = {
        "no manifest": dataclasses.replace(whole, sources=(without, *whole.sources[1:])),
        "no key": dataclasses.replace(whole, trust=()),
    }
    for why, wanted in cases.items():
        with pytest.raises(PolicyRefused, match=rf"P06: .*{why}"):
            source_provenance.refuse_incomplete(wanted, tmp_path)
    (tmp_path / "c.chain").unlink()
    with pytest.raises(PolicyRefused, match=r"P06: c\.chain .*not in the model's folder"):
        source_provenance.refuse_incomplete(whole, tmp_path)


def exposed(**rows: int) -> Exposure:
    return Exposure.decode(
        {"rows": {n.replace("_", "+"): k for n, k in rows.items()}, "dropped": 0}
    )


def test_coverage_is_the_share_of_what_was_trained_that_has_a_complete_chain(
    tmp_path: Path,
) -> None:
    wanted = governed(tmp_path, "a", "b", least=0.5)
    chains = ActiveChains(wanted, source_provenance.verified(wanted, tmp_path))
    assert chains.least(exposed(), known=True) == 1
    some = exposed(a=60, b=20, c=20)
    assert chains.overall(some) == 0.8
    # of the weights ((1, 1, 1), (0, 1, 1), (0, 0, 0.5))
    assert chains.of_layers(some) == [1, 1, pytest.approx(80 / 90)]
    assert chains.least(some, known=True) == pytest.approx(80 / 90)
    assert chains.least(some, known=False) == 0
    overall = dataclasses.replace(wanted, coverage=Coverage(0.5, per_layer=False))
    whole = ActiveChains(overall, source_provenance.verified(wanted, tmp_path))
    assert whole.least(some, known=True) == 0.8
    mixed = exposed(a_c=50, a=50)
    assert chains.overall(mixed) == 0.5
    assert chains.summary(some)["coverage"]["overall"] == 0.8
    assert {one["source"]: one["active"] for one in chains.encode(exposed(a=1))} == {
        "a": True,
        "b": False,
    }


def test_what_was_trained_without_a_chain_stays_uncovered(tmp_path: Path) -> None:
    wanted = governed(tmp_path, "a", "b", least=0.0)
    found = source_provenance.verified(wanted, tmp_path)
    before, rows = ActiveChains(wanted, found[:1]), exposed(a=3, b=4)
    later = ActiveChains(wanted, found)
    [check] = later.load(before.encode(rows), rows, inherited=False)
    assert check.outcome == "recorded" and "b is not covered" in check.detail
    assert later.overall(rows) == 3 / 7
    heir = ActiveChains(wanted, found)
    other = [{**one, "root": "sha256:00"} for one in later.encode(rows)]
    heir.load(other, rows, inherited=True)
    assert heir.overall(rows) == 0


def trial_of(
    root: Path, world: int, wanted: CompiledPolicy | None = None, **more: Any
) -> TrialPaths:
    """A trial whose sources a and b have chains; c has none, and may not change the first layer."""
    model = root.with_name("model")
    trial = make(root, world, governed(model, "a", "b", least=0.5), **more)
    shutil.copytree(model, root / "code", dirs_exist_ok=True)
    return trial


def test_validations_and_checkpoints_say_what_is_covered(tmp_path: Path) -> None:
    trial = trial_of(tmp_path / "EXP", 2)
    attempt = ranks.run(trial, 2)
    assert attempt.verdict() is not None, attempt.log()
    state = state_of(trial)[1]
    rows = state["exposure"]["rows"]
    least = (rows["a"] + rows["b"]) / (rows["a"] + rows["b"] + rows["c"] / 2)
    reported = [line["metrics"] for line in attempt.lines() if line.get("group") == "validation"]
    assert reported[-1]["gov.coverage"] == pytest.approx(least)
    assert [(one["source"], one["active"]) for one in state["chains"]] == [("a", True), ("b", True)]
    [checks] = [line["checks"] for line in attempt.lines() if "checks" in line]
    assert [(one["code"], one["outcome"]) for one in checks] == [("G111", "recorded")]


@pytest.mark.parametrize("how", ["a byte of the data", "a link dropped", "no signature"])
def test_a_resume_stops_where_the_chain_or_its_data_have_changed(how: str, tmp_path: Path) -> None:
    code, what, tamper = TAMPERS[how]
    trial = trial_of(tmp_path / "EXP", 2)
    first = interrupt(trial, tmp_path / "1", "train:5", signals(signal.SIGUSR2, 1), 2)
    assert first.verdict() is not None, first.log()
    kept = (tmp_path / "EXP" / "code" / "data" / "a" / "x.csv").read_bytes()
    chain = (tmp_path / "EXP" / "code" / "a.chain").read_bytes()
    tamper(tmp_path / "EXP" / "code")
    second = ranks.run(trial, 2)
    verdict = second.verdict()
    assert verdict is not None and verdict.verdict == "norestart", second.log()
    assert code in second.log() and what in second.log(), second.log()
    (tmp_path / "EXP" / "code" / "data" / "a" / "x.csv").write_bytes(kept)
    (tmp_path / "EXP" / "code" / "a.chain").write_bytes(chain)
    third = ranks.run(trial, 2)
    verdict = third.verdict()
    assert verdict is not None and verdict.verdict == "done", third.log()


RECORDS = """
    def record_bytes(self, index):
        text = (Path(__file__).parent / "data" / self.name / "rows.csv").read_bytes()
        return text.splitlines()[index]
"""


def lines_of(name: str) -> bytes:
    return b"".join(b"%s,%d\n" % (name.encode(), n) for n in range(SIZES[name]))


def with_records(root: Path, world: int) -> TrialPaths:
    """A trial whose data sets tell the records behind their samples."""
    model = root.with_name("model")
    model.mkdir()
    given = [
        sources.provided(model, name, {"rows.csv": lines_of(name)}, records="lines")
        for name in "abc"
    ]
    wanted = policy(trust=(sources.STEWARD,), probe_every=2, sources=tuple(given))
    trial = make(root, world, wanted)
    shutil.copytree(model, root / "code", dirs_exist_ok=True)
    code = MODEL.replace("        draw = np", "        self.name = source\n        draw = np")
    code = code.replace("\n\ndef gate(where):", f"{RECORDS}\n\ndef gate(where):")
    (root / "code" / "model_def.py").write_text(code)
    return trial


def test_probes_compare_the_records_that_are_read_with_those_that_were_admitted(
    tmp_path: Path,
) -> None:
    trial = with_records(tmp_path / "EXP", 2)
    attempt = ranks.run(trial, 2)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    counts = [one["compared"] for one in attempt.lines() if one.get("event") == "records"]
    assert counts == [8] * 5  # four of each rank's share, at batches 0, 2, 4, 6, 8


def test_a_record_that_changes_while_it_is_trained_is_found(tmp_path: Path) -> None:
    """The data are whole when the attempt begins, and others from the fourth batch on."""
    trial = with_records(tmp_path / "EXP", 2)

    def act(_attempt: Any) -> None:
        for name in "abc":
            path = tmp_path / "EXP" / "code" / "data" / name / "rows.csv"
            path.write_bytes(path.read_bytes().replace(b",", b";"))

    attempt = interrupt(trial, tmp_path / "1", "train:3", act, 2)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "norestart", attempt.log()
    assert "G111: the training reads what was not admitted: record" in attempt.log()


def test_records_are_told_through_subsets_and_joined_data() -> None:
    class Told:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return index

        def record_bytes(self, index: int) -> bytes:
            return b"%d" % index

    inner: Any = Subset(Told(), [3, 1])  # type: ignore[arg-type]
    data = Sourced({"a": inner, "b": Told(), "c": range(2)})
    assert [record_of(data, n) for n in (0, 1, 3)] == [
        ("a", 3, b"3"),
        ("a", 1, b"1"),
        ("b", 1, b"1"),
    ]
    assert record_of(data, 6) is None
    joined: Any = ConcatDataset([Subset(data, [4, 0]), data])
    assert record_of(joined, 0) == ("b", 2, b"2") and record_of(joined, 4) == ("b", 0, b"0")
    assert record_of(range(3), 1) is None
