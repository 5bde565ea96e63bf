"""The events of a model: all that users did to it, numbered, each written once.

``NAME/events/000001.json`` and on. An event's number is taken by exclusive creation, after its
writer has judged the state that all events before it give; of two writers one gets the number, and
the other judges anew. So no event ever contradicts those before it, whoever writes at once. Each
has its own digest, and that of the event before it.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from hpcdet.errors import IntegrityError, Unavailable
from hpcdet.store.folder import trust
from hpcdet.store.fs import files, sealed_json
from hpcdet.store.fs.json_record import JsonRecord

EventKind = Literal["add", "alias", "unalias", "label", "note", "archive", "restore", "remove"]
_NAME = re.compile(r"(\d{6,})\.json")
_TRIES = 1000
_BACKUP = "put the model's events back from a backup"
State = TypeVar("State")


@dataclass(frozen=True)
class ModelEvent(JsonRecord):
    """An event of a model.

    Attributes:
        number: from 1, in order.
        by: the user.
        version: 0: the model as a whole.
        semantic: of ``add``; "" without one. ``record``: BLAKE3 of the version's record.
        alias: of ``alias`` and ``unalias``.
        text: of ``note``.
        add, rm: of ``label``.
        previous: digest of the event before; "" of the first one.
        owner: of its file, who alone could have written it; it is no part of it, and "" of one that
            has just been made.
    """

    number: int
    kind: EventKind
    version: int = 0
    at: str = ""
    by: str = ""
    semantic: str = ""
    record: str = ""
    alias: str = ""
    text: str = ""
    add: list[str] = field(default_factory=list)
    rm: list[str] = field(default_factory=list)
    previous: str = ""
    owner: str = ""

    def sealed(self) -> dict[str, Any]:
        """Return the event as JSON with its own digest."""
        fields = dataclasses.asdict(self)
        del fields["owner"]
        return sealed_json.sealed({"schema": 1, **fields})

    @property
    def author(self) -> str:
        """The user that it names, and whose file it is where that is another one's."""
        return self.by if self.owner in ("", self.by) else f"{self.by} (a file of {self.owner})"

    @property
    def root(self) -> str:
        """The event's own digest."""
        return str(self.sealed()[sealed_json.ROOT])


def folder(model: Path) -> Path:
    """Return the folder of a model's events."""
    return model / "events"


def read(model: Path) -> list[ModelEvent]:
    """Return a model's events in order.

    Files are opened by their numbers: a network file system may not list yet what is there.

    Raises:
        IntegrityError: one is missing, damaged, or does not follow the one before it.
    """
    found: list[ModelEvent] = []
    while (event := _read(model, found)) is not None:
        found.append(event)
    try:
        names = os.listdir(folder(model))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    last = max((int(match[1]) for name in names if (match := _NAME.fullmatch(name))), default=0)
    if last > len(found) and (event := _read(model, found)) is None:
        what = f"event {len(found) + 1} is missing, and {last} is there"
        raise IntegrityError(what, where=str(folder(model)), hint=_BACKUP)
    return read(model) if last > len(found) else found


def _path(model: Path, number: int) -> Path:
    return folder(model) / f"{number:06d}.json"


def _read(model: Path, before: Sequence[ModelEvent]) -> ModelEvent | None:
    """Return the next event; None if there is none."""
    path = _path(model, len(before) + 1)
    try:
        with files.open_file(path) as file:
            owner = trust.user(os.fstat(file.fileno()).st_uid)
            data = files.bounded_read(file, path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    value = files.parse_json(data, path)
    if (
        not isinstance(value, dict)
        or sealed_json.digest(value) != value.get(sealed_json.ROOT)
        or sealed_json.text(value) != data
    ):
        raise IntegrityError("it is not what was written", where=str(path), hint=_BACKUP)
    try:
        event = dataclasses.replace(ModelEvent.decode(value), owner=owner)
    except ValueError as error:
        raise IntegrityError(str(error), where=str(path), hint=_BACKUP) from error
    previous = before[-1].root if before else ""
    if (event.number, event.previous) != (len(before) + 1, previous):
        what = "it does not follow the event before it"
        raise IntegrityError(what, where=str(path), hint=_BACKUP)
    return event


def append(
    model: Path,
    mode: int,
    fold: Callable[[list[ModelEvent]], State],
    decide: Callable[[State], ModelEvent | None],
) -> State:
    """Write an event behind all that are there; durable when this returns.

    Args:
        mode: of the file.
        fold: makes the state of events.
        decide: returns the event for a state, or None if nothing is to be done; number, time, user
            and ``previous`` are set here. It raises what forbids the event, and may be asked
            several times.

    Returns:
        The state behind the event.

    Raises:
        IntegrityError: events are damaged.
        OSError: it cannot be written.
        Unavailable: others write all the time.
    """
    for _ in range(_TRIES):
        events = read(model)
        event = decide(fold(events))
        if event is None:
            return fold(events)
        event = dataclasses.replace(
            event,
            number=len(events) + 1,
            at=files.now(),
            by=trust.user(os.getuid()),
            previous=events[-1].root if events else "",
        )
        path = _path(model, event.number)
        if files.write_once(path, sealed_json.text(event.sealed()), mode):
            return fold([*events, event])
    raise Unavailable("others write to this model all the time", where=str(model))
