"""Experiments with one trial and attempts of it as real processes, without worker or scheduler.

Ranks are forked from a server that has imported torch already: each saves seconds.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from hpcdet.checkpoint import content_digest
from hpcdet.policy import governed_metrics
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Claim, Control, Trial, Verdict
from hpcdet.store.fs import journal
from hpcdet.units import Length

PATIENCE_S = 180.0
_SERVER: Any = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.ranks_preload"])
MPIRUN = (
    *("mpirun", "--allow-run-as-root", "--oversubscribe"),
    *("--mca", "btl", "self,tcp", "--mca", "mpi_yield_when_idle", "1"),
)
DIGITS = Path(__file__).parent.parent / "examples" / "digits"
HPARAMS = {"learning_rate": 0.003, "hidden": 32, "dropout": 0.3, "global_batch_size": 64}


def experiment(
    root: Path,
    *,
    code: Path | str = DIGITS,
    ranks: int = 1,
    hparams: Mapping[str, Any] = HPARAMS,
    seed: int = 7,
    **changes: Any,
) -> TrialPaths:
    """An experiment's folder with one trial in it.

    Args:
        code: a model folder, or the text of ``model_def.py``.
        changes: of the config; ``until=40`` for the length in batches.
    """
    paths = ExperimentPaths(root)
    paths.root.mkdir(parents=True, exist_ok=True)
    if isinstance(code, str):
        paths.code.mkdir()
        (paths.code / "model_def.py").write_text(code)
    else:
        shutil.copytree(code, paths.code)
    until = changes.pop("until", 20)
    searcher: dict[str, Any] = {"metric": "validation_loss", "max_length": {"batches": until}}
    if paths.compiled_policy.exists():
        policy = CompiledPolicy.load(paths.compiled_policy)
        searcher["constraints"] = governed_metrics.constraints(policy)
    resolved = {
        "name": "test",
        "entrypoint": "model_def:DigitsTrial",
        "searcher": searcher,
        "resources": {"slots_per_trial": ranks, "slots_per_node": ranks, "cpus_per_slot": 1},
        **changes,
    }
    paths.config.write_bytes(resolved_config.dump(resolved))
    trial = paths.trial(1)
    Trial(1, dict(hparams), seed).write_once(trial.record)
    return trial


def elsewhere(call: Callable[..., None], *arguments: Any) -> None:
    """Call in a process of its own; its ranks are forks of it, with all that it has imported.

    Raises:
        AssertionError: it has raised something.
    """
    reader, writer = _SERVER.Pipe(duplex=False)
    process = _SERVER.Process(target=_elsewhere, args=(writer, call, arguments))
    process.start()
    writer.close()
    try:
        assert reader.poll(3 * PATIENCE_S), "no answer"
        told = reader.recv()
        assert not told, told
    except EOFError:
        raise AssertionError(f"it ended with {process.exitcode}") from None
    finally:
        if process.is_alive():
            process.terminate()  # which ends its ranks
        process.join(PATIENCE_S)
        process.kill()
        process.join()


def _elsewhere(writer: Any, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    global _SERVER
    _SERVER = multiprocessing.get_context("fork")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    told = ""
    try:
        call(*arguments)
    except BaseException:
        told = traceback.format_exc()
    writer.send(told)


def control(trial: TrialPaths, action: Any, until: int | None = None) -> None:
    """Write the next control of a trial."""
    seq = len(list(trial.controls.glob("*.json"))) + 1
    length = None if until is None else Length("batches", until)
    Control(action, length).write_once(trial.control(seq))


@dataclass
class Attempt:
    """The running ranks of one attempt."""

    paths: AttemptPaths
    processes: list[BaseProcess] = field(default_factory=list)

    def lines(self) -> list[dict[str, Any]]:
        """The attempt's journal so far."""
        return journal.read(self.paths.journal)

    def wait(self) -> list[int | None]:
        """Until all ranks have ended; their exit codes, negative for a signal."""
        for process in self.processes:
            process.join(PATIENCE_S)
        return [process.exitcode for process in self.processes]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until a condition holds, while some rank lives."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            alive = any(process.is_alive() for process in self.processes)
            if not alive or time.monotonic() > deadline:
                assert condition(), f"it did not happen; ranks alive: {alive}\n{self.log()}"
            time.sleep(0.005)

    def signal(self, number: signal.Signals, *ranks: int) -> None:
        """Send a signal to some ranks, to all if none is named."""
        for rank in ranks or range(len(self.processes)):
            pid = self.processes[rank].pid
            if self.processes[rank].is_alive() and pid is not None:
                os.kill(pid, number)

    def kill(self) -> None:
        """SIGKILL for what is left, and reap it."""
        self.signal(signal.SIGKILL)
        self.wait()

    def verdict(self) -> Verdict | None:
        return Verdict.read(self.paths.verdict)

    def log(self) -> str:
        """What all ranks printed."""
        logs = sorted(self.paths.logs.glob("rank-*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')}" for log in logs)


@contextlib.contextmanager
def start(trial: TrialPaths, ranks: int = 1, **environment: str) -> Iterator[Attempt]:
    """Start the ranks of the next attempt; they are killed and reaped at the end of the block."""
    attempt = _next(trial)
    argv = [str(trial.root.parent.parent), str(trial.number), str(attempt.paths.number)]
    try:
        for rank in range(ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            size = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "NODE_RANK": "0"}
            process = _SERVER.Process(target=_rank, args=(argv, environment | own | size))
            process.start()
            attempt.processes.append(process)
        yield attempt
    finally:
        attempt.kill()


def _next(trial: TrialPaths) -> Attempt:
    number = max((attempt.number for attempt in trial.attempts()), default=0) + 1
    attempt = Attempt(trial.attempt(number))
    Claim("0001-0000.0", "here").write_once(attempt.paths.claim)
    return attempt


AT_ONCE = """
from hpcdet.train.comm import agreement
from hpcdet.process import signals
signals.install()
agreement._INTERVAL_S = 0.0
import runpy
runpy.run_module("hpcdet.attempt", run_name="__main__", alter_sys=True)
"""
"""Ranks that leave where they are told to: agreed on after each step, whatever the clock says."""


def _rank(argv: list[str], environment: Mapping[str, str]) -> None:
    """One rank, in a process of its own: what ``python -m hpcdet.attempt`` does."""
    from hpcdet.attempt import main
    from hpcdet.process import signals
    from hpcdet.train.comm import agreement

    for name in [name for name in os.environ if name.startswith(("SLURM_", "HPCDET_"))]:
        del os.environ[name]
    os.environ.update(environment)
    if {"LEAVE", "GATE"} & {name for name in environment if environment[name]}:
        agreement._INTERVAL_S = 0.0
    # else each worker of a loader would come from a new server that has imported nothing
    multiprocessing.set_start_method("fork", force=True)
    signals.install()
    os._exit(main(argv))


@dataclass(frozen=True)
class Called:
    """What a call of ``hpcdet.attempt`` came to."""

    code: int | None
    output: str


def call(*argv: str) -> Called:
    """``python -m hpcdet.attempt`` with these arguments, in a quick process of its own."""
    reader, writer = _SERVER.Pipe(duplex=False)
    process = _SERVER.Process(target=_called, args=(argv, writer))
    process.start()
    writer.close()
    try:
        output = reader.recv() if reader.poll(PATIENCE_S) else ""
        process.join(PATIENCE_S)
        return Called(process.exitcode, output)
    finally:
        process.kill()
        process.join()


def _called(argv: tuple[str, ...], writer: Any) -> None:
    from hpcdet.attempt import main

    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        code = main(list(argv))
        output.seek(0)
        writer.send(output.read().decode())
    os._exit(code)


def run(trial: TrialPaths, ranks: int = 1, **environment: str) -> Attempt:
    """One attempt from start to end."""
    with start(trial, ranks, **environment) as attempt:
        attempt.wait()
        return attempt


def by_mpirun(trial: TrialPaths, ranks: int, **environment: str) -> Attempt:
    """One attempt, started by the machine's own MPI."""
    attempt = _next(trial)
    argv = [str(trial.root.parent.parent), str(trial.number), str(attempt.paths.number)]
    code = ["-c", AT_ONCE] if environment.get("LEAVE") else ["-m", "hpcdet.attempt"]
    done = subprocess.run(
        [*MPIRUN, "-np", str(ranks), sys.executable, *code, *argv],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr + attempt.log()
    return attempt


def finish(trial: TrialPaths, ranks: int = 1, most: int = 10) -> Attempt:
    """Attempt after attempt until the trial is done."""
    for _ in range(most):
        attempt = run(trial, ranks)
        verdict = attempt.verdict()
        if verdict and verdict.verdict == "done":
            return attempt
        assert verdict is None or verdict.verdict == "resume", attempt.log()
    raise AssertionError(f"not done after {most} attempts\n{attempt.log()}")


@dataclass(frozen=True)
class Result:
    """What a finished trial left: equal for runs that are equal bit for bit."""

    batches: int
    digest: str
    validations: dict[int, dict[str, Any]]
    training: dict[int, dict[str, Any]]


def result(trial: TrialPaths) -> Result:
    """The result of a finished trial; of repeated reports the last attempt's counts."""
    attempts = trial.attempts()
    verdict = Verdict.read(attempts[-1].verdict)
    assert verdict is not None and verdict.verdict == "done", verdict
    found: dict[str, dict[int, dict[str, Any]]] = {"training": {}, "validation": {}}
    for attempt in attempts:
        for line in journal.read(attempt.journal):
            if line["kind"] == "metrics" and line["group"] in found:
                found[line["group"]][line["step"]] = line["metrics"]
    digest = content_digest(trial.checkpoints / verdict.checkpoint)
    assert digest == verdict.digest
    return Result(verdict.batches, digest, found["validation"], found["training"])
