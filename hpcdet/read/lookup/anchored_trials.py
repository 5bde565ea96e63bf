"""Heads of an experiment's ledgers that anchors hold: read where they can be, or given as a log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from hpcdet.errors import IntegrityError
from hpcdet.policy import named_policy
from hpcdet.policy.ledger import anchored, owners, records
from hpcdet.policy.ledger.anchored import AnchoredHead, HeadsBesideLedgers
from hpcdet.policy.ledger.owners import Owner
from hpcdet.policy.ledger.records import AttemptLedger, LedgerHead
from hpcdet.policy.ledger.verify import FirstBad, VerifiedLedger
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Trial
from hpcdet.store.trials import parents

_PARENT = "put the ledger back from a backup; what the trial goes on from proves nothing"


@dataclass(frozen=True)
class AnchorHeads:
    """The heads that an anchor holds of an experiment's trials, and of those they go on from.

    Attributes:
        anchor: ``file:DIR``, or the log that was given.
        heads: by trial, of this experiment or another one.
    """

    anchor: str
    heads: Mapping[Owner, set[AnchoredHead]] = field(default_factory=dict)

    def of(self, experiment: str, trial: int) -> set[AnchoredHead]:
        """The heads of a trial."""
        return self.heads.get((experiment, trial), set())

    def beside(
        self, ledgers: Sequence[AttemptLedger], own: Owner | None = None, *, copies: bool = False
    ) -> HeadsBesideLedgers:
        """Compare with the ledgers of a trial, as ``anchored.expected`` has them."""
        heads = anchored.expected(self.of, ledgers, own, copies=copies)
        return anchored.beside(self.anchor, set().union(*heads.values()), ledgers)


def read(
    paths: ExperimentPaths, trial: int, logs: Sequence[IO[bytes]]
) -> tuple[list[AnchorHeads], list[str]]:
    """Read the ``file:`` anchors that an experiment's policies name, and logs.

    Args:
        trial: the only one that is asked for; 0: all.
        logs: lines of other anchors, or copies of files.

    Returns:
        What they hold, and what cannot be read here.

    Raises:
        GovernanceBroken: the policy is not the one that was submitted.
        IntegrityError: a log has too many heads.
    """
    wanted = _owners(paths, trial)
    found, warnings = [], []
    given = _anchors(paths)
    for folder in anchored.folders(given):
        name = f"{anchored.FILE}{folder}"
        try:
            found.append(AnchorHeads(name, _of_folder(folder, paths, wanted, trial)))
        except (OSError, IntegrityError) as error:
            warnings.append(f"{name} cannot be read: {error}")
    names = {name for name, _ in wanted}
    for log in logs:
        by_trial: dict[Owner, set[AnchoredHead]] = defaultdict(set)
        for head in anchored.heads_in(log, Path(log.name), names):
            by_trial[head.experiment, head.trial].add(head)
        found.append(AnchorHeads(str(log.name), by_trial))
    blind = [one for one in given if not one.startswith(anchored.FILE)]
    if blind and not logs:
        what = ", ".join(one.partition(":")[0] for one in blind)
        warnings.append(f"{what} cannot be read back: give lines of its log by --anchored")
    return found, warnings


def beside_parent(
    anchors: Sequence[AnchorHeads], paths: ExperimentPaths, trial: TrialPaths, own: VerifiedLedger
) -> tuple[FirstBad | None, list[str]]:
    """Compare the ledgers that a trial goes on from with what anchors hold of them.

    Args:
        own: ledgers of the trial, the first of which names the record that it goes on from.

    Returns:
        The first head that they do not have, and what cannot be compared.
    """
    text = _parent(trial)
    read = (records.read(one.number, one.ledger) for one in parents.of_parent(paths, trial, text))
    theirs = [one for one in read if one is not None]
    copies = owners.are_copies(trial, text)
    link = next((one.records[0].body.get("parent") for one in own.ledgers if one.records), None)
    warnings = []
    for anchor in anchors:
        if (bad := anchor.beside(theirs, copies=copies).bad) is not None:
            path = next((str(one.path) for one in theirs if one.attempt == bad.attempt), "")
            what = f"of its parent: attempt {bad.attempt}, record {bad.seq}: {bad.what}"
            return replace(bad, what=what, where=path or str(trial.root), hint=_PARENT), []
        head = {name: link.get(name) for name in ("attempt", "seq", "hash")} if link else None
        if copies and records.is_head(head):
            newer = anchored.not_copied(anchor.of, theirs, LedgerHead(**head))
            if newer is not None:
                what = f"trial {trial.number}: {anchor.anchor} holds record {newer.seq} of its "
                warnings.append(f"{what}parent's attempt {newer.attempt}, and the copy ends before")
    return None, warnings


def name_of(paths: ExperimentPaths) -> str:
    """The name of an experiment in its ledgers."""
    attempts = (attempt for trial in paths.trials() for attempt in trial.attempts())
    return owners.name_of(paths, _said(attempts))


def _anchors(paths: ExperimentPaths) -> list[str]:
    """The anchors that the policy of an experiment, or a change of it, names."""
    from hpcdet.policy.changes import policy_history

    config = resolved_config.load(paths.config)
    if config.governance is None:
        named_policy.require(paths, config)
        return []
    policies = policy_history.load(paths, config.governance, own=False).policies
    return list(dict.fromkeys(anchor for one in policies for anchor in one.ledger.anchor))


def _of_folder(
    folder: Path, paths: ExperimentPaths, wanted: set[Owner], trial: int
) -> dict[Owner, set[AnchoredHead]]:
    """The heads that a folder holds, also of trials that are not there any more."""
    uid = paths.config.stat().st_uid
    if trial == 0:
        name = name_of(paths)
        wanted = wanted | {(name, one) for one in anchored.trials_in(folder, name, uid)}
    return {one: anchored.heads_in_folder(folder, *one, uid) for one in wanted}


def _owners(paths: ExperimentPaths, trial: int) -> set[Owner]:
    """Trials, and those whose ledgers they have or go on from."""
    name = name_of(paths)
    found = {(name, trial)} if trial else set()
    for one in paths.trials():
        if trial in (0, one.number):
            before = parents.of_parent(paths, one, _parent(one))
            found |= {(name, one.number), *_said([*one.attempts(), *before])}
    return found


def _parent(trial: TrialPaths) -> str:
    record = Trial.read(trial.record)
    return record.parent if record else ""


def _said(attempts: Iterable[AttemptPaths]) -> Iterator[Owner]:
    return filter(None, (owners.said_in(one.ledger) for one in attempts))
