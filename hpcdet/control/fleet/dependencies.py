"""Dependencies: waits for a release by the user, or for another job's or experiment's success.

The scheduler waits for jobs that have to end first (a dependency of the submission). It cannot
wait for experiments: they may submit more jobs until they are closed. So nothing is submitted
before that, and the process that closes one wakes those that follow it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hpcdet.control.fleet import intents
from hpcdet.control.leader.leader import Holder
from hpcdet.control.leader.lost_workers import FleetView
from hpcdet.errors import Unavailable
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Closed, Command
from hpcdet.store.fs import packed


def waits_for(holder: Holder) -> str:
    """Return the id of the experiment that this one waits for; "" if none.

    If that one did not complete, this one is halted until its user decides.
    """
    decided = holder.decided
    if decided.jobs.halted or decided.user.canceled:
        return ""
    for folder in decided.user.follows:
        paths = ExperimentPaths(Path(os.path.normpath(holder.paths.root / folder)))
        closed = Closed.read(paths.closed)
        if closed is None and paths.config.exists():
            return paths.id
        if closed is None or closed.state != "COMPLETED":
            end = f"ended as {closed.state}" if closed else "is not there any more"
            intents.halt(holder, f"{paths.id} {end}; it was to begin after that one's good end")
            return ""
    return ""


def tend(holder: Holder, seen: FleetView) -> None:
    """Hold or release pending jobs, and cancel those whose dependency can never be met.

    Raises:
        Fenced: the term ended meanwhile.
    """
    if holder.hands.clock() < holder.pace.full_until.get("hold", 0.0):
        return  # submissions that are refused keep no job from being held
    decided, scheduler = holder.decided, holder.hands.scheduler
    jobs = {place.job: place.submission for place in seen.live if place.phase == "pending"}
    in_vain = {row.job for row in holder.watch.scheduler.waiting() if row.wait.kind == "in_vain"}
    try:
        for job, number in jobs.items():
            intent, _ = holder.watch.files.submission(number)
            if not job or intent is None or holder.watch.scheduler.elsewhere(job):
                continue
            kept = holder.pace.kept.get(job, "")
            held = decided.user.held or bool(kept)
            if held != decided.jobs.holds.get(job, intent.held):
                holder.fence()
                scheduler.hold(job, held)
                holder.record("held", job=job, on=held)
                why = f" for {kept}" if kept else ""
                holder.actions.append(f"{'hold' if held else 'release'} job {job}{why}")
            if job in in_vain and not decided.jobs.halted and intents.cancel(holder, job):
                waited = ", ".join(intent.after or intent.behind)
                if intent.behind and not intent.after:
                    # a server that forgets ended jobs takes any end of theirs for none
                    holder.actions.append(f"cancel job {job}: {waited} is over and forgotten")
                    continue
                what = f"job {waited}" if waited else f"what job {job} depends on"
                intents.halt(holder, f"{what} did not end well; it was to begin after that")
    except Unavailable as error:
        intents.later(holder, error.what, "hold")


def followers(paths: ExperimentPaths) -> Iterator[ExperimentPaths]:
    """Yield the experiments that asked to be woken at the end of this one.

    Read from the commands once ``closed.json`` exists: an experiment asks first and then looks
    for that file, so that none is missed.
    """
    for seq in packed.numbers(paths.commands, ".json"):
        command = Command.read(paths.command(seq))
        if command is not None and command.verb == "follow":
            folder = os.path.normpath(paths.root / str(command.arguments.get("path", "")))
            follower = ExperimentPaths(Path(folder))
            if follower.config.exists() and not follower.closed.exists():
                yield follower
