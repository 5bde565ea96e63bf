"""Turns of the crank by processes other than workers: batch scripts, and jobs behind arrays."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterator

from hpcdet.control.turn import controller
from hpcdet.control.turn.controller import Holder, Turn
from hpcdet.errors import HpcdetError, refused
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.worker.turns.storage_retry import START_S, insist, within

_LOOK_S = 10.0


def code_of(program: Callable[[], object]) -> int:
    """Run a program and return its exit code: 0, or that of its error, which is printed."""
    try:
        program()
    except (HpcdetError, OSError) as error:
        known = refused(error) if isinstance(error, OSError) else error
        print(f"error: {known}", file=sys.stderr)
        return known.exit_code
    return 0


def turns(paths: ExperimentPaths, kind: str) -> Iterator[Turn]:
    """Yield one turn after the other, seconds apart, until the caller stops.

    They end by themselves when all is over that may be waited for: a dead worker may hold the
    lease until it expires, and is believed dead only after two different answers of the scheduler.

    Raises:
        OSError, HpcdetError: the experiment cannot be read, to the end of ``START_S``.
    """
    left_s = within(START_S)
    site = insist(lambda: from_resolved(paths.site), left_s)
    submits = site.capabilities.submit_from_compute
    holder = insist(lambda: Holder.open(paths, kind, submits=submits), left_s)
    every_s = min(_LOOK_S, max(1.0, site.limits.poll_min_s))
    until = time.monotonic() + site.lease_ttl_s + 4 * site.limits.poll_min_s + 6 * every_s
    try:
        while time.monotonic() < until:
            try:
                turn = controller.advance(paths, holder)
            except Exception:  # the file system's trouble may pass
                traceback.print_exc(file=sys.stderr)
                turn = Turn(False)
            yield turn
            time.sleep(every_s)
    finally:
        holder.close()
