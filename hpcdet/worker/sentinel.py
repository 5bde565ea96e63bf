"""``python -m hpcdet.worker.sentinel EXP --submission N``: the job behind an array of workers.

It runs after all tasks of submission N have ended: where the nodes may submit, if one of them
failed (a lost node, ``scancel``, an id that the scheduler has forgotten); else in any case.
It first checks whether the experiment is open and other jobs live. Then it turns the crank,
which submits new workers where it may. If trials wait and no worker can run them, it records that
and notifies the user, once.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hpcdet import units
from hpcdet.control.messages import sender_process
from hpcdet.control.turn.controller import Turn
from hpcdet.control.upkeep import accounting, notify, store_copies
from hpcdet.errors import ConfigError
from hpcdet.read import catalog
from hpcdet.site.models import SiteCapabilities
from hpcdet.site_files.load_site import from_resolved
from hpcdet.store.config import overrides
from hpcdet.store.decisions import lease
from hpcdet.store.folder import log_streams
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Stuck, Submitted
from hpcdet.store.fs import files
from hpcdet.worker.turns.script_turns import code_of, turns
from hpcdet.worker.turns.storage_retry import START_S, insist, within

_Held = tuple[lease.Term, lease.Beat | None] | None


def watch(paths: ExperimentPaths, submission: int) -> Stuck | None:
    """Turn the crank until the experiment's state is clear; return the record if it is stuck."""
    can = insist(lambda: from_resolved(paths.site), within(START_S)).capabilities
    before = insist(lambda: lease.last(paths), within(START_S))
    why = ""
    for turn in turns(paths, "sentinel"):
        for action in turn.actions:
            print(action, flush=True)
        if turn.closed:
            accounting.settle(paths)
            store_copies.settle(paths)
            catalog.leave_row(paths)
            return None
        if turn.held and _is_quiet(turn, submission):
            return None
        if turn.held:
            alone = bool(turn.wanted) and not (turn.busy or turn.live)
            why = "" if _goes_on(turn) else _why(turn, can)
            if alone and not can.submit_from_compute:
                break
        elif insist(lambda: _is_followed(paths, submission, before), within(START_S)):
            return None
    # without a reason, another process held the lease all the time, or tasks live
    return _tell(paths, submission, why) if why else None


def _is_quiet(turn: Turn, submission: int) -> bool:
    """True if no notice is needed: the user has paused or is stopping it, or other jobs live."""
    if turn.state in ("PAUSED", "STOPPING"):
        return True
    return not turn.blind and any(number != submission for number in turn.live)


def _is_followed(paths: ExperimentPaths, submission: int, before: _Held) -> bool:
    """True if a process that lives decides, and a later array has had a sentinel of its own.

    Else this one would wait for the lease of that process, and take one of the jobs that a user
    may run. A holder whose beat stands still may be dead, and the later sentinel gone.
    """
    for later in paths.submissions():
        if later > submission:
            posted = Submitted.read(paths.sentinel_submitted(later))
            if posted is not None and posted.job:
                return lease.attended(paths, before)
    return False


def _goes_on(turn: Turn) -> bool:
    """True if a worker lives, was just submitted, or none is needed."""
    return bool(turn.sent) or not turn.wanted or bool(turn.live and not turn.blind)


def _why(turn: Turn, can: SiteCapabilities) -> str:
    waiting = units.counted(turn.wanted, "trial waits", "trials wait")
    blind = f"; the scheduler does not answer: {turn.blind}" if turn.blind else ""
    none = (
        "the scheduler took no job"
        if can.submit_from_compute
        else ("jobs cannot be submitted from inside jobs")
    )
    return f"all tasks have ended, {waiting} for a worker, and {none}{blind}"


def _tell(paths: ExperimentPaths, submission: int, why: str) -> Stuck:
    record = Stuck(why, f"hpcdet resume {paths.id}", files.now())
    print(f"{why}; next: {record.next}")

    def first() -> Stuck | None:
        record.write_once(paths.stuck(submission))
        return Stuck.read(paths.stuck(submission))

    left_s = within(START_S)
    resolved = insist(lambda: overrides.of_submission(paths, submission), left_s)
    wishes = resolved.notify
    # only the process that made the record notifies the user
    if insist(first, left_s) != record or not notify.wanted(wishes, "stuck"):
        return record
    event, said = f"stuck sentinel {submission}", f"{why}; next: {record.next}"
    insist(lambda: notify.leave(paths, wishes, event, "stuck", said, resolved.name), left_s)
    sender_process.tend(paths, new=True)
    if wishes.command:
        try:
            code = notify.run_hook(paths, wishes.command, "stuck", said)
            print(f"hook for stuck: exit {code}")
        except (OSError, ConfigError) as error:
            print(f"hook for stuck failed: {error}")
    sender_process.finish(60.0)
    return record


def main(argv: list[str]) -> int:
    """Return 0 whatever it found, or the exit code of an error."""
    parser = argparse.ArgumentParser(prog="hpcdet.worker.sentinel")
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--submission", type=int, required=True)
    given = parser.parse_args(argv)
    paths = ExperimentPaths(given.experiment.absolute())
    return code_of(lambda: watch(paths, given.submission))


if __name__ == "__main__":
    log_streams.lose_what_does_not_fit()
    sys.exit(main(sys.argv[1:]))
