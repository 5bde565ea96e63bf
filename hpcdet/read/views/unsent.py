"""Messages of an experiment that wait to be sent."""

from __future__ import annotations

from dataclasses import dataclass

from hpcdet.store.decisions import outbox
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Channel, Occasion


@dataclass(frozen=True)
class UnsentView:
    """A message that waits to be sent."""

    event: Occasion
    """What it tells of."""
    channel: Channel
    """By what it is to be sent."""
    at: str
    """When that happened."""
    tries: int
    """How often sending it has failed."""
    why: str
    """Why it failed last; "" before."""


def unsent(paths: ExperimentPaths) -> list[UnsentView]:
    """Return the messages that wait to be sent, oldest first."""
    return [
        UnsentView(
            one.message.event,
            one.channel,
            one.message.at,
            one.failed.tries if one.failed else 0,
            one.failed.why if one.failed else "",
        )
        for one in outbox.pending(paths)
    ]
