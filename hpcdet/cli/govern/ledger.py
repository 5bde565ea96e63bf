"""``ledger``: ledgers of governed trials verified, shown and queried."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any

import click

from hpcdet.cli.frame.ids import id_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import NotFound, UsageError
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.ledger import records
from hpcdet.policy.ledger.anchored import HeadsBesideLedgers
from hpcdet.policy.ledger.verify import FirstBad, LedgerExposure, VerifiedLedger
from hpcdet.store.folder.layout import TrialPaths

if TYPE_CHECKING:  # the other verbs need none of it
    from hpcdet.read.lookup.anchored_trials import AnchorHeads
    from hpcdet.read.lookup.find import Reference

_VERIFIED = (
    Column("TRIAL", "trial", right=True),
    Column("RECORDS", "records", right=True),
    Column("OK", "ok"),
    Column("SIGNED", "signed", cut=False),
    Column("UNSEALED", "unsealed", right=True),
    Column(
        "UNANCHORED", lambda row: min((a.behind for a in row.anchors), default=None), right=True
    ),
    Column("ROLLBACKS", lambda row: len(row.rollbacks), right=True),
    Column("FIRST BAD", "first_bad", fold=True),
    Column("HEAD", "head", wide=True),
)
_RECORDS = (
    Column("ATTEMPT", "attempt", right=True),
    Column("SEQ", "seq", right=True),
    Column("TYPE", "type", cut=False),
    Column("STEP", "step", right=True),
    Column("COUNTS", "counts"),
    Column("TIME", "time"),
    Column("HOST", "host"),
    Column("BODY", lambda row: json.dumps(row.body, sort_keys=True)),
)
_EXPOSED = (
    Column("TRIAL", "trial", right=True),
    Column("SOURCE", "source"),
    Column("EXAMPLES", "examples", right=True),
    Column("WEIGHT", lambda row: f"{row.weight:g}", right=True),
)
_TRAINED = (
    Column("TRIAL", "trial", right=True),
    Column("SOURCE", "source"),
    Column("RECORD", "record", right=True),
    Column("STEP", "step", right=True),
    Column("EPOCH", "epoch", right=True),
    Column("LAYERS", lambda row: ", ".join(row.layers), fold=True),
)


@dataclass(frozen=True)
class AnchorView:
    """The heads that an anchor holds of a trial's ledgers."""

    anchor: str
    """``file:DIR``, or the log that was given (``--anchored``)."""
    heads: int
    """The heads that it holds."""
    behind: int
    """Records behind the newest of them: nobody would miss these."""


@dataclass(frozen=True)
class LedgerView:
    """The ledgers of a trial, over all its attempts."""

    trial: int
    """Its number."""
    records: int
    """Records, those that were rolled back included."""
    head: str
    """The last record: ``ATTEMPT:SEQ:HASH``; "" if there is none."""
    ok: bool
    """True if all of it is what was written."""
    first_bad: str
    """The first record that is not: ``ATTEMPT:SEQ CODE: what``; "" if all is right."""
    signed: str
    """``trusted``: by a key that the policy trusts; ``self``: by the run's own; ``none``."""
    unsealed: int
    """Records behind the last seals, which only the chain protects."""
    rollbacks: list[list[int]]
    """Records that were lost in a crash: attempt, first and last."""
    anchors: list[AnchorView]
    """Anchors that were read."""


@dataclass(frozen=True)
class LedgerRecordView:
    """A record of a ledger."""

    trial: int
    """Number of the trial."""
    attempt: int
    """The attempt that wrote it."""
    seq: int
    """Its place, from 0."""
    type: str
    """What it records: ``open``, ``policy``, ``step_batch``, ``seal``, …"""
    step: int
    """Batches that were trained."""
    counts: bool
    """False if it was rolled back: training went on from before it."""
    time: str
    """When, by the clock of the host."""
    host: str
    """Who wrote it."""
    hash: str
    """Its hash."""
    body: dict[str, Any]
    """What it says; its keys depend on the type."""


@dataclass(frozen=True)
class LedgerAnswerView:
    """What a ledger says of a layer (``--layer``), or of a record (``--record``)."""

    trial: int
    """Number of the trial."""
    source: str
    """The source."""
    examples: int | None = None
    """Of a layer: its examples in batches that the layer may learn from, each time it was seen."""
    weight: float | None = None
    """Of a layer: the same times their weight in the policy."""
    record: int | None = None
    """Of a record: its number in the source, from 0."""
    step: int | None = None
    """Of a record: batches trained before the one that had it."""
    epoch: int | None = None
    """Of a record: the epoch of that batch, from 0."""
    layers: list[str] | None = None
    """Of a record: the layers that it was permitted to change there."""


@click.group("ledger", short_help="Verify, show and query the ledgers of governed trials.")
def ledger_command() -> None:
    """Ledgers: what layers were permitted and exposed to learn from.

    They are no record of influence.

    \b
    Example: hpcdet ledger verify digits-7f3a
    """


@ledger_command.command("verify")
@id_argument()
@click.option(
    "--anchored",
    "logs",
    type=click.File("rb"),
    metavar="FILE",
    multiple=True,
    help="Lines of an anchor, such as a syslog; - reads standard input.",
)
@output("ledger.verify", LedgerView)
def verify_ledger(out: Output, id: str, logs: tuple[IO[bytes], ...]) -> None:
    """Verify chains, seals and rollbacks; exit 9 if one is not what was written.

    The records that checkpoints name have to be in them, attempts that trained need a ledger, and
    one that ended well needs its end. Ledgers are compared with what the anchors of the policy
    hold of them: file:DIR is read by itself, the lines of others are given.

    \b
    Examples: hpcdet ledger verify digits-7f3a -o json
              journalctl -t hpcdet | hpcdet ledger verify digits-7f3a --anchored -
    """
    from hpcdet.read.lookup import anchored_trials, find

    named = find.reference(id, settings().root)
    anchors, warnings = anchored_trials.read(named.paths, named.trial, logs)  # before ledgers
    found = _verified(named)
    name = anchored_trials.name_of(named.paths)
    held = {of for one in anchors for of, heads in one.heads.items() if heads}
    lost = {trial for of, trial in held if of == name and named.trial in (0, trial)} - found.keys()
    found |= dict.fromkeys(lost, VerifiedLedger(()))
    if not found:
        raise _no_ledger(id)
    rows: list[LedgerView] = []
    bad: tuple[int, FirstBad] | None = None
    for trial, one in sorted(found.items()):
        beside = [(each, each.beside(one.ledgers, (name, trial))) for each in anchors]
        first = one.bad or next((each.bad for _, each in beside if each.bad), None)
        if first is None:
            of = named.paths.trial(trial)
            first, more = anchored_trials.beside_parent(anchors, named.paths, of, one)
            warnings += more
        if first is not None and bad is None:
            bad = trial, first
        rows.append(_view(trial, replace(one, bad=first), beside))
        warnings += _overdue(trial, beside)
    out.emit(rows, _VERIFIED, warnings=warnings, key="trial")
    if bad is not None:
        trial, first = bad
        hint = "put the ledger back from a backup; what is behind the record proves nothing"
        raise _broken(named.paths.trial(trial), first, hint)


def _overdue(trial: int, held: Sequence[tuple[AnchorHeads, HeadsBesideLedgers]]) -> Iterator[str]:
    """Say what anchors lack, that they should hold."""
    for anchor, found in held:
        for attempt, newest, due in found.overdue if found.bad is None else ():
            what = f"holds nothing behind record {newest} of" if newest >= 0 else "holds nothing of"
            yield f"trial {trial}: {anchor.anchor} {what} attempt {attempt}, sealed up to {due}"


@ledger_command.command("show")
@id_argument()
@click.option(
    "--type",
    "kind",
    type=click.Choice(sorted(records.TYPES)),
    metavar="TYPE",
    help="Only records of this type.",
)
@output("ledger.show", LedgerRecordView)
def show(out: Output, id: str, kind: str | None) -> None:
    """Records of ledgers as they are, up to the first that is wrong.

    \b
    Example: hpcdet ledger show digits-7f3a/1 --type rollback
    """
    rows = [
        LedgerRecordView(
            trial.number,
            ledger.attempt,
            one.seq,
            one.type,
            one.step,
            one.seq < dict(found.path).get(ledger.attempt, 0),
            one.time,
            one.host,
            digest,
            dict(one.body),
        )
        for trial, found in _ledgers(id)
        for ledger in found.ledgers
        for one, digest in zip(ledger.records, ledger.hashes, strict=True)
        if kind in (None, one.type)
    ]
    out.emit(rows, _RECORDS, empty="no records")


@ledger_command.command("query")
@id_argument()
@click.option("--layer", help="A layer of the policy.")
@click.option("--record", metavar="SOURCE:N", help="A record: when it was trained.")
@output("ledger.query", LedgerAnswerView)
def query(out: Output, id: str, layer: str | None, record: str | None) -> None:
    """What a layer may have learned from, or what a record may have changed; verifies first.

    \b
    Example: hpcdet ledger query digits-7f3a --layer head
             hpcdet ledger query digits-7f3a --record pubmed:17
    """
    if (layer is None) == (record is None):
        raise UsageError("give one of --layer and --record", where="ledger query")
    if record is not None:
        out.emit(_of_record(id, record), _TRAINED, empty="no step had it")
        return
    assert layer is not None
    rows: list[LedgerAnswerView] = []
    known: set[str] = set()
    for trial, found in _sound(id):
        exposure = LedgerExposure.of(found.counting())
        known |= {name for _, layers, _ in exposure.matrices.values() for name in layers}
        rows += [LedgerAnswerView(trial.number, *one) for one in exposure.of_layer(layer)]
    if layer not in known:
        hint = f"its layers are {', '.join(sorted(known))}" if known else ""
        raise UsageError(f"the policy has no layer {layer}", where=id, hint=hint)
    out.emit(rows, _EXPOSED, empty="no source may change it")


def _of_record(id: str, record: str) -> list[LedgerAnswerView]:
    from hpcdet.read.lookup import trained_records

    source, _, number = record.rpartition(":")
    if not source or not number.isdecimal():
        hint = "for example pubmed:17, the eighteenth record of pubmed"
        raise UsageError(f"{record!r} is no SOURCE:N", where="--record", hint=hint)
    return [
        LedgerAnswerView(
            trial.number,
            source,
            record=int(number),
            step=one.step,
            epoch=one.epoch,
            layers=list(one.layers),
        )
        for trial, found in _sound(id)
        for one in trained_records.trained(found, source, int(number))
    ]


def _sound(id: str) -> list[tuple[TrialPaths, VerifiedLedger]]:
    """Ledgers that say what was written.

    Raises:
        GovernanceBroken: one does not.
    """
    found = _ledgers(id)
    for trial, one in found:
        if one.bad is not None:
            raise _broken(trial, one.bad, "hpcdet ledger verify")
    return found


def _broken(trial: TrialPaths, bad: FirstBad, hint: str) -> GovernanceBroken:
    if bad.where:  # of what is not in a ledger
        return GovernanceBroken(bad.code, bad.what, where=bad.where, hint=bad.hint)
    where, what = str(trial.attempt(bad.attempt).ledger), f"record {bad.seq}: {bad.what}"
    return GovernanceBroken(bad.code, what, where=where, hint=hint)


def _ledgers(id: str) -> list[tuple[TrialPaths, VerifiedLedger]]:
    """Read and verify the ledgers of an experiment's trials; those that need none are left out.

    Raises:
        NotFound: none has one.
    """
    from hpcdet.read.lookup import find

    named = find.reference(id, settings().root)
    found = [(named.paths.trial(trial), one) for trial, one in _verified(named).items()]
    if not found:
        raise _no_ledger(id)
    return found


def _no_ledger(id: str) -> NotFound:
    hint = "only trials under a policy have one: hpcdet policy report"
    return NotFound("no trial has a ledger", where=id, hint=hint)


def _verified(named: Reference) -> dict[int, VerifiedLedger]:
    from hpcdet.read.governed.attested_trials import AttestedTrial, GovernedExperiment

    trials = [named.paths.trial(named.trial)] if named.trial else named.paths.trials()
    experiment = GovernedExperiment(named.paths)
    found = ((one.number, AttestedTrial(experiment, one).whole()) for one in trials)
    return {number: one for number, one in found if one is not None}


def _view(
    trial: int, one: VerifiedLedger, held: Sequence[tuple[AnchorHeads, HeadsBesideLedgers]]
) -> LedgerView:
    head, bad = one.head, one.bad
    return LedgerView(
        trial,
        one.records,
        f"{head.attempt}:{head.seq}:{head.hash}" if head else "",
        bad is None,
        f"{bad.attempt}:{bad.seq} {bad.code}: {bad.what}" if bad else "",
        one.signed,
        one.unsealed,
        [list(lost) for lost in one.rollbacks],
        [AnchorView(anchor.anchor, found.heads, found.behind) for anchor, found in held],
    )
