"""A fake of a rank: says what a real one says to the files, trains nothing, needs no torch.

Stands in for `python -m hpcdet.attempt` in tests that are about workers and not about training
(`experiments.fake_python`). Its state is a chain of hashes over the steps, so that a resumed run
ends as an undisturbed one only if it went on from what it had saved. `data` in the config tells it
what to do:

    step_s     seconds per step; $PACE is a file that says it instead, read at each step
    every      steps between checkpoints
    crash      {trial: [step, attempts]}: raise at that step in the first so many attempts
    hold       {at: step, until: file, trials: [2]}, or a list of such: these (all of them, if it
               does not say which) stay at that step, save, and wait for the file
    stint      steps that one attempt makes at most; then it saves and waits to be told to leave;
               or {trial: steps}
    silent     trials whose ranks exit 3 before their first step without a word
    stubborn   trials that ignore notices and controls
    besides    {metric: factor}: reports the factor times the trial's number, too
    losses     `scrambled`: a loss that falls with the steps and depends on nothing but the trial's
               number, in no order; otherwise better, the greater the number

At each rung of the searcher, and at the end, it reports a validation.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Verdict
from hpcdet.store.fs import files, journal, sealed_json
from hpcdet.store.trials.controls import in_force
from hpcdet.store.trials.standing import latest_checkpoint
from hpcdet.units import Length

heard: list[int] = []


def loss(trial: int, step: int, kind: str = "") -> float:
    """What it reports as `validation_loss`."""
    return trial * 7919 % 101 / 101 + 1 / (1 + step) if kind == "scrambled" else 1 / trial


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, lambda number, _: heard.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGUSR2))
    paths = ExperimentPaths(Path(os.environ["HPCDET_EXPERIMENT"]))
    trial = paths.trial(int(os.environ["HPCDET_TRIAL"]))
    attempt = trial.attempt(int(os.environ["HPCDET_ATTEMPT"]))
    experiment = resolved_config.load(paths.config)
    plan = experiment.data
    rank = int(os.environ["RANK"])
    files.make_folder(attempt.logs)
    output = os.open(attempt.log(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if trial.number in plan.get("silent", []):
        return 3
    if rank > 0:
        while not (heard or attempt.verdict.exists()):
            time.sleep(0.02)
        limit = time.monotonic() + 3  # rank 0 is told, too; without it there is no verdict
        while not attempt.verdict.exists():
            if time.monotonic() > limit:
                return os.EX_TEMPFAIL
            time.sleep(0.02)
        return 0

    log = journal.Writer(attempt.journal)
    checkpoint = latest_checkpoint(trial)
    step, state = 0, str(trial.number)
    if checkpoint:
        saved = json.loads((trial.checkpoints / checkpoint / "MANIFEST.json").read_text())
        step, state = saved["step"], saved["state"]
    log.append(
        "start",
        world=int(os.environ["WORLD_SIZE"]),
        host="fake",
        pid=os.getpid(),
        checkpoint=checkpoint,
        batches=step,
    )
    crash_at, attempts = plan.get("crash", {}).get(str(trial.number), [-1, 0])

    def save() -> str:
        folder = trial.checkpoint(step, attempt.number)
        files.make_folder(folder)
        meta = {"batches": step, "records": step, "epochs": 0, "kind": "resume"}
        plain = {"name": folder.name, "digest": state, "shards": [], "meta": meta}
        manifest = sealed_json.text(sealed_json.sealed({**plain, "step": step, "state": state}))
        if files.write_once(folder / "MANIFEST.json", manifest):
            log.append("checkpoint", step=step, name=folder.name, digest=state, bytes=0, sync=True)
        return folder.name

    def end(verdict: str, cause: str) -> int:
        name = save()
        log.append("end", verdict=verdict, cause=cause, sync=True)
        until = target() if cause == "completed" else None
        Verdict(verdict, cause, step, until, name, state, at=files.now()).write_once(  # type: ignore[arg-type]
            attempt.verdict
        )
        return 0

    def target() -> Length:
        control = in_force(trial)
        return (control and control.until) or experiment.searcher.max_length  # type: ignore[return-value]

    def validate() -> None:
        log.append(
            "metrics",
            group="validation",
            step=step,
            metrics={
                "validation_loss": loss(trial.number, step, plan.get("losses", "")),
                **{name: by * trial.number for name, by in plan.get("besides", {}).items()},
            },
            units={"batches": step, "records": step, "epochs": 0},
        )

    rungs = {rung.value for rung in experiment.searcher.rungs}
    pace = os.environ.get("PACE")
    deadline = float(os.environ.get("HPCDET_DEADLINE") or "inf")
    stepped, begun = False, step
    asked = plan.get("hold", [])
    holds = [
        one
        for one in ([asked] if isinstance(asked, dict) else asked)
        if trial.number in one.get("trials", [trial.number])
    ]
    stint = plan.get("stint", 1 << 30)
    if isinstance(stint, dict):
        stint = stint.get(str(trial.number), 1 << 30)
    stubborn = trial.number in plan.get("stubborn", [])
    while True:
        control = in_force(trial)
        if not stubborn:
            if control is not None and control.now:
                return os.EX_TEMPFAIL
            if heard:
                return end("resume", "signal")
            if time.time() > deadline - plan.get("lead_s", 0.5):
                return end("resume", "walltime")
            if control is not None and control.action == "pause":
                return end("resume", "paused")
            if control is not None and control.action in ("stop", "kill", "fail"):
                return end("done", "stopped")
        if step >= target().value:
            validate()
            return end("done", "completed")
        held = any(step == one["at"] and not Path(one["until"]).exists() for one in holds)
        if held or step - begun >= stint:
            save()
            time.sleep(0.02)
            continue
        time.sleep(float(Path(pace).read_text()) if pace else plan.get("step_s", 0.01))
        if step == crash_at and attempt.number <= attempts:
            raise RuntimeError(f"crash of trial {trial.number} at step {step}")
        step += 1
        state = hashlib.sha256(f"{state} {step}".encode()).hexdigest()
        if step % plan.get("every", 10) == 0:
            save()
        if not stepped:
            stepped = True
            log.append("first_step")
        if step in rungs and step < target().value:
            validate()


if __name__ == "__main__":
    sys.exit(main())
