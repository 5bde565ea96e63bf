"""``policy change`` and ``policy override``: what holds from the next attempt on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcdet.cli.frame.ids import complete
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.cli.govern.policy_signing import THERE, experiment, read_envelope
from hpcdet.errors import UsageError

if TYPE_CHECKING:  # numpy
    from hpcdet.policy.changes.change_writer import WrittenChange

_LATER = (
    "it counts from the next attempt of each trial on; attempts that run go on as they began "
    "(hpcdet pause and resume begin new ones)"
)
_RETRIED = "it counts from the next attempt on; a trial that was stopped: hpcdet retry EXP/T"
_WRITTEN = (
    Column("NUMBER", "number", right=True),
    Column("ACT", "act", cut=False),
    Column("KIND", "kind", cut=False),
    Column("WHAT", lambda row: row.source or row.code or ", ".join(row.differs), fold=True),
    Column("PATH", "path", wide=True),
)


@dataclass(frozen=True)
class PolicyChangeView:
    """A signed record of what was changed under a policy."""

    experiment: str
    """The experiment."""
    number: int
    """Its number, from 1."""
    act: str
    """``change``, ``revoke`` or ``override``."""
    kind: str
    """``tighten``, ``loosen``, ``mixed`` or ``same``: what it does to what is allowed."""
    differs: list[str]
    """Of a change, what differs: ``SOURCE in LAYER``, and keys of other rules."""
    source: str
    """Of ``revoke``, the source."""
    code: str
    """Of ``override``, the check."""
    trial: int
    """Of ``override``, the trial that it is for; 0: all."""
    until: int
    """Of ``override``, the last step of checkpoints made from now on; 0: for none of them."""
    before: str
    """Digest of the policy before it."""
    after: str
    """Digest of the policy after it."""
    reason: str
    """Why, as it was given."""
    path: str
    """The record's file."""


@click.command("change")
@click.argument("id", metavar="EXP", shell_complete=complete)
@click.argument("file", metavar="[FILE|NAME]", required=False)
@click.option("--reason", required=True, metavar="TEXT", help="Why; it is recorded.")
@click.option("--revoke", metavar="SOURCE", help="Withdraw a source; no FILE is needed.")
@click.option("--key", type=THERE, metavar="FILE", help="A private key that approves it here.")
@click.option(
    "--approval",
    "approvals",
    type=THERE,
    multiple=True,
    metavar="FILE",
    help="An approval that hpcdet policy sign has made (repeat for more).",
)
@output("policy.change", PolicyChangeView)
def change(
    out: Output,
    id: str,
    file: str | None,
    reason: str,
    revoke: str | None,
    key: Path | None,
    approvals: Sequence[Path],
) -> None:
    """Change the policy of an experiment, or withdraw a source; signed and recorded.

    A policy that allows less needs nobody's approval. One that allows more somewhere needs those
    of keys that the policy in effect trusts with role policy. It counts from the next attempt on:
    optimizers forget what a source may change no more, and exposure is counted by each policy for
    its own time. Layers, sources and gates stay: submit another experiment for others.

    \b
    Examples: hpcdet policy change digits-7f3a new.yaml --reason "amended"
              hpcdet policy change digits-7f3a --revoke hosp-a --reason "gone"
    """
    from hpcdet.policy.changes.change_writer import ChangeWriter
    from hpcdet.policy.keys import key_files

    if (file is None) == (revoke is None):
        raise UsageError("give a policy, or --revoke SOURCE", where="policy change")
    if revoke is not None and (key or approvals):
        raise UsageError("a source is withdrawn without approvals", where="--revoke")
    _refuse_blank(reason)
    writer = ChangeWriter(*experiment(id))
    if revoke is not None:
        written = writer.revoke(revoke, reason)
    else:
        from hpcdet.config.policy.anchor_places import refuse_unusable
        from hpcdet.config.policy.enforced_keys import refuse_unenforced
        from hpcdet.config.policy.policy_file import read_policy

        assert file is not None
        policy = read_policy(file)
        refuse_unenforced(policy.compiled)
        for warning in refuse_unusable(policy.compiled.ledger.anchor):
            settings().warn(warning)
        by = key_files.read(key) if key is not None else None
        written = writer.change(policy, reason, [read_envelope(one) for one in approvals], by)
    _emit(out, written, _LATER)


@click.command("override")
@click.argument("id", metavar="EXP[/T]", shell_complete=complete)
@click.option("--code", required=True, metavar="CODE", help="The check, such as G117.")
@click.option("--reason", required=True, metavar="TEXT", help="Why; it is recorded.")
@click.option(
    "--until",
    type=click.IntRange(min=1),
    metavar="STEP",
    help="Also for checkpoints that are made from now on, up to this step (batches).",
)
@output("policy.override", PolicyChangeView)
def override(out: Output, id: str, code: str, reason: str, until: int | None) -> None:
    """Let trials go on where a check of a resume fails; signed and recorded.

    It answers for checkpoints that are there, of all trials or of one, and no longer: one that is
    made afterwards and fails stops its trial again. Each resume that needs it records it, with
    what was found. Signatures, files and ledgers (G102 to G105), layers that nothing may change
    (G115) and leaks (G123) cannot be overridden.

    \b
    Examples: hpcdet policy override ab12/2 --code G120 --reason "new torch"
              hpcdet policy override ab12 --code G117 --until 900 --reason "gone"
    """
    from hpcdet.policy.changes.change_writer import ChangeWriter
    from hpcdet.read.lookup import find

    _refuse_blank(reason)
    writer, trial = ChangeWriter(*experiment(id)), find.reference(id, settings().root).trial
    _emit(out, writer.override(code, reason, trial, until or 0), _RETRIED)


def _refuse_blank(reason: str) -> None:
    if not reason.strip() or len(reason) > 10_000:
        raise UsageError("say in some words why", where="--reason")


def _emit(out: Output, written: WrittenChange, note: str) -> None:
    from hpcdet.policy.changes import strictness, weight_changes

    one = written.change
    pairs = weight_changes.differences(written.before, written.after)
    rules = strictness.rule_changes(written.before, written.after)
    differs = [f"{each.source} in {each.layer}" for each in pairs if each.kind != "same"]
    item = PolicyChangeView(
        one.experiment,
        one.number,
        one.act,
        one.kind,
        [*differs, *(each.key for each in rules)],
        one.source,
        one.code,
        one.trial,
        one.until,
        one.before,
        one.after,
        one.reason,
        str(written.path),
    )
    out.emit([item], _WRITTEN, key="path")
    settings().note(note)
