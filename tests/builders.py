"""Experiment folders made of records alone, for tests of what reads them: no process runs.

experiment = Builder(tmp_path / "digits-7f3a")
trial = experiment.trial(hidden=32)
attempt = trial.attempt(start=0)
attempt.metrics("validation", 100, validation_loss=0.5)
attempt.end("preempted")
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hpcdet.store.config import resolved_config
from hpcdet.store.folder import records
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.fs import files, journal, json_record
from hpcdet.store.fs.json_record import JsonRecord
from hpcdet.store.trials import standing
from hpcdet.units import Length

EPOCH = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def at(seconds: float) -> str:
    """The ISO time so many seconds after the builders' epoch."""
    time = EPOCH + timedelta(seconds=seconds)
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def put(path: Path, record: JsonRecord) -> None:
    """Write a record as it is written everywhere, but nothing of it needs to be durable here."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(record.encode())


class Builder:
    """An experiment; time stands at ``clock`` seconds after the epoch and only moves forward."""

    def __init__(self, root: Path, **overrides: Any) -> None:
        self.paths = ExperimentPaths(root)
        self.clock = 0.0
        value: dict[str, Any] = {
            "schema": 1,
            "name": root.name.rpartition("-")[0] or root.name,
            "labels": ["example"],
            "entrypoint": "model_def:Trial",
            "hyperparameters": {"hidden": 32},
            "searcher": {
                "name": "random",
                "metric": "validation_loss",
                "smaller_is_better": True,
                "max_length": {"batches": 300},
                "max_trials": 4,
            },
            **overrides,
        }
        root.mkdir(parents=True)
        self.paths.config.write_bytes(resolved_config.dump(value))
        self.paths.site.write_text("schema: 1\nname: local\nscheduler: local\n")
        self.paths.code.mkdir()
        (self.paths.code / "model_def.py").write_text("class Trial: ...\n")
        self.paths.provenance.write_bytes(files.canonical({"created_at": at(0), "user": "ada"}))
        self._decisions: journal.Writer | None = None

    def tick(self, seconds: float = 1.0) -> str:
        self.clock += seconds
        return at(self.clock)

    def trial(self, **params: Any) -> TrialBuilder:
        number = len(self.paths.trials()) + 1
        paths = self.paths.trial(number)
        record = records.Trial(number, params or {"hidden": 32}, seed=7, created_at=self.tick())
        put(paths.record, record)
        trial = TrialBuilder(self, paths)
        trial.control("run", until=Length("batches", 300))
        return trial

    def job(self, job: str = "123", tasks: int = 2, error: str = "") -> int:
        number = len(self.paths.submissions()) + 1
        name = f"{self.paths.id}-{number}"
        intent = records.Intent(
            number, name, f"hpcdet:{self.paths.id}:{number}-ab", tasks, tasks, 1, at=self.tick()
        )
        put(self.paths.intent(number), intent)
        submitted = records.Submitted("" if error else job, "slurm", error, self.tick())
        put(self.paths.submitted(number), submitted)
        return number

    def worker(self, index: int = 0, *, host: str = "n1", end: str = "") -> str:
        paths = self.paths.worker(1, index, 0)
        claim = records.WorkerClaim("123", host, 4242, [host], at=self.tick())
        put(paths.claim, claim)
        paths.beat.write_bytes(files.canonical({"at": self.tick(0)}))
        if end:
            put(paths.end, records.WorkerEnd(end, paths.name, self.tick()))
        return paths.name

    def decide(self, kind: str, **fields: Any) -> None:
        if self._decisions is None:
            self._decisions = journal.Writer(self.paths.decisions(1))
            accepts = {"term": 0, "n": 0}
            self._decisions.append("term", number=1, holder="test", accepts=accepts)
        self._decisions.append(kind, **fields)

    def command(self, verb: Any, trial: int = 0, **arguments: Any) -> None:
        seq = len(list(self.paths.commands.glob("*"))) + 1
        command = records.Command(verb, trial, arguments, "ada", self.tick())
        put(self.paths.command(seq), command)

    def close(self, state: Any = "COMPLETED", why: str = "") -> None:
        put(self.paths.closed, records.Closed(state, why, 1, self.tick()))


class TrialBuilder:
    def __init__(self, experiment: Builder, paths: TrialPaths) -> None:
        self.experiment = experiment
        self.paths = paths

    def control(self, action: Any, until: Length | None = None, **more: Any) -> None:
        seq = len(list(self.paths.controls.glob("*.json"))) + 1
        control = records.Control(action, until, term=1, at=self.experiment.tick(0), **more)
        put(self.paths.control(seq), control)

    def attempt(
        self, start: int = 0, checkpoint: str = "", ranks: int = 2, fingerprint: str = ""
    ) -> AttemptBuilder:
        claimed = standing.claimed(self.paths)
        paths = self.paths.attempt(claimed[-1].number + 1 if claimed else 1)
        claim = records.Claim("0001-0000.0", "n1", "123_0", ["n1"], self.experiment.tick())
        put(paths.claim, claim)
        attempt = AttemptBuilder(self.experiment, self.paths, paths)
        place = {"world": ranks, "host": "n1", "pid": 1, "fingerprint": fingerprint}
        attempt.line("start", checkpoint=checkpoint, batches=start, **place)
        attempt.line("first_step")
        return attempt


class AttemptBuilder:
    """An attempt; what is appended carries the experiment's time, not today's."""

    def __init__(self, experiment: Builder, trial: TrialPaths, paths: AttemptPaths) -> None:
        self.experiment = experiment
        self.trial = trial
        self.paths = paths
        self.batches = 0
        self._numbers = itertools.count(1)

    def line(self, kind: str, **fields: Any) -> None:
        data = journal.encode(next(self._numbers), kind, fields, self.experiment.tick())
        with self.paths.journal.open("ab") as file:
            file.write(data)

    def metrics(self, group: str, step: int, **values: Any) -> None:
        self.batches = max(self.batches, step)
        stored = {
            k: json_record.number(v) if isinstance(v, float) else v for k, v in values.items()
        }
        self.line("metrics", group=group, step=step, metrics=stored, units={"batches": step})

    def checkpoint(self, step: int, digest: str = "d" * 64, committed: bool = True) -> Path:
        folder = self.trial.checkpoint(step, self.paths.number)
        folder.mkdir(parents=True)
        (folder / "rank-00000-of-00001.h5").write_bytes(b"x" * 100)
        if committed:
            (folder / "MANIFEST.json").write_bytes(files.canonical({"digest": digest}))
            self.line(
                "checkpoint",
                name=folder.name,
                step=step,
                digest=digest,
                bytes=100,
                metric=None,
                kept=["latest"],
            )
        self.batches = max(self.batches, step)
        return folder

    def log(self, text: str, rank: int = 0) -> None:
        self.paths.logs.mkdir(exist_ok=True)
        with self.paths.log(rank).open("a") as file:
            file.write(text)

    def end(
        self,
        reason: Any = "completed",
        *,
        error: str = "",
        until: Length | None = None,
    ) -> None:
        verdicts: dict[str, tuple[Any, Any]] = {
            "completed": ("done", "completed"),
            "stopped": ("done", "stopped"),
            "preempted": ("resume", "signal"),
            "resized": ("resume", "signal"),
            "walltime": ("resume", "walltime"),
            "paused": ("resume", "paused"),
            "user_error": ("fail", "error"),
        }
        if reason in verdicts:
            verdict, cause = verdicts[reason]
            self.line("end", verdict=verdict, cause=cause)
            said = records.Verdict(verdict, cause, self.batches, until, error=error)
            put(self.paths.verdict, said)
        at = self.experiment.tick()
        put(self.paths.end, records.End(reason, 0, True, error, ["n1"], "0001-0000.0", at))


def sweep(root: Path, *, ended: bool = True) -> Builder:
    """A search of three trials that met everything: preempted, crashed, and given up.

    Trial 1 is preempted at 150, having reported 100 to 150 twice in the end, and completes. Trial
    2 completes with the best value, 0.1. Trial 3 crashes twice and is given up.
    """
    built = Builder(root)
    built.job(tasks=2)
    built.worker(0, end="idle")
    built.worker(1, end="idle")
    one, two, three = built.trial(hidden=16), built.trial(hidden=32), built.trial(hidden=64)

    first = one.attempt()
    for step in (50, 100, 150):
        first.metrics("training", step, loss=1.0 / step)
    first.metrics("validation", 100, validation_loss=0.5, accuracy=0.8)
    first.checkpoint(100)
    first.log("epoch 1\nepoch 2\n")
    first.line("notice", signal="SIGUSR2")
    first.end("preempted")
    second = one.attempt(start=100, checkpoint="00000100.g1")
    for step in (150, 200, 300):
        second.metrics("training", step, loss=2.0 / step)
    second.metrics("validation", 300, validation_loss=0.25, accuracy=0.9)
    second.checkpoint(300)
    second.log("epoch 3\n")
    second.log("rank 1 speaks\n", rank=1)
    second.end("completed")

    only = two.attempt()
    only.metrics("validation", 100, validation_loss=0.1, accuracy=0.95)
    only.metrics("validation", 300, validation_loss=float("nan"), accuracy=0.94)
    only.checkpoint(300, digest="e" * 64)
    only.end("completed")

    for number in (1, 2):
        crash = three.attempt()
        crash.metrics("training", 20, loss=3.0)
        crash.log("fine so far\n")
        crash.log(
            "Traceback (most recent call last):\n"
            '  File "model_def.py", line 7, in train_batch\n'
            f'    raise ValueError("bad batch {number}")\n'
            f"ValueError: bad batch {number}\n"
        )
        crash.end("user_error", error=f"ValueError: bad batch {number}")
    three.control("fail", why="failed 2 times: ValueError: bad batch 2")
    built.decide("fail", trial=3, why="failed 2 times")
    if ended:
        built.close("COMPLETED")
    return built
