"""``make bench-elastic``: what ``reproducibility.elastic: exact`` costs, in time of a step.

Against DDP at 2 and 4 ranks, and against one rank alone.

The same trial, data and global batch, four virtual ranks; one process per rank over gloo, one
thread each. Both kinds take turns in each round; a run's figure is the median of its steps. Ranks
are forked from a process that has imported torch already.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "benchmarks")]

import results  # noqa: E402

from hpcdet.store.config import resolved_config  # noqa: E402
from hpcdet.store.folder.layout import ExperimentPaths  # noqa: E402
from hpcdet.store.folder.records import Claim, Trial, Verdict  # noqa: E402

RANKS = (1, 2, 4)
VIRTUAL = 4
SETTLE = 8  # steps of each run that do not count
MODELS = {
    "small": {"width": 64, "layers": 2, "global_batch_size": 64},
    "large": {"width": 1024, "layers": 3, "global_batch_size": 256},
}
STEPS = {"small": 100, "large": 28}
PATIENCE_S = 300
SERVER = multiprocessing.get_context("forkserver")

CODE = """
import json, os, time, torch
from hpcdet import pytorch


class Clock(pytorch.PyTorchCallback):
    def __init__(self):
        self.begins, self.last = [], -1

    def on_trial_shutdown(self):
        if os.environ["RANK"] == "0":
            steps = [b - a for a, b in zip(self.begins, self.begins[1:])]
            with open(os.environ["STEPS"], "w") as out:
                json.dump(steps, out)


class Trial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context, width = context, context.get_hparam("width")
        layers = [torch.nn.Linear(256, width)]
        for _ in range(context.get_hparam("layers")):
            layers += [torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(width, width)]
        self.model = context.wrap_model(torch.nn.Sequential(*layers, torch.nn.Linear(width, 10)))
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters()))
        self.clock = Clock()

    def build_callbacks(self):
        return {"clock": self.clock}

    def build_training_data_loader(self):
        data = torch.utils.data.TensorDataset(torch.randn(2048, 256), torch.arange(2048) % 10)
        return pytorch.DataLoader(data, self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader([torch.zeros(1)] * 4)

    def train_batch(self, batch, epoch_idx, batch_idx):
        if batch_idx != self.clock.last:
            self.clock.last = batch_idx
            self.clock.begins.append(time.perf_counter())
        loss = torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch, batch_idx):
        return {"validation_loss": 0.0}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one short round: does it run?")
    given = parser.parse_args()
    rounds = 1 if given.quick else given.rounds
    SERVER.set_forkserver_preload(["torch", "hpcdet.attempt", "hpcdet.core", "hpcdet.pytorch"])
    times: dict[tuple[str, int, bool], list[float]] = {}
    digests: dict[tuple[str, bool], set[str]] = {}
    with tempfile.TemporaryDirectory(prefix="hpcdet-bench-") as folder:
        for turn in range(rounds):
            for name, model_steps in STEPS.items():
                steps = SETTLE + 5 if given.quick else model_steps
                for ranks in RANKS:
                    for exact in (False, True) if turn % 2 else (True, False):
                        where = Path(folder) / f"{name}-{ranks}-{exact}-{turn}"
                        took, digest = run(where, name, ranks, exact, steps)
                        times.setdefault((name, ranks, exact), []).append(took)
                        digests.setdefault((name, exact), set()).add(digest)
    rows = [row(name, ranks, times) for name in MODELS for ranks in RANKS]
    for one in rows:
        print(
            f"{one['what']:<28}{one['ours']:>9.2f} ms exact{one['peer']:>9.2f} ms DDP"
            f"{one['ratio']:>7.2f}   (minima {one['least_ours']:.2f}, {one['least_peer']:.2f})"
        )
    for name in MODELS:
        exact, plain = (sorted(digests[name, kind]) for kind in (True, False))
        where = f"on {', '.join(map(str, RANKS))} ranks"
        print(f"{name}: exact {where}: {', '.join(one[:16] for one in exact)}")
        print(f"{name}: DDP   {where}: {', '.join(one[:16] for one in plain)}")
    results.write("elastic", rows)
    return int(any(len(digests[name, True]) > 1 for name in MODELS))


def row(name: str, ranks: int, times: dict[tuple[str, int, bool], list[float]]) -> results.Row:
    ours, peer = times[name, ranks, True], times[name, ranks, False]
    median, other = statistics.median(ours), statistics.median(peer)
    return {
        "what": f"step, {name} model, {ranks} rank{'s' * (ranks > 1)}",
        "unit": "ms",
        "ours": round(median, 3),
        "peer": round(other, 3),
        "peer_name": "DDP" if ranks > 1 else "one rank without DDP",
        "ratio": round(median / other, 3),
        "goal": None,
        "met": None,
        "runs": len(ours),
        "least_ours": round(min(ours), 3),
        "least_peer": round(min(peer), 3),
    }


def run(root: Path, name: str, ranks: int, exact: bool, steps: int) -> tuple[float, str]:
    """Median time of a step, in milliseconds, and the digest that a run ended with."""
    paths = ExperimentPaths(root)
    paths.code.mkdir(parents=True)
    (paths.code / "model_def.py").write_text(CODE)
    wanted = {"elastic": "exact", "virtual_ranks": VIRTUAL} if exact else {}
    resolved = {
        "name": "bench",
        "entrypoint": "model_def:Trial",
        "searcher": {"max_length": {"batches": steps}},
        "resources": {"slots_per_trial": ranks, "slots_per_node": ranks, "cpus_per_slot": 1},
        "reproducibility": wanted,
    }
    paths.config.write_bytes(resolved_config.dump(resolved))
    trial = paths.trial(1)
    Trial(1, MODELS[name], 7).write_once(trial.record)
    attempt = trial.attempt(1)
    Claim("0001-0000.0", "here").write_once(attempt.claim)
    argv = [str(root), "1", "1"]
    given = {
        **{"STEPS": str(root / "steps.json"), "OMP_NUM_THREADS": "1", "NODE_RANK": "0"},
        **{"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)},
    }
    running = [
        SERVER.Process(target=be, args=(argv, {**given, "RANK": str(r), "LOCAL_RANK": str(r)}))
        for r in range(ranks)
    ]
    try:
        for one in running:
            one.start()
        for one in running:
            one.join(PATIENCE_S)
        codes = [one.exitcode for one in running]
    finally:
        for one in running:
            if one.pid is not None:
                one.kill()
                one.join()
    verdict = Verdict.read(attempt.verdict)
    if verdict is None or verdict.verdict != "done":
        logs = [log.read_text() for log in sorted(attempt.logs.glob("rank-*.log"))]
        said = "\n".join([*logs, verdict.error if verdict else "no verdict"])
        sys.exit(f"{root.name}: ranks ended with {codes} (None: not in {PATIENCE_S} s)\n{said}")
    found = json.loads((root / "steps.json").read_text())
    return 1000 * statistics.median(found[SETTLE:]), verdict.digest


def be(argv: list[str], variables: dict[str, str]) -> None:
    """One rank, in a process of its own: what ``python -m hpcdet.attempt`` does."""
    from hpcdet.attempt import main as attempt
    from hpcdet.process import signals

    os.environ.update(variables)
    signals.install()
    os._exit(attempt(argv))


if __name__ == "__main__":
    sys.exit(main())
