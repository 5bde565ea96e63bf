"""Turns of the crank by the command line, for experiments without another holder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from hpcdet.cli.frame.settings import settings
from hpcdet.control.turn import controller
from hpcdet.control.turn.controller import Holder, Turn
from hpcdet.errors import HpcdetError
from hpcdet.store.folder.layout import ExperimentPaths

_LOOK_S = 10.0
_LOCAL_S = 0.5


class CommandCrank:
    """A crank of the command line: makes turns when due and releases the lease at the end."""

    def __init__(self, paths: ExperimentPaths, kind: str, *, hold: bool = False) -> None:
        self.paths = paths
        self.holder = Holder.open(paths, kind, hold=hold)
        site = self.holder.hands.site
        self.every_s = min(_LOOK_S, max(_LOCAL_S, site.limits.poll_min_s), site.lease_ttl_s / 4)
        self._next = 0.0

    def turn(self) -> Turn:
        """Make a turn now."""
        turn = controller.advance(self.paths, self.holder)
        if settings().verbose:
            for action in turn.actions:
                settings().note(f"{self.paths.id}: {action}")
        return turn

    def turn_if_due(self) -> None:
        """Make a turn if one is due; print an error as a warning and try again when next due."""
        if time.monotonic() < self._next:
            return
        try:
            self.turn()
        except (HpcdetError, OSError) as error:
            settings().warn(f"{self.paths.id}: {error}")
        self._next = time.monotonic() + self.every_s

    def __enter__(self) -> CommandCrank:
        return self

    def __exit__(self, *_: object) -> None:
        self.holder.close()


@contextlib.contextmanager
def cranks(experiments: list[ExperimentPaths], kind: str) -> Iterator[list[CommandCrank]]:
    """Open a crank for each experiment; release all leases at the end."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(CommandCrank(paths, kind)) for paths in experiments]
