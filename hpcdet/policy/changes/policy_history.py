"""The policies of an experiment in order: the one it was submitted under, and each change of it.

Every record is verified when it is read: that the run key has signed it, that it follows the record
before it, that what it changes may change, and that whoever has to has approved it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcdet.errors import ConfigError
from hpcdet.policy import experiment_policy
from hpcdet.policy.changes import change_records, known_changes
from hpcdet.policy.changes.change_records import ChangeFile, PolicyChange
from hpcdet.policy.changes.strictness import fixed_difference, kind_between
from hpcdet.policy.changes.weight_changes import Kind
from hpcdet.policy.codes import RESUME_CODES, GovernanceBroken
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.policy.keys import key_files, run_keys
from hpcdet.store.config.resolved_config import Governance
from hpcdet.store.folder import trust
from hpcdet.store.folder.layout import ExperimentPaths

HARD = ("G102", "G103", "G104", "G105", "G115", "G123")
"""Checks that no override reaches: they are evidence of a leak, or of a forgery."""
OVERRIDABLE = ("G111", "G114", "G116", "G117", "G118", "G119", "G120", "G122")
"""Checks after which training could go on all the same, if somebody answers for it."""


@dataclass(frozen=True)
class PolicyHistory:
    """The policies of an experiment.

    Attributes:
        policies: the submitted one, then that after each record of ``changes``.
        changes: the records, in order.
        digests: SHA-256 of their files, hex.
    """

    policies: tuple[CompiledPolicy, ...]
    changes: tuple[PolicyChange, ...] = ()
    digests: tuple[str, ...] = ()

    @property
    def last(self) -> str:
        """Digest of the newest record's file; "" if there is none."""
        return self.digests[-1] if self.digests else ""

    @property
    def newest(self) -> CompiledPolicy:
        """The policy after all records."""
        return self.policies[-1]


def load(paths: ExperimentPaths, governance: Governance, *, own: bool = True) -> PolicyHistory:
    """Read and verify the policies of an experiment.

    Args:
        own: the run key is at hand, and records must be signed by it; False: a reader has it not,
            and they must be signed by the key that the experiment was submitted with, or all by
            one key where that is not known.

    Raises:
        GovernanceBroken: a policy or a record is gone, damaged, out of place (G108, G110), not
            signed as it has to be (G102), not approved (G108), or of an unknown version (G101); or
            a trial has trained with changes that are not there (G108).
        PolicyRefused: P10: the run key cannot be read.
    """
    found = PolicyHistory((experiment_policy.load(paths, governance),))
    known = known_changes.by_ledgers(paths)  # first: records may be added meanwhile
    numbered = _records(paths)
    run = governance.signer
    if numbered and own:
        run = key_files.public(run_keys.signer(paths, governance))
    for path in numbered:
        try:
            file = change_records.read_file(path)
            change = change_records.change_of(file.record, run)
            found, run = _after(found, change, file), change.run
        except GovernanceBroken as error:
            what = error.what.partition(": ")[2]
            raise GovernanceBroken(error.check, what, where=str(path), hint=error.hint) from None
    known_changes.refuse_lost(known, found.digests, paths.policy_changes)
    return found


def on_nodes(
    submitted: CompiledPolicy, paths: ExperimentPaths, governance: Governance | None
) -> CompiledPolicy:
    """Return the policy by which nodes are judged: the newest one of an experiment.

    What it requires of nodes stays as submitted, but not who signs their statements. Where it
    requires nothing, changes are not read.

    Raises:
        GovernanceBroken, PolicyRefused: as ``load``.
    """
    if governance is None or not submitted.on_nodes.capabilities:
        return submitted
    return load(paths, governance, own=False).newest


def _records(paths: ExperimentPaths) -> list[Path]:
    """The records of an experiment, in order, none of which is missing.

    Raises:
        GovernanceBroken: G108: one is, or others may write them.
    """
    folder = paths.policy_changes
    try:
        names = [one.name for one in folder.iterdir() if change_records.NAME.fullmatch(one.name)]
    except FileNotFoundError:
        return []
    except OSError as error:
        what = f"cannot list the changes of the policy: {error.strerror}"
        hint = f"see that you may read it: ls -ld {folder}"
        raise GovernanceBroken("G108", what, where=str(folder), hint=hint) from None
    numbers = sorted(int(name.partition(".")[0]) for name in names)
    for wanted, number in enumerate(numbers, 1):
        if number != wanted:
            what = f"change {wanted:04d} of the policy is missing, and {number:04d} is there"
            hint = "put it back from a backup: changes count in their order"
            raise GovernanceBroken("G108", what, where=str(folder), hint=hint)
    found = [folder / f"{number:04d}.json" for number in numbers]
    try:
        for one in (folder, *found):
            trust.refuse_writable_by_others(one, "policy's changes")
    except ConfigError as error:
        where, hint = error.where or str(folder), error.hint
        raise GovernanceBroken("G108", error.what, where=where, hint=hint) from None
    except OSError as error:
        what = f"cannot look at {error.filename}: {error.strerror}"
        hint = "names are 0001.json, 0002.json and so on, and none leads into nothing"
        raise GovernanceBroken("G108", what, where=str(folder), hint=hint) from None
    return found


def _after(found: PolicyHistory, change: PolicyChange, file: ChangeFile) -> PolicyHistory:
    """The history with one more record, which is verified."""
    number, before = len(found.changes) + 1, found.newest
    if change.number != number or change.previous != found.last or change.before != before.digest:
        hint = "hpcdet policy change writes them in their order: put the folder back from a backup"
        raise GovernanceBroken("G108", "it does not follow the change before it", hint=hint)
    if change.act == "override":
        refusal = not_overridable(change.code)
        if refusal:
            raise GovernanceBroken("G108", refusal)
        after = before
    elif change.act == "revoke":
        after = before.denying({change.source})
    else:
        after = CompiledPolicy.from_json(change.policy, "its policy")
        require_allowed(before, after, file.approvals, change.run)
    if after.digest != change.after:
        raise GovernanceBroken("G108", "the policy after it is not the one that it says")
    return PolicyHistory(
        (*found.policies, after), (*found.changes, change), (*found.digests, file.digest)
    )


def require_allowed(
    before: CompiledPolicy,
    after: CompiledPolicy,
    approvals: tuple[Mapping[str, object], ...],
    run: str,
) -> Kind:
    """Return the kind of a change that those who have to have approved.

    Args:
        approvals: envelopes of ``PolicyApproval``.
        run: public run key of the experiment.

    Raises:
        GovernanceBroken: G108: it changes what cannot change, its version does not grow, or it
            lacks approvals of keys that ``before`` trusts.
    """
    if fixed := fixed_difference(before, after):
        raise GovernanceBroken(
            "G108",
            f"{fixed} cannot change while an experiment lives",
            hint="submit another experiment under that policy; searcher.begin_from lets it go on "
            "from a checkpoint of this one",
        )
    if after.version <= before.version:
        raise GovernanceBroken(
            "G108",
            f"its version is {after.version}, and that of the policy in effect {before.version}",
            hint=f"versions count up with each change: write version: {before.version + 1}",
        )
    kind = kind_between(before, after)
    rules = before.changes
    needed = rules.tighten_approvals if kind in ("tighten", "same") else rules.loosen_approvals
    trusted = {one.key for one in before.trust if one.role == "policy"}
    change = before.digest, after.digest
    given = change_records.approvers(approvals, change, run, trusted)
    if len(given) < needed:
        names = ", ".join(one.id for one in before.trust if one.role == "policy")
        raise GovernanceBroken(
            "G108",
            f"the change ({kind}) needs {needed} approvals, and has {len(given)}",
            hint="an approval is of one change, from the policy in effect, and counts once: who "
            f"has the private key of {names} runs hpcdet policy sign FILE --for EXP --key KEY"
            if names
            else "the policy's `trust` has no key of role policy: it can only be tightened",
        )
    return kind


def not_overridable(code: str) -> str:
    """Why a check cannot be overridden; "" if it can."""
    if code in OVERRIDABLE:
        return ""
    if code not in RESUME_CODES:
        return f"there is no check {code}"
    if code in HARD:
        return f"{code} cannot be overridden: {RESUME_CODES[code]}"
    return f"{code} cannot be overridden, but repaired: {RESUME_CODES[code]}"
