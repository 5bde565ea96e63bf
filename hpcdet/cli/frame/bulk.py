"""Bulk actions: one action tried on each of several experiments, with a line for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcdet.cli.frame.output import Column, Output
from hpcdet.cli.frame.settings import settings
from hpcdet.errors import HpcdetError, PartialSuccess, refused
from hpcdet.read.lookup import find

COLUMNS = (Column("ID", "id"), Column("OK", "ok"), Column("WHAT", "what", cut=False))


def each(
    out: Output,
    verb: str,
    ids: Sequence[str],
    act: Callable[[find.Reference], str],
    dry_run: bool = False,
) -> None:
    """Act on each; print items ``id, verb, ok, what, error, dry_run``.

    Args:
        act: carries out the action and returns what was done.

    Raises:
        PartialSuccess: it worked for some only.
        HpcdetError: that of the first one, if it worked for none.
    """
    out.expect(("id", "verb", "ok", "what", "error", "dry_run"))
    items: list[dict[str, Any]] = []
    failed: list[HpcdetError] = []
    for text in ids:
        item: dict[str, Any] = {"id": text, "verb": verb, "ok": True, "what": "", "error": ""}
        try:
            found = find.reference(text, settings().root)
            item |= {"id": str(found), "what": act(found)}
        except (HpcdetError, OSError) as caught:
            error = caught if isinstance(caught, HpcdetError) else refused(caught, text)
            failed.append(error)
            item |= {"ok": False, "what": error.what, "error": str(error)}
        items.append({**item, "dry_run": dry_run})
    if failed and len(failed) == len(ids):
        raise failed[0]
    out.emit(items, COLUMNS)
    if failed:
        raise PartialSuccess(f"{verb} failed for {len(failed)} of {len(ids)}", hint=str(failed[0]))
