"""Trials under a policy beside their ledgers: whether attempts and checkpoints are all in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from hpcdet.errors import IntegrityError
from hpcdet.policy import named_policy
from hpcdet.policy.changes import policy_history
from hpcdet.policy.changes.policy_history import PolicyHistory
from hpcdet.policy.codes import GovernanceBroken
from hpcdet.policy.keys import run_keys
from hpcdet.policy.ledger import records
from hpcdet.policy.ledger.attested import CheckpointClaim, attested, refuse_other_counts
from hpcdet.policy.ledger.records import AttemptLedger
from hpcdet.policy.ledger.verify import FirstBad, VerifiedLedger, verify
from hpcdet.read.governed.trained_policies import TrainedPolicies
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import CHECKPOINT_NAME, INHERITED, ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Trial, Verdict
from hpcdet.store.trials import manifests, parents, progress, standing

_CUT = "put the ledger back from a backup; what it lacks nobody can tell"
NO_PARENT = "the ledgers of its parent are not there"


class GovernedExperiment:
    """An experiment, its policy with all changes, and the keys that sign its ledgers.

    Attributes:
        history: None: it has no policy.

    Raises:
        GovernanceBroken: the policy is not the one that was submitted, a change is not signed, or
            the config names no policy any more.
    """

    def __init__(self, paths: ExperimentPaths) -> None:
        self.paths = paths
        self.history: PolicyHistory | None = None
        self.trust: list[str] = []
        self.certifiers: list[str] = []
        self._config = config = resolved_config.load(paths.config)
        governance = config.governance
        if governance is None:
            named_policy.require(paths, config)
        else:
            self.history = policy_history.load(paths, governance, own=False)
            self.trust = run_keys.signers(self.history.newest, governance)
            self.certifiers = run_keys.certifiers(self.history.newest)

    def trust_of_parent(self, parent: str) -> list[str]:
        """The keys that may have signed the ledgers of a trial's parent, or certified theirs.

        Args:
            parent: as the trial's record has it.
        """
        if self.history is None:
            return []
        return run_keys.parents_signers(self.history.newest, self._config, parent)


class AttestedTrial:
    """A trial, and what its ledgers say of it; each file is read once."""

    def __init__(self, experiment: GovernedExperiment, trial: TrialPaths) -> None:
        self._experiment, self._trial = experiment, trial

    @cached_property
    def ledgers(self) -> list[AttemptLedger]:
        """Those of its attempts, as far as they are there."""
        return _read(self._trial.attempts())

    @cached_property
    def policies(self) -> TrainedPolicies | None:
        """The policies that its attempts were under; None: the experiment has none."""
        history = self._experiment.history
        return None if history is None else TrainedPolicies(history, self.ledgers)

    @cached_property
    def _verified(self) -> VerifiedLedger:
        return verify(self.ledgers, self._experiment.trust, trial=self._trial.number)

    @cached_property
    def _record(self) -> Trial | None:
        return Trial.read(self._trial.record)

    @cached_property
    def _of_parent(self) -> tuple[list[AttemptLedger], list[str]]:
        """The ledgers of the trial that it began from, and the keys that may have signed them."""
        text = self._record.parent if self._record else ""
        found = _read(parents.of_parent(self._experiment.paths, self._trial, text))
        return found, self._experiment.trust_of_parent(text)

    def whole(self) -> VerifiedLedger | None:
        """Verify its ledgers, and that attempts and checkpoints are in them; None: it has none.

        Raises:
            IntegrityError: a ledger is no plain file.
        """
        # before ledgers: a trial may be training
        attempts = self._trial.attempts()
        done = [one.number for one in attempts if _is_done(one)]
        trained = [one for one in attempts if progress.of(one).first_step]
        there = list(self._checkpoints())
        found = self._verified
        if found.bad is None:
            bad = self._incomplete(trained, done) or next(self._unattested(there), None)
            found = replace(found, bad=bad)
        if not found.ledgers and found.bad is None:
            return None
        own = found.signed == "trusted" and not self._experiment.certifiers
        return replace(found, signed="self") if own else found

    def check(self, folder: Path) -> str:
        """Verify a checkpoint of it by its manifest and ledgers.

        Returns:
            Why that cannot be known; "" if it is as it was written.

        Raises:
            GovernanceBroken: G102 to G106, G108, G114: it is not.
            IntegrityError: its manifest cannot be read.
        """
        manifest = manifests.read(folder)
        meta, name = manifest["meta"], str(manifest["name"])
        named = CHECKPOINT_NAME.fullmatch(folder.name)
        inherited = named is not None and int(named[2]) == INHERITED
        if "governance" not in meta and (inherited or self._experiment.history is None):
            return ""  # it says nothing, and is of nothing governed
        if name != folder.name:
            what = f"it is the checkpoint {name}, in the folder of another one"
            hint = "hpcdet ckpt rm removes it: a trial goes on from another one"
            raise GovernanceBroken("G103", what, where=str(folder), hint=hint)
        claim = CheckpointClaim.of(folder, name, manifest["digest"], meta)
        if inherited:
            if self._record and self._record.origin.get("digest") != claim.digest:
                what = "it is another checkpoint than the trial's record names to begin from"
                hint = "begin it anew: hpcdet fork"
                raise GovernanceBroken("G103", what, where=str(folder), hint=hint)
            ledgers, trust = self._of_parent
            if not ledgers:
                return NO_PARENT
            found = attested(claim, ledgers, trust, trial=None)
        else:
            known = None if self._verified.bad else self._verified
            trust, number = self._experiment.trust, self._trial.number
            found = attested(claim, self.ledgers, trust, trial=number, verified=known)
            self._refuse_other_policy(claim)
        if not self._answered_for("G114"):
            refuse_other_counts(claim, found)
        return ""

    def doubt(self, folder: Path) -> str:
        """Return why a checkpoint proves nothing of its training; "" if it is verified."""
        try:
            return self.check(folder)
        except IntegrityError as error:
            return error.what
        except OSError as error:
            return f"a ledger cannot be read: {error.strerror}"

    def _refuse_other_policy(self, claim: CheckpointClaim) -> None:
        digest = str(claim.said.get("policy_digest"))
        if self.policies is not None and self.policies.of_digest(digest) is None:
            what = f"it was trained under the policy {digest[:23]}…, never in effect"
            hint = "the folder policies/ has other changes than when it was saved"
            raise GovernanceBroken("G108", what, where=str(claim.folder), hint=hint)

    def _answered_for(self, code: str) -> bool:
        """True if a record overrides a check of this trial."""
        history, of = self._experiment.history, (0, self._trial.number)
        acts = () if history is None else history.changes
        return any(one.act == "override" and one.code == code and one.trial in of for one in acts)

    def _checkpoints(self) -> Iterator[Path]:
        for name in standing.checkpoints(self._trial):
            for place in self._trial.checkpoint_places:
                if (place / name / standing.MANIFEST).is_file():
                    yield place / name

    def _incomplete(self, trained: list[AttemptPaths], done: list[int]) -> FirstBad | None:
        """The first attempt that trained, or ended well, without a ledger that says so."""
        by_attempt = {one.attempt: one for one in self.ledgers if one.records}
        governed = self._experiment.history is not None or bool(by_attempt)
        for one in trained if governed else ():
            if one.number not in by_attempt:
                what = f"attempt {one.number} has trained, and has no ledger"
                return FirstBad(one.number, 0, "G105", what, str(one.ledger), _CUT)
        for ledger in by_attempt.values():
            if ledger.attempt in done and all(x.type != "close" for x in ledger.records[-2:]):
                what = "it has no end, and its attempt has ended well: it was cut, or the disk full"
                return FirstBad(ledger.attempt, len(ledger.records), "G105", what)
        return None

    def _unattested(self, folders: list[Path]) -> Iterator[FirstBad]:
        for folder in folders:
            try:
                self.check(folder)
            except IntegrityError as error:
                if not (folder / standing.MANIFEST).exists():
                    continue  # removed meanwhile
                named = CHECKPOINT_NAME.fullmatch(folder.name)
                code, why = "G103", error.what
                if isinstance(error, GovernanceBroken):
                    code, why = error.check, why.partition(": ")[2]
                what, of = f"checkpoint {folder.name}: {why}", int(named[2]) if named else 0
                yield FirstBad(of, 0, code, what, error.where, error.hint)


def _read(attempts: list[AttemptPaths]) -> list[AttemptLedger]:
    read = (records.read(one.number, one.ledger) for one in attempts)
    return [one for one in read if one is not None]


def _is_done(attempt: AttemptPaths) -> bool:
    verdict = Verdict.read(attempt.verdict)
    return verdict is not None and verdict.verdict == "done"
