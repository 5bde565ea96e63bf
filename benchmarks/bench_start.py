"""``make bench-start``: what a rank costs until its first step is over, beside a loop by hand.

Fresh processes, in turn: a rank of hpcdet (``python -m hpcdet.attempt``), a script that trains the
same model with torch's ``DistributedDataParallel`` over gloo, and ``import torch`` alone, the
floor. A figure is the median of the rounds: processor time of the process, and the modules that
are loaded, which is what a shared file system is asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import results  # noqa: E402

from hpcdet.store.folder.records import Claim  # noqa: E402
from tests import ranks  # noqa: E402

ROUNDS, QUICK = 9, 2
FLOOR = "import torch"
SAY = """
import json, os, sys, time
def say():
    told = {"cpu_s": time.process_time(), "modules": len(sys.modules)}
    open(os.environ["START_SAYS"], "w").write(json.dumps(told))
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
    print(f"{'until the first step':<24}{'ours':>9}{'peer':>9}{'ratio':>8}  peer")
    for row in rows:
        print(
            f"{row['what']:<24}{row['ours']:>9.2f}{row['peer']:>9.2f}{row['ratio']:>8.2f}", end=""
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
    environment = {**os.environ, "START_SAYS": str(says), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *argv], env=environment, check=True, capture_output=True)
    found: dict[str, float] = json.loads(says.read_text())
    return found


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
