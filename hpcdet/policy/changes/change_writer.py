"""Writing of records: a changed policy, a source withdrawn, a check overridden."""

from __future__ import annotations

import getpass
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdet.errors import Unavailable
from hpcdet.policy.changes import change_records, policy_history
from hpcdet.policy.changes.change_records import Act, PolicyApproval, PolicyChange
from hpcdet.policy.changes.policy_history import PolicyHistory
from hpcdet.policy.changes.strictness import kind_between
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy, PolicyText
from hpcdet.policy.keys import key_files, run_keys
from hpcdet.store.config.resolved_config import Governance
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files

if TYPE_CHECKING:  # imported where something is signed only
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True)
class WrittenChange:
    """A record that was written, its file, and the policies before and after it."""

    path: Path
    change: PolicyChange
    before: CompiledPolicy
    after: CompiledPolicy


class ChangeWriter:
    """Adds records to an experiment's policy, each signed by its run key.

    Raises:
        GovernanceBroken: what is there already is not what was written.
        PolicyRefused: P10: the run key cannot be read.
    """

    def __init__(self, paths: ExperimentPaths, governance: Governance) -> None:
        self._paths = paths
        self._key = run_keys.signer(paths, governance)
        self.history: PolicyHistory = policy_history.load(paths, governance)

    def change(
        self,
        policy: PolicyText,
        reason: str,
        approvals: Sequence[Mapping[str, Any]] = (),
        by: Ed25519PrivateKey | None = None,
    ) -> WrittenChange:
        """Put another policy into effect.

        Args:
            approvals: envelopes of ``PolicyApproval``.
            by: a key that approves it here and now.

        Raises:
            PolicyRefused: G108: it changes nothing, or what cannot change, or has not the
                approvals that it needs.
            Unavailable: another change was made meanwhile, or it cannot be written.
        """
        before, after = self.history.newest, policy.compiled
        if before.digest == after.digest:
            raise PolicyRefused("G108", "it is the policy in effect already", where=after.name)
        run = key_files.public(self._key)
        given = list(approvals)
        if by is not None:
            self._refuse_stranger(key_files.public(by), before)
            given.append(approve(after, by, before.digest, run))
        try:
            kind = policy_history.require_allowed(before, after, tuple(given), run)
        except GovernanceBroken as error:
            what = error.what.partition(": ")[2]
            raise PolicyRefused("G108", what, where=after.name, hint=error.hint) from None
        change = self._begun("change", before, after, reason)
        change = replace(change, kind=kind, policy=after.to_json(), text=policy.text)
        return self._write(change, after, given)

    def revoke(self, source: str, reason: str) -> WrittenChange:
        """Withdraw a source: it changes nothing any more.

        Raises:
            PolicyRefused: G112: the policy has no such source, or it changes nothing as it is.
            Unavailable: as ``change``.
        """
        before = self.history.newest
        if source not in before.codes:
            hint = f"its sources are {', '.join(before.codes)}"
            raise PolicyRefused("G112", "the policy has no such source", where=source, hint=hint)
        after = before.denying({source})
        if after.digest == before.digest:
            raise PolicyRefused("G112", "it may change nothing already", where=source)
        change = replace(self._begun("revoke", before, after, reason), source=source)
        return self._write(change, after)

    def override(self, code: str, reason: str, trial: int = 0, until: int = 0) -> WrittenChange:
        """Let training go on where a check of a resume fails.

        Args:
            trial: the only one that may; 0: all.
            until: the last step, in batches, of checkpoints for which it counts, also of those
                that are made from now on; 0: for those of attempts that have begun by now.

        Raises:
            PolicyRefused: the check cannot be overridden; its own code, or P01 of what is none.
            Unavailable: as ``change``.
        """
        refusal = policy_history.not_overridable(code)
        if refusal:
            hint = f"these can be: {', '.join(policy_history.OVERRIDABLE)}"
            what = refusal.removeprefix(f"{code} ")
            raise PolicyRefused(code if what != refusal else "P01", what, hint=hint)
        before = self.history.newest
        change = self._begun("override", before, before, reason)
        return self._write(replace(change, code=code, trial=trial, until=until), before)

    def _refuse_stranger(self, key: str, before: CompiledPolicy) -> None:
        trusted = {one.key: one.id for one in before.trust if one.role == "policy"}
        if key not in trusted:
            named = ", ".join(trusted.values())
            raise PolicyRefused(
                "P10",
                f"the policy in effect does not trust the key {key[:16]}… with approvals",
                where="--key",
                hint=f"it trusts {named}" if named else "its `trust` has no key of role policy",
            )

    def _begun(
        self, act: Act, before: CompiledPolicy, after: CompiledPolicy, reason: str
    ) -> PolicyChange:
        return PolicyChange(
            number=len(self.history.changes) + 1,
            act=act,
            experiment=self._paths.id,
            run=key_files.public(self._key),
            before=before.digest,
            after=after.digest,
            previous=self.history.last,
            kind=kind_between(before, after),
            reason=reason,
            by=getpass.getuser(),
            time=files.now(),
        )

    def _write(
        self,
        change: PolicyChange,
        after: CompiledPolicy,
        approvals: Sequence[Mapping[str, Any]] = (),
    ) -> WrittenChange:
        path = self._paths.policy_changes / f"{change.number:04d}.json"
        record = change_records.sign(change, self._key)
        written = change_records.to_file(record, approvals)
        if len(approvals) > change_records.APPROVALS or len(written) > change_records.LARGEST:
            raise PolicyRefused(
                "G108",
                f"it has {len(approvals)} approvals and {len(written)} bytes, and a record at most "
                f"{change_records.APPROVALS} and {change_records.LARGEST}",
                where=after.name,
                hint="give the approvals that the policy in effect asks for, each once",
            )
        try:
            mine = files.write_once(path, written)
        except OSError as error:
            what = f"cannot write: {error.strerror}"
            raise Unavailable(what, where=str(path)) from error
        if not mine:
            hint = "look at it: hpcdet policy show; then run this again"
            raise Unavailable(
                "somebody has changed it at the same time", where=str(path), hint=hint
            )
        return WrittenChange(path, change, self.history.newest, after)


def approve(
    policy: CompiledPolicy, by: Ed25519PrivateKey, before: str, run: str = ""
) -> dict[str, Any]:
    """Return the envelope of an approval of a policy.

    Args:
        before: digest of the policy in effect, which it replaces.
        run: public run key of the one experiment that it is for; "": any.
    """
    said = PolicyApproval(policy.digest, before, policy.name, policy.version, run, files.now())
    return change_records.sign(said, by)
