"""Bulk actions: one action tried on each of several experiments, with a line for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcdet.cli.frame.output import Column, Output
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import HpcdetError, PartialSuccess, refused
from hpcdet.read.lookup import find

COLUMNS = (Column("ID", "id"), Column("OK", "ok", cut=False), Column("WHAT", "what", fold=True))


@dataclass(frozen=True)
class ActionView:
    """The effect of a verb on an experiment or trial."""

    id: str
    """The experiment, trial or attempt."""
    verb: str
    """The verb."""
    ok: bool
    """True if it worked."""
    what: str
    """What was done, or why not."""
    error: str
    """The whole error; "" without one."""
    dry_run: bool
    """True if nothing was done, with ``-n``."""


def each(
    out: Output,
    verb: str,
    ids: Sequence[str],
    act: Callable[[find.Reference], str],
    dry_run: bool = False,
) -> None:
    """Act on each; print an item for each.

    Args:
        act: carries out the action and returns what was done.

    Raises:
        PartialSuccess: it worked for some only.
        HpcdetError: that of the first one, if it worked for none.
    """
    out.expect()
    items: list[ActionView] = []
    failed: list[HpcdetError] = []
    for text in ids:
        name = text
        try:
            found = find.reference(text, settings().root)
            name = str(found)
            items.append(ActionView(name, verb, True, act(found), "", dry_run))
        except (HpcdetError, OSError) as caught:
            error = caught if isinstance(caught, HpcdetError) else refused(caught, text)
            failed.append(error)
            items.append(ActionView(name, verb, False, error.what, str(error), dry_run))
    if failed and len(failed) == len(ids):
        raise failed[0]
    out.emit(items, COLUMNS)
    if failed:
        raise PartialSuccess(f"{verb} failed for {len(failed)} of {len(ids)}", hint=str(failed[0]))
