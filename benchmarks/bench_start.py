"""``make bench-start``: what ranks cost until their first step is over, beside a loop by hand.

Fresh processes, in turn: a rank of hpcdet (``python -m hpcdet.attempt``), a script that trains the
same model with torch's ``DistributedDataParallel`` over gloo, and ``import torch`` alone, the
floor. A figure is the median of the rounds: processor time of the process, and the modules that
are loaded, which is what a shared file system is asked for.

Then one worker runs trial after trial of a single step, its ranks forked (``worker.warm: auto``),
and another one does so with ranks that start anew: from a trial's claim to its first step, and the
rank's processor time until then. The first trial of each, for which the worker imports, is a row of
its own, from the worker's start.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import results  # noqa: E402

from hpcdet.store.folder.records import Claim  # noqa: E402
from hpcdet.store.fs import journal  # noqa: E402
from tests import experiments, ranks  # noqa: E402

ROUNDS, QUICK = 9, 2
FLOOR = "import torch"
MOST_S = 0.5
"""The most that a later trial of a worker may take from its claim, or use of the processor."""
ONE = {"OMP_NUM_THREADS": "1"}
SAY = """
import json, os, sys, time
def say():
    told = {"cpu_s": time.process_time(), "modules": len(sys.modules)}
    name = os.environ["START_SAYS"] + os.environ.get("HPCDET_TRIAL", "")
    open(name, "w").write(json.dumps(told))
"""
BY_HAND = f"""{SAY}
import torch
from torch import nn
meeting = "file://" + os.environ["START_SAYS"] + ".store"
torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.rand(64, 1))
for [x] in torch.utils.data.DataLoader(data, 8, shuffle=True):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    say()
    break
torch.distributed.destroy_process_group()
"""
TRIAL = f"""{SAY}
import torch
from torch import nn
from hpcdet import pytorch

class StartTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters()))

    def build_training_data_loader(self):
        data = torch.utils.data.TensorDataset(torch.rand(64, 1))
        return pytorch.DataLoader(data, self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return self.build_training_data_loader()

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch[0]).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        say()
        return {{"loss": loss}}

    def evaluate_batch(self, batch, batch_idx):
        return {{"validation_loss": self.model(batch[0]).square().mean()}}
"""


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two rounds, to see that it works")
    rounds = QUICK if parser.parse_args().quick else ROUNDS
    told: dict[str, list[dict[str, float]]] = {"hpcdet": [], "by hand": [], FLOOR: []}
    for number in range(rounds + 1):
        for name in told if number % 2 else reversed(told):
            with tempfile.TemporaryDirectory() as folder:
                found = _process(name, Path(folder))
            if number:  # the first round brings files into memory
                told[name].append(found)
    rows = [_row(told, peer, key) for peer in ("by hand", FLOOR) for key in ("cpu_s", "modules")]
    with tempfile.TemporaryDirectory() as folder:
        found = {warm: _worker(warm, rounds, Path(folder) / warm) for warm in ("auto", "off")}
    rows += _worker_rows(found["auto"], found["off"])
    print(f"{'until the first step':<44}{'ours':>9}{'peer':>9}{'ratio':>8}  peer")
    for row in rows:
        print(
            f"{row['what']:<44}{row['ours']:>9.2f}{row['peer']:>9.2f}{row['ratio']:>8.2f}", end=""
        )
        print(f"  {row['peer_name']}")
    results.write("start", rows)
    return 0


def _process(name: str, folder: Path) -> dict[str, float]:
    """What a fresh process says after its first step."""
    says = folder / "says.json"
    if name == "hpcdet":
        settings = {"entrypoint": "model_def:StartTrial", "until": 1}
        trial = ranks.experiment(
            folder / "EXP", code=TRIAL, hparams={"global_batch_size": 8}, **settings
        )
        argv = ["-Pm", "hpcdet.attempt", str(folder / "EXP"), "1", "1"]
        Claim("0001-0000.0", "here").write_once(trial.attempt(1).claim)
    else:
        argv = ["-c", BY_HAND if name == "by hand" else f"{SAY}import torch\nsay()"]
    environment = {**os.environ, "START_SAYS": str(says), **ONE}
    subprocess.run([sys.executable, *argv], env=environment, check=True, capture_output=True)
    [said] = folder.glob("says.json*")
    found: dict[str, float] = json.loads(said.read_text())
    return found


def _worker(warm: str, trials: int, folder: Path) -> list[dict[str, float]]:
    """What each trial of one worker says after its first step; its time since the claim, too."""
    model = folder / "model"
    model.mkdir(parents=True)
    (model / "model_def.py").write_text(TRIAL)
    values = experiments.config(
        1,
        trials + 1,
        entrypoint="model_def:StartTrial",
        searcher={"max_concurrent_trials": 1},
        worker={"warm": warm},
        environment={"environment_variables": {"START_SAYS": str(folder / "says"), **ONE}},
    )
    with experiments.local_jobs(folder / "state"):
        paths = experiments.submit(values, folder / "EXP", experiments.local_site(), model)
        experiments.run_to_end(paths, timeout=60.0 * (trials + 2))
    [worker] = paths.root.glob("workers/*/journal.jsonl")
    notes = journal.read(worker)
    begun = {line["trial"]: line["t"] for line in notes if line["kind"] == "claimed"}
    begun[1] = notes[0]["t"] if notes[0]["kind"] == "start" else notes[1]["t"]
    found = []
    for number, since in sorted(begun.items()):
        [attempt] = paths.trial(number).attempts()
        [step] = [one["t"] for one in journal.read(attempt.journal) if one["kind"] == "first_step"]
        wall = datetime.fromisoformat(step) - datetime.fromisoformat(since)
        said = json.loads((folder / f"says{number}").read_text())
        found.append({**said, "wall_s": wall.total_seconds()})
    return found


def _worker_rows(
    warm: list[dict[str, float]], cold: list[dict[str, float]]
) -> Iterator[results.Row]:
    yield _pair("first trial of a worker, s", "s", warm[:1], cold[:1], "wall_s")
    yield _pair("later trials from their claim, s", "s", warm[1:], cold[1:], "wall_s", 0.15)
    yield _pair("later trials, processor time, s", "s", warm[1:], cold[1:], "cpu_s", 0.15)


def _pair(
    what: str,
    unit: str,
    warm: list[dict[str, float]],
    cold: list[dict[str, float]],
    key: str,
    goal: float | None = None,
) -> results.Row:
    ours, other = (statistics.median(one[key] for one in each) for each in (warm, cold))
    return {
        "what": what,
        "unit": unit,
        "ours": round(ours, 3),
        "peer": round(other, 3),
        "peer_name": "ranks that start anew",
        "ratio": round(ours / other, 3),
        "goal": goal,
        "met": None if goal is None else ours / other <= goal and ours <= MOST_S,
        "runs": len(warm),
    }


def _row(told: dict[str, list[dict[str, float]]], peer: str, key: str) -> results.Row:
    ours, other = (statistics.median(one[key] for one in told[who]) for who in ("hpcdet", peer))
    return {
        "what": "processor time, s" if key == "cpu_s" else "modules",
        "unit": "s" if key == "cpu_s" else "1",
        "ours": round(ours, 3),
        "peer": round(other, 3),
        "peer_name": peer,
        "ratio": round(ours / other, 3),
        "goal": None,
        "met": None,
        "runs": len(told[peer]),
    }


if __name__ == "__main__":
    sys.exit(main())
