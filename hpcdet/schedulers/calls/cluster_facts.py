"""Facts that a site file leaves open, asked of the cluster once and kept for a day.

What a cluster says lies in ``NAMEfacts-KEY.json`` of the user's cache folder, a file for each
cluster as this host sees it. The answers go into the resolved site, so that nodes need not ask.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from hpcdet.errors import IntegrityError, Unavailable
from hpcdet.schedulers.calls.polling import cache_folder
from hpcdet.site import Site
from hpcdet.store.fs import files

GOOD_FOR_S = 86400.0

Answer = tuple[str, tuple[Any, str]]
"""A key of the site, its value, and the source of that."""


@dataclass(frozen=True)
class SaidFacts:
    """Answers of a cluster.

    Attributes:
        at: when, epoch seconds.
        said: plain data; None: nothing is known.
        why: it says nothing new, or nothing.
    """

    at: float = 0.0
    said: Any = None
    why: str = ""

    @property
    def day(self) -> date:
        """The day in UTC."""
        return datetime.fromtimestamp(self.at, UTC).date()


def recall(name: str, seen: object, ask: Callable[[], Any], *, fresh: bool) -> SaidFacts:
    """Return the answers of a cluster; ask it anew if they are older than a day.

    Args:
        name: how the file's name begins.
        seen: what tells this cluster from others, as this host sees it.
        ask: returns plain data; raises Unavailable.
        fresh: ask now, whatever is known.
    """
    try:
        path = _path(name, seen)
        before = _read(path)
        if before.said is not None and not fresh and 0 <= time.time() - before.at < GOOD_FOR_S:
            return before
        try:
            now = SaidFacts(time.time(), ask())
        except Unavailable as error:
            return SaidFacts(before.at, before.said, f"the cluster did not answer ({error.what})")
        files.replace(path, files.canonical({"at": now.at, "said": now.said}))
        return now
    except (OSError, Unavailable) as error:
        return SaidFacts(why=f"the user's cache folder cannot be used ({error})")


def _path(name: str, seen: object) -> Path:
    digest = hashlib.sha256(repr((socket.getfqdn(), seen)).encode()).hexdigest()[:16]
    return cache_folder() / f"{name}facts-{digest}.json"


def _read(path: Path) -> SaidFacts:
    try:
        kept = files.read_json(path) or {}
        found = SaidFacts(float(kept["at"]), kept["said"])
        _ = found.day
    except (OSError, KeyError, TypeError, ValueError, OverflowError, IntegrityError):
        return SaidFacts()  # of another version, or damaged: ask anew
    return found


NOT_ASKED = SaidFacts(why="it was not asked")


def settle(
    site: Site, known: SaidFacts, answers: Callable[[Any], Iterable[Answer]], *, fresh: bool
) -> tuple[Site, str]:
    """Return the site with the answers, and why some of it is assumed, as ``FactsFace.resolved``.

    Args:
        answers: what ``known.said`` means, for keys of the site; those not open are ignored.
        fresh: a new answer was wanted.
    """
    found = {} if known.said is None else dict(answers(known.said))
    told = {key: answer for key, answer in found.items() if key in site.open}
    values: dict[str, Any] = {}
    for part in ("capabilities", "limits"):
        own = {
            key.partition(".")[2]: value for key, (value, _) in told.items() if key.startswith(part)
        }
        values[part] = getattr(site, part).model_copy(update=own)
    assumed = site.open - told.keys()
    origins = {key: f"asked on {known.day}: {source}" for key, (_, source) in told.items()}
    origins |= dict.fromkeys(assumed, f"assumed: {known.why or 'the cluster does not say'}")
    settled = site.settled(values, origins)
    if known.said is None:
        keys = ", ".join(sorted(assumed))
        return settled, f"{known.why}: careful values are assumed for {keys}"
    # whoever wanted another answer hears that it is the former one
    stands = f"{known.why}: what it said on {known.day} stands"
    return settled, stands if known.why and fresh else ""
