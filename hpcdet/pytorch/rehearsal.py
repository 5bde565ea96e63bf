"""``hpcdet test``: one batch, a validation, a save and a restore, in a copy, before anything queues."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from hpcdet.errors import HpcdetError
from hpcdet.pytorch._units import Batch
from hpcdet.pytorch.entry import is_class, load_class, run_entrypoint
from hpcdet.store import config as configs
from hpcdet.store.layout import ExperimentPaths
from hpcdet.store.records import Trial, Verdict
from hpcdet.train.place import Place
from hpcdet.train.session import unsaid_failure

_ONE_BATCH = 1


def rehearse(experiment: Path, trial: int) -> int:
    """Try an experiment's code with the hyperparameters of one of its trials.

    One rank runs, on this machine; nothing is written into the experiment. Of a command only
    the import of its modules cannot be tried apart from running it: it is told to stop after
    its first step.

    Returns:
        0 if everything worked, else 1; the reason is on stderr.
    """
    source = ExperimentPaths(experiment.resolve())
    with tempfile.TemporaryDirectory(prefix="hpcdet-test-") as folder:
        copy = ExperimentPaths(Path(folder) / "EXP")
        copy.root.mkdir()
        shutil.copytree(source.code, copy.code)
        shutil.copy(source.config, copy.config)
        record = Trial.read(source.trial(trial).record)
        if record is None:
            print(f"hpcdet: there is no trial {trial} in {source.root}", file=sys.stderr)
            return 1
        replace(record, number=1).write_once(copy.trial(1).record)
        return _attempt(copy, 1) or _attempt(copy, 2)


def _attempt(paths: ExperimentPaths, number: int) -> int:
    """The first attempt trains and saves; the second restores and trains one batch more."""
    place = Place.of(paths.root, 1, number)
    child = os.fork()
    if child == 0:
        os._exit(_run(place, number))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    verdict = Verdict.read(place.attempt.verdict)
    if code == 0 and (verdict is None or verdict.verdict in ("done", "resume")):
        return 0
    print(f"hpcdet: the test failed: {verdict.error if verdict else f'exit {code}'}")
    return 1


def _run(place: Place, number: int) -> int:
    place.announce()
    assert place.experiment is not None
    try:
        entrypoint = configs.load(place.experiment.config).entrypoint
        code = place.experiment.code
        if is_class(entrypoint):
            run_entrypoint(entrypoint, code, max_length=Batch(number * _ONE_BATCH))
        else:
            run_entrypoint(entrypoint, code)
    except SystemExit as end:
        return int(bool(end.code))
    except BaseException as error:
        return unsaid_failure(place, error)
    return 0


__all__ = ["HpcdetError", "load_class", "rehearse"]
