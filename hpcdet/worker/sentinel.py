"""``python -m hpcdet.worker.sentinel EXP --submission N``: the job behind an array of workers.

It runs where no job can be submitted once the user has gone home, after all tasks of submission N
have ended. It turns the crank: perhaps the experiment is over, and only nobody was left to say
so. If there is work and nobody to do it, it writes that down and tells the user, once.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path

from hpcdet.control import controller
from hpcdet.control.controller import Holder, Turn
from hpcdet.control.notify import run_hook
from hpcdet.errors import ConfigError
from hpcdet.store import files, overrides
from hpcdet.store.layout import ExperimentPaths
from hpcdet.store.records import Stuck
from hpcdet.worker.patience import START_S, insist, within

_LOOK_S = 10.0


def watch(paths: ExperimentPaths, submission: int) -> Stuck | None:
    """Turn until it is clear how the experiment stands; what was told, if anything.

    A dead worker may hold the lease until it expires, and is believed dead only after two
    different answers of the scheduler: the wait is as long as both together.
    """
    holder = insist(lambda: Holder.open(paths, "sentinel", submits=False), within(START_S))
    limits, ttl_s = holder.hands.site.limits, holder.hands.site.lease_ttl_s
    every_s = min(_LOOK_S, max(1.0, limits.poll_min_s))
    until = time.monotonic() + ttl_s + 4 * limits.poll_min_s + 6 * every_s
    why = ""
    try:
        while time.monotonic() < until:
            try:
                turn = controller.advance(paths, holder)
            except Exception:  # the file system's trouble may pass
                traceback.print_exc(file=sys.stderr)
                turn = Turn(False)
            if turn.closed or (turn.held and _is_quiet(turn, submission)):
                return None
            if turn.held:
                why = _why(turn)
                if turn.wanted and not (turn.busy or turn.live):
                    break
            time.sleep(every_s)
        # without a reason the lease was another's all the time: somebody is there
        return _tell(paths, submission, why) if why else None
    finally:
        holder.close()


def _is_quiet(turn: Turn, submission: int) -> bool:
    """Whether nobody needs to be told: it waits for its user, who knows; or other jobs live."""
    if turn.state in ("PAUSED", "STOPPING"):
        return True
    return not turn.blind and any(number != submission for number in turn.live)


def _why(turn: Turn) -> str:
    waiting = "1 trial waits" if turn.wanted == 1 else f"{turn.wanted} trials wait"
    blind = f"; the scheduler does not answer: {turn.blind}" if turn.blind else ""
    return (
        f"all tasks have ended, {waiting} for a worker, and jobs cannot be submitted "
        f"from inside jobs{blind}"
    )


def _tell(paths: ExperimentPaths, submission: int, why: str) -> Stuck:
    record = Stuck(why, f"hpcdet resume {paths.id}", files.now())
    print(f"{why}; next: {record.next}")

    def first() -> Stuck | None:
        record.write_once(paths.stuck(submission))
        return Stuck.read(paths.stuck(submission))

    left_s = within(START_S)
    wishes = insist(lambda: overrides.of_submission(paths, submission), left_s).notify
    # the record says by its being made that nobody has been told before
    if insist(first, left_s) == record and wishes.command and "stuck" in wishes.on:
        try:
            code = run_hook(paths, wishes.command, "stuck", f"{why}; next: {record.next}")
            print(f"hook for stuck: exit {code}")
        except (OSError, ConfigError) as error:
            print(f"hook for stuck failed: {error}")
    return record


def main(argv: list[str]) -> int:
    """0, whatever it found."""
    parser = argparse.ArgumentParser(prog="hpcdet.worker.sentinel")
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--submission", type=int, required=True)
    given = parser.parse_args(argv)
    watch(ExperimentPaths(given.experiment.absolute()), given.submission)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
