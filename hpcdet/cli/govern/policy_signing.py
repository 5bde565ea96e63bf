"""``policy keygen`` and ``policy sign``: keys of people, and what they vouch for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import NotFound, Unavailable, UsageError
from hpcdet.store.config.resolved_config import Governance
from hpcdet.store.folder.layout import ExperimentPaths

FILE = click.Path(path_type=Path, dir_okay=False)
THERE = click.Path(path_type=Path, exists=True, dir_okay=False)
_SHARED = 0o644
_HEX = re.compile(r"[0-9a-f]{64}")
_KEYS = (Column("PATH", "path"), Column("PUBLIC", "public", cut=False))
_SIGNED = (
    Column("KIND", "kind", cut=False),
    Column("OF", "of"),
    Column("KEY", lambda row: f"{row.key[:16]}…" if row.key else "-", cut=False),
    Column("PATH", "path"),
    Column("WHAT", "what", wide=True),
)
_RUN_KEY = (Column("OF", "of"), Column("RUN KEY", "what", cut=False))


@dataclass(frozen=True)
class DrawnKeyView:
    """A key that was made."""

    path: str
    """The file with the private key, readable by its owner only."""
    public: str
    """The public key, 64 hex digits, as a policy's ``trust`` lists it."""


@dataclass(frozen=True)
class SignedView:
    """One signed file."""

    kind: str
    """``approval`` of a policy, ``certificate`` of a run key, ``run_key``: nothing was signed."""
    of: str
    """The policy's name, or the experiment."""
    what: str
    """Digest of the policy, or the public run key."""
    key: str
    """The public key that has signed it; "" if none."""
    path: str
    """The file; "" if none."""


@click.command("keygen")
@click.option("--to", type=FILE, required=True, metavar="FILE", help="Where the private key goes.")
@output("policy.keygen", DrawnKeyView)
def keygen(out: Output, to: Path) -> None:
    """Make an Ed25519 key; prints its public half, which policies list under trust.

    The private key is for its owner's eyes alone (mode 0600). A file that is there is never
    overwritten.

    \b
    Example: hpcdet policy keygen --to ~/pi-lee.key
    """
    from hpcdet.policy.keys import key_files

    to = to.expanduser()
    _refuse_nowhere(to)
    try:
        public = key_files.draw(to)
    except OSError as error:
        raise Unavailable(f"cannot write: {error.strerror}", where=str(to)) from error
    out.emit([DrawnKeyView(str(to), public)], _KEYS, key="public")


@click.command("sign")
@click.argument("what", metavar="EXP|FILE")
@click.option("--key", type=THERE, metavar="FILE", help="The private key that signs.")
@click.option("--to", type=FILE, metavar="FILE", help="Where it goes; never overwritten.")
@click.option("--for", "of", metavar="EXP", help="Of an approval: for this experiment only.")
@click.option("--from", "before", metavar="FILE", help="Of one for others: the policy in effect.")
@click.option("--run-key", metavar="HEX", help="The public run key, of others' experiments.")
@click.option("--days", type=click.IntRange(1, 3660), default=90, help="Of a certificate [90].")
@click.option("--add", type=THERE, metavar="FILE", help="Take a certificate that others signed.")
@output("policy.sign", SignedView)
def sign(
    out: Output,
    what: str,
    key: Path | None,
    to: Path | None,
    of: str | None,
    before: str | None,
    run_key: str | None,
    days: int,
    add: Path | None,
) -> None:
    """Sign a policy (an approval), or certify the run key of an experiment.

    A policy may be loosened only with approvals of keys that it trusts with role policy. Each is
    of one change, from the policy in effect, and counts once. Where a policy trusts keys with role
    run or site, one of them has to certify the run key before an experiment trains. Without --key
    the public run key is shown, for who certifies it elsewhere.

    \b
    Examples: hpcdet policy sign new.yaml --for ab12 --key pi.key --to ok.json
              hpcdet policy sign digits-7f3a --key site.key
              hpcdet policy sign digits-7f3a --run-key 3b6a… --key k --to c.json
              hpcdet policy sign digits-7f3a --add c.json
    """
    from hpcdet.config.policy.policy_file import shipped_policies

    if run_key is not None and not _HEX.fullmatch(run_key):
        hint = "hpcdet policy sign EXP shows it to the experiment's owner"
        raise UsageError("it is no public key of 64 hex digits", where="--run-key", hint=hint)
    of_policy = what in shipped_policies() or Path(what).is_file()
    for option, given, wanted in (
        ("--for", of, of_policy),
        ("--from", before, of_policy),
        ("--add", add, not of_policy),
        ("--key", key, add is None),
        ("--to", to, add is None and (of_policy or key is not None)),
        ("--run-key", run_key, add is None),
    ):
        if given is not None and not wanted:
            hint = "hpcdet policy sign --help: an approval, a certificate, or one to --add"
            raise UsageError(f"it says nothing of {what} here", where=option, hint=hint)
    if of_policy:
        item = _approved(what, key, to, of, before, run_key)
    elif add is not None:
        item = _added(what, add)
    else:
        item = _certified(what, key, to, run_key, days)
    shown = item.kind == "run_key"
    out.emit([item], _RUN_KEY if shown else _SIGNED, key="what" if shown else "path")


def experiment(name: str) -> tuple[ExperimentPaths, Governance]:
    """Return an experiment under a policy, by its name.

    Raises:
        NotFound: there is none, or it has no policy.
        GovernanceBroken: G110: its config has lost it.
    """
    from hpcdet.policy import named_policy
    from hpcdet.read.lookup import find
    from hpcdet.store.config import resolved_config

    paths = find.experiment(name, settings().root)
    config = resolved_config.load(paths.config)
    governance = config.governance
    if governance is None:
        named_policy.require(paths, config)
        hint = "its config has no section governance"
        raise NotFound("the experiment has no policy", where=paths.id, hint=hint)
    return paths, governance


def _approved(
    what: str,
    key: Path | None,
    to: Path | None,
    of: str | None,
    before: str | None,
    run_key: str | None,
) -> SignedView:
    from hpcdet.config.policy.policy_file import read_policy
    from hpcdet.policy.changes import change_writer, policy_history
    from hpcdet.policy.keys import key_files, run_keys

    if key is None or to is None:
        missing = "--key" if key is None else "--to"
        raise UsageError("a policy is signed with a key, into a file", where=missing)
    if (of is None) == (before is None):
        hint = "--for EXP takes it from the experiment, --from FILE is for one that is not here"
        raise UsageError("say which policy it is to replace", where="policy sign", hint=hint)
    policy = read_policy(what).compiled
    if of is not None:
        found = experiment(of)
        run_key = run_key or found[1].signer or key_files.public(run_keys.signer(*found))
        changed = policy_history.load(*found, own=False).newest
    else:
        assert before is not None
        changed = read_policy(before).compiled
    by = key_files.read(key)
    envelope = change_writer.approve(policy, by, changed.digest, run_key or "")
    _write(to, envelope)
    return SignedView("approval", policy.name, policy.digest, key_files.public(by), str(to))


def _certified(
    what: str, key: Path | None, to: Path | None, run_key: str | None, days: int
) -> SignedView:
    from hpcdet.policy.changes import policy_history
    from hpcdet.policy.keys import key_files, run_keys
    from hpcdet.policy.ledger.owners import name_of

    if run_key is not None:  # an experiment that is not here, or not ours
        if key is None or to is None:
            raise UsageError("give --key and --to", where="--run-key")
        by = key_files.read(key)
        _write(to, run_keys.certify(run_key, what, by, days))
        return SignedView("certificate", what, run_key, key_files.public(by), str(to))
    paths, governance = experiment(what)
    name, own = name_of(paths), key_files.public(run_keys.signer(paths, governance))
    if key is None:
        return SignedView("run_key", name, own, "", "")
    by = key_files.read(key)
    policy = policy_history.load(paths, governance).newest
    run_keys.refuse_unable(policy, key_files.public(by))
    made = run_keys.certify(own, name, by, days)
    if to is None:
        kept = _kept(paths, made)
    else:
        _write(to, made)
        kept = to
    return SignedView("certificate", name, own, key_files.public(by), str(kept))


def _added(what: str, add: Path) -> SignedView:
    """Put a certificate of others into an experiment, if its policy trusts who has signed it."""
    from datetime import UTC, datetime

    from hpcdet.policy.changes import policy_history
    from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
    from hpcdet.policy.keys import key_files, run_keys
    from hpcdet.policy.ledger import owners, seals

    paths, governance = experiment(what)
    name = owners.name_of(paths)
    own = key_files.public(run_keys.signer(paths, governance))
    policy = policy_history.load(paths, governance).newest
    given = read_envelope(add)
    opened = {"key": own, "experiment": name, "certificate": given}
    trusted = run_keys.certifiers(policy)
    if not trusted:
        raise PolicyRefused(
            "P10", "the policy asks for no certificate", where=f"policy {policy.name}"
        )
    try:
        seals.trust_of(opened, datetime.now(UTC).isoformat(), trusted)
    except GovernanceBroken as error:
        what = error.what.partition(": ")[2]
        raise PolicyRefused("P10", what, where=str(add), hint=error.hint) from None
    return SignedView("certificate", name, own, "", str(_kept(paths, given)))


def _kept(paths: ExperimentPaths, envelope: Mapping[str, Any]) -> Path:
    from hpcdet.policy.keys import run_keys

    try:
        return run_keys.keep(paths, envelope)
    except OSError as error:
        what = f"cannot write: {error.strerror}"
        hint = "who does not own it uses --run-key and --to; its owner takes that with --add"
        raise Unavailable(what, where=str(paths.certificates), hint=hint) from error


def read_envelope(path: Path) -> dict[str, Any]:
    """Return an envelope that ``policy sign`` has written.

    Raises:
        UsageError: it is none.
    """
    from hpcdet.store.fs import bounded_json, files

    try:
        found = bounded_json.json_value(files.read(path, 1 << 16))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or "payload" not in found:
        hint = "hpcdet policy sign makes one"
        raise UsageError("it is nothing that was signed", where=str(path), hint=hint)
    return found


def _write(to: Path, envelope: Mapping[str, Any]) -> None:
    from hpcdet.store.fs import files

    _refuse_nowhere(to)
    try:
        made = files.write_once(to, json.dumps(envelope, indent=1).encode() + b"\n", _SHARED)
    except OSError as error:
        raise Unavailable(f"cannot write: {error.strerror}", where=str(to)) from error
    if not made:
        raise UsageError("it is there already", where=str(to), hint="take another name")


def _refuse_nowhere(file: Path) -> None:
    """Refuse an output path whose folder does not exist. Raises UsageError."""
    if not file.parent.is_dir():
        hint = f"mkdir -p {file.parent}"
        raise UsageError("there is no such folder", where=str(file.parent), hint=hint)
