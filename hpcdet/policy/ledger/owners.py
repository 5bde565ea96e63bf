"""Whose ledgers a trial has: its experiment's own, and those that a fork has taken over.

A trial that had ended is in a fork with all of its attempts, and may go on there: its next ledger
is the fork's own, so that no two experiments write the same attempt of the same trial.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from hpcdet.errors import IntegrityError
from hpcdet.policy.ledger import records
from hpcdet.policy.ledger.records import AttemptLedger
from hpcdet.store.folder import home
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.fs import packed
from hpcdet.store.trials import parents
from hpcdet.store.trials.parents import Parent

Owner = tuple[str, int]
"""The name of an experiment, and the number of a trial of it."""


def name_of(paths: ExperimentPaths, said: Iterable[Owner] = ()) -> str:
    """Return the name of an experiment in its ledgers: that of its folder when it was made.

    Args:
        said: by ledgers of it; that counts of an experiment of an older version, which may have
            been renamed.
    """
    return home.first_name(paths) or next((name for name, _ in said), paths.id)


def are_copies(child: TrialPaths, parent: str) -> bool:
    """Return True if the ledgers of a trial's parent are copies: it is another experiment's.

    Args:
        parent: as the record of the child has it.
    """
    named = Parent.parse(parent)
    here = named is not None and not named.experiment
    return not here or bool(parents.kept_ledgers(child).attempts())


def said_by(ledgers: Iterable[AttemptLedger]) -> Iterator[Owner]:
    """Yield whose ledgers are, those without a record left out."""
    return (owner_of(one) for one in ledgers if one.records)


def owner_of(ledger: AttemptLedger) -> Owner:
    """Return the trial that the first record of a ledger names; it has a record."""
    said = ledger.records[0].body
    return str(said.get("experiment")), int(said.get("trial") or 0)


def said_in(path: Path) -> Owner | None:
    """Return the trial that the first line of a ledger's file names; None: it names none."""
    with contextlib.suppress(OSError, ValueError, IntegrityError), packed.open_file(path) as file:
        first, _ = records.parse(file.readline(records.LONGEST)[:-1])
        if isinstance(name := first.body.get("experiment"), str):
            return name, int(first.body.get("trial") or 0)
    return None
