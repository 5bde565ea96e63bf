"""A trial without a policy, beside the same one under the last version without governance.

Both versions train the same model at the same time, each in fresh processes, so that what slows one
slows the other: their steps take as long, their last checkpoints have the same digest, and no
module of the guard is imported. A step is judged by 95 % bounds of its ratio (``processes.ratio``).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

from benchmarks import processes, results

TOP = Path(__file__).resolve().parent.parent.parent
BEFORE = "d9c42b41b0"
"""The last commit without governance."""
ROUNDS = 7
WARM, BATCHES = 200, 1200
STEP = 1.03
MODEL = f"""
import json, os, sys, time
import torch
from torch import nn
from torch.nn import functional
from hpcdet import pytorch

class Model(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        layers = [nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)]
        self.model = context.wrap_model(nn.Sequential(*layers))
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters()))
        self.begin = 0.0

    def build_training_data_loader(self):
        draws = torch.Generator().manual_seed(1)
        x = torch.randn(640, 64, generator=draws)
        y = torch.randint(0, 10, (640,), generator=draws)
        data = torch.utils.data.TensorDataset(x, y)
        return pytorch.DataLoader(data, batch_size=32, shuffle=True)

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch, epoch_idx, batch_idx):
        if batch_idx == {WARM}:
            self.begin = time.thread_time()
        if batch_idx == {BATCHES - 1}:
            step = (time.thread_time() - self.begin) / {BATCHES - 1 - WARM}
            guard = [name for name in sys.modules if name.startswith("hpcdet.guard")]
            with open(os.environ["SEEN"], "w") as file:
                json.dump({{"step_s": step, "guard": guard}}, file)
        x, y = batch
        loss = functional.cross_entropy(self.model(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {{"loss": loss}}

    def evaluate_batch(self, batch):
        x, y = batch
        return {{"validation_loss": functional.cross_entropy(self.model(x), y).item()}}
"""
TRIAL = f"""
import json, sys
from pathlib import Path
from tests import ranks
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    model = (folder / "model.py").read_text()
    trial = ranks.experiment(
        folder / "EXP", code=model, entrypoint="model_def:Model", until={BATCHES},
        hparams={{"global_batch_size": 32}},
    )
    attempt = ranks.run(trial, SEEN=str(folder / "seen.json"), OMP_NUM_THREADS="1")
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    seen = json.loads((folder / "seen.json").read_text())
    print(json.dumps({{**seen, "digest": verdict.digest}}))
"""
"""Run by the tree of either version."""


def rows(rounds: int) -> Iterator[results.Row]:
    """The rows; nothing of the version before where the history does not reach back to it."""
    now: list[dict[str, Any]] = []
    before: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        there = _extract(tree)
        for _ in range(rounds):
            with ThreadPoolExecutor() as both:
                other = both.submit(_trained, tree) if there else None
                now.append(_trained(TOP))
                before += [other.result()] if other is not None else []
    name = f"commit {BEFORE[:8]}" if there else "no history"
    imported = sorted({one for seen in now for one in seen["guard"]})
    yield _row("no policy: modules of the guard imported", imported, [], "", rounds)
    ours, theirs = ({one["digest"] for one in seen} for seen in (now, before))
    digests = [sorted(one) for one in (ours, theirs)]
    goal = digests[1] if there else None
    yield _row("no policy: content digest", digests[0], goal, name, rounds)
    steps = [[1000 * one["step_s"] for one in seen] for seen in (now, before)]
    yield _step_row(steps[0], steps[1], name)


def _step_row(ours: list[float], theirs: list[float], name: str) -> results.Row:
    """The row of steps, ms; its goal is not decided by few rounds, or by a machine too busy."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=False)]
    found = processes.ratio(ratios) if len(ratios) >= processes.LEAST else None
    said = "" if found is None else found.against(STEP)
    value = found.value if found is not None else statistics.fmean(ratios) if ratios else None
    return {
        "what": "no policy: a step",
        "unit": "ms",
        "ours": round(statistics.median(ours), 4),
        "peer": round(statistics.median(theirs), 4) if theirs else None,
        "peer_name": name,
        "ratio": None if value is None else round(value, 4),
        "goal": STEP,
        "met": {"met": True, "missed": False}.get(said),
        "runs": len(ours),
        "bounds": None if found is None else [round(found.low, 4), round(found.high, 4)],
    }


def _row(what: str, ours: Any, wanted: Any, name: str, runs: int) -> results.Row:
    return {
        "what": what,
        "unit": "",
        "ours": ours,
        "peer": wanted if name else None,
        "peer_name": name,
        "ratio": None,
        "goal": wanted,
        "met": None if wanted is None else ours == wanted,
        "runs": runs,
    }


def _extract(tree: Path) -> bool:
    """Put the files of the version before into a folder; False if Git does not have it."""
    argv = ["git", "-C", str(TOP), "archive", "--format=tar", BEFORE, "hpcdet", "tests"]
    done = subprocess.run(argv, capture_output=True, check=False)
    if done.returncode:
        return False
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(tree, filter="data")
    return True


def _trained(tree: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.py").write_text(MODEL)
        (folder / "trial.py").write_text(TRIAL)
        done = subprocess.run(
            [sys.executable, str(folder / "trial.py"), str(folder)],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
