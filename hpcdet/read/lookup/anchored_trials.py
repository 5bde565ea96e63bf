"""Heads of an experiment's ledgers that anchors hold: read where they can be, or given as a log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from hpcdet.errors import IntegrityError
from hpcdet.policy import named_policy
from hpcdet.policy.ledger import anchored, records
from hpcdet.policy.ledger.anchored import AnchoredHead
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import packed


@dataclass(frozen=True)
class AnchorHeads:
    """The heads of an experiment that an anchor holds.

    Attributes:
        anchor: ``file:DIR``, or the log that was given.
        heads: by trial.
    """

    anchor: str
    heads: Mapping[int, set[AnchoredHead]] = field(default_factory=dict)


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
    experiment = _name(paths)
    found, warnings = [], []
    given = _anchors(paths)
    for folder in anchored.folders(given):
        name = f"{anchored.FILE}{folder}"
        try:
            found.append(AnchorHeads(name, _of_folder(folder, paths, experiment, trial)))
        except (OSError, IntegrityError) as error:
            warnings.append(f"{name} cannot be read: {error}")
    for log in logs:
        by_trial: dict[int, set[AnchoredHead]] = defaultdict(set)
        for head in anchored.heads_in(log, Path(log.name), experiment):
            if trial in (0, head.trial):
                by_trial[head.trial].add(head)
        found.append(AnchorHeads(str(log.name), by_trial))
    blind = [one for one in given if not one.startswith(anchored.FILE)]
    if blind and not logs:
        what = ", ".join(one.partition(":")[0] for one in blind)
        warnings.append(f"{what} cannot be read back: give lines of its log by --anchored")
    return found, warnings


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
    folder: Path, paths: ExperimentPaths, experiment: str, trial: int
) -> dict[int, set[AnchoredHead]]:
    """The heads that a folder holds, also of trials that are not there any more."""
    uid = paths.config.stat().st_uid
    known = {one.number for one in paths.trials()} | set(
        anchored.trials_in(folder, experiment, uid)
    )
    chosen = sorted(known) if trial == 0 else [trial]
    return {one: anchored.heads_in_folder(folder, experiment, one, uid) for one in chosen}


def _name(paths: ExperimentPaths) -> str:
    """The name of an experiment in its ledgers: that of its folder, unless that was renamed."""
    return next(_names(paths), paths.id)


def _names(paths: ExperimentPaths) -> Iterator[str]:
    for trial in paths.trials():
        for attempt in trial.attempts():
            try:
                with packed.open_file(attempt.ledger) as file:
                    first, _ = records.parse(file.readline(records.LONGEST)[:-1])
            except (OSError, ValueError, IntegrityError):
                continue
            if isinstance(name := first.body.get("experiment"), str):
                yield name
