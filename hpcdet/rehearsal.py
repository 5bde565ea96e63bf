"""``hpcdet test``: one batch, a validation, a save and a restore, before anything queues."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import hpcdet.pytorch.entry  # noqa: F401 - once, before both attempts are forked
from hpcdet.process import installed_packages
from hpcdet.process.location import AttemptLocation
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.names import REHEARSAL
from hpcdet.store.folder.records import Control, Trial, Verdict
from hpcdet.store.fs import files
from hpcdet.units import Length

_ATTEMPTS = (1, 2)
Run = Callable[[AttemptLocation], int]


def rehearse(experiment: Path, trial: int, run: Run) -> int:
    """Try an experiment's code, with the hyperparameters of one of its trials, in a copy.

    One rank runs, on this machine. The first attempt trains one batch, validates and saves; the
    second restores and does so again. A command is asked for the same by ``core``: the length is
    one batch and time is up after its first step.

    Args:
        run: runs an attempt's entrypoint in this process; returns the exit code.

    Returns:
        0 if everything worked, else 1; the reason is on stderr.
    """
    source = ExperimentPaths(experiment.resolve())
    record = Trial.read(source.trial(trial).record)
    if record is None:
        print(f"hpcdet: there is no trial {trial} in {source.root}", file=sys.stderr)
        return 1
    # beside it: who has made that one removes both, even if this process is killed
    with tempfile.TemporaryDirectory(prefix=REHEARSAL, dir=source.root.parent) as folder:
        copy = ExperimentPaths(Path(folder) / source.id)
        copy.root.mkdir()
        shutil.copytree(source.code, copy.code)
        names = [one.relative_to(copy.code).as_posix() for one in copy.code.rglob("*")]
        files.write_once(copy.provenance, files.canonical({"code": dict.fromkeys(names, "")}))
        shutil.copy(source.config, copy.config)
        for own, theirs in (
            (copy.secrets, source.secrets),
            (copy.site, source.site),
            (copy.policy, source.policy),
            (copy.compiled_policy, source.compiled_policy),
        ):
            if theirs.exists():
                shutil.copy(theirs, own)
        replace(record, number=1).write_once(copy.trial(1).record)
        installed_packages.installed()  # once, as the imports: both attempts record them
        return int(any(_failed(copy, number, run) for number in _ATTEMPTS))


def _failed(paths: ExperimentPaths, number: int, run: Run) -> bool:
    """Run one attempt in a process of its own; print its error and return True if it failed."""
    place = AttemptLocation.of(paths.root, 1, number)
    Control("run", Length("batches", number)).write_once(place.trial.control(number))
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os._exit(_run(place, run))
    _, status = os.waitpid(child, 0)
    verdict = Verdict.read(place.attempt.verdict)
    if status == 0 and (verdict is None or verdict.verdict in ("done", "resume")):
        return False
    why = verdict.error if verdict else f"exit code {os.waitstatus_to_exitcode(status)}"
    stage = "training and saving" if number == 1 else "restoring and going on"
    print(f"hpcdet: the test failed while {stage}: {why}", file=sys.stderr)
    return True


def _run(place: AttemptLocation, run: Run) -> int:
    place.announce()
    try:
        return run(place)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
