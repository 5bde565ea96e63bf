"""Trials of some seconds on two places: how much longer they take than their training alone.

Ours, with ranks that are forked and with ranks that start anew, beside Ray Tune and one job of
submitit for each trial. Training alone is two processes that have imported torch, side by side.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.start import peers, work
from benchmarks.start.models import ONE
from tests import experiments

Row = dict[str, Any]

MOST = 1.15
_OPEN = 16  # the default: a place takes the next trial without waiting for a decision
_TOP = Path(__file__).resolve().parents[2]
_PEERS = ("torch==2.13.0", "ray[tune]==2.60.*", "submitit==1.5.*")
_IMPORTS = "import torch, ray.tune, submitit"
_RAY = {"ray-reuse": "Ray Tune, reuse_actors", "ray": "Ray Tune, an actor for each trial"}
_OTHERS = {**_RAY, "submitit": "submitit, a job for each trial"}
_OURS = {"auto": "warm ranks", "off": "ranks that start anew"}
MODEL = """
import os
import torch
from hpcdet import pytorch
from work import Work

class Training(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters()))
        self.work = Work(os.environ["HPCDET_TRIAL"])

    def build_training_data_loader(self):
        data = torch.utils.data.TensorDataset(torch.rand(64, 1))
        return pytorch.DataLoader(data, self.context.get_per_slot_batch_size())

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch, epoch_idx, batch_idx):
        self.work.step()
        return {"loss": 0.0}

    def evaluate_batch(self, batch, batch_idx):
        return {"validation_loss": 0.0}
"""


@dataclass(frozen=True)
class Spans:
    """When the trainings of all trials began and ended.

    Attributes:
        asked: when they were asked for.
        trials: begin and end of each, and the processor time between.
    """

    asked: float
    trials: list[tuple[float, float, float]]

    @property
    def start_s(self) -> float:
        """Seconds until the first one began."""
        return min(begin for begin, *_ in self.trials) - self.asked

    @property
    def wall_s(self) -> float:
        """Seconds from there until the last one ended."""
        return max(end for _, end, _ in self.trials) - self.asked - self.start_s

    @property
    def training_s(self) -> float:
        """Seconds of all trainings."""
        return sum(end - begin for begin, end, _ in self.trials)


def rows(trials: int, seconds: float, folder: Path, *, install: bool = True) -> Iterator[Row]:
    """Yield the rows of so many trials that train so long.

    Args:
        install: the others, if they are not there; else they are left out.
    """
    python = _peers_python(install)
    steps = round(seconds / _step_s(folder))
    few = max(peers.PLACES, trials // 4)
    before = _peer(sys.executable, "alone", few, steps, folder)
    found = {name: _ours(warm, trials, steps, folder) for warm, name in _OURS.items()}
    for how, name in _OTHERS.items() if python else ():
        found[name] = _peer(python, how, trials, steps, folder)
    behind = _peer(sys.executable, "alone", few, steps, folder)
    each = statistics.fmean(one.training_s / len(one.trials) for one in (before, behind))
    alone = each * trials / peers.PLACES
    for name, spans in found.items():
        goal = MOST if name == _OURS["auto"] else None
        what = f"{trials} trials of {each:.1f} s on {peers.PLACES} places: {name}"
        yield _row(what, spans.wall_s, "training alone, both busy", alone, goal)
        own = spans.training_s / peers.PLACES
        yield _row(what, spans.wall_s, "its own trainings", own, goal)
    for name, spans in found.items():
        yield _row(f"until the first training: {name}", spans.start_s, "one training", each)


def _row(what: str, ours: float, name: str, peer: float, goal: float | None = None) -> Row:
    return {
        "what": what,
        "unit": "s",
        "ours": round(ours, 2),
        "peer": round(peer, 2),
        "peer_name": name,
        "ratio": round(ours / peer, 3),
        "goal": goal,
        "met": None if goal is None else ours / peer <= goal,
        "runs": 1,
    }


def _step_s(folder: Path) -> float:
    """Seconds of the processor for a step while both places are busy."""
    alone = _peer(sys.executable, "alone", peers.PLACES, 100, folder)
    return statistics.median(used for *_, used in alone.trials) / 100


def _peers_python(install: bool) -> str:
    """The interpreter of the others' environment; "" if it is not there, and is not to be."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hpcdet-bench"
    python = home / "start-venv" / "bin" / "python"
    if install and not python.exists():
        venv.create(python.parent.parent, with_pip=True)
    if python.exists() and subprocess.run([python, "-c", _IMPORTS], check=False).returncode == 0:
        return str(python)
    if not install:
        print(f"Ray Tune and submitit are left out: {python} has not all of them")
        return ""
    subprocess.run([python, "-m", "pip", "install", "-q", *_PEERS], check=True)
    return str(python)


def _peer(python: str, how: str, trials: int, steps: int, folder: Path) -> Spans:
    place = folder / f"{how}-{time.time():.0f}"
    variables = _variables(place / "says", steps)
    argv = [python, "-m", "benchmarks.start.peers", how, str(trials), str(place)]
    environment = {**os.environ, **variables, "PYTHONPATH": str(_TOP)}
    asked = time.time()
    subprocess.run(argv, cwd=_TOP, env=environment, stdout=sys.stderr, check=True)
    return _spans(asked, place / "says", trials)


def _ours(warm: str, trials: int, steps: int, folder: Path) -> Spans:
    place = folder / warm
    variables = _variables(place / "says", steps)
    model = place / "model"
    model.mkdir()
    (model / "model_def.py").write_text(MODEL)
    shutil.copy(work.__file__, model / "work.py")
    values = experiments.config(
        steps,
        trials,
        entrypoint="model_def:Training",
        searcher={"max_concurrent_trials": _OPEN},
        worker={"warm": warm},
        environment={"environment_variables": variables},
        checkpoint_every_s=600,
    )
    site = experiments.local_site(slots=peers.PLACES)
    with experiments.local_jobs(place / "state"):
        asked = time.time()
        paths = experiments.submit(values, place / "EXP", site, model)
        experiments.run_to_end(paths, timeout=60.0 * (trials + 2))
    return _spans(asked, place / "says", trials)


def _variables(says: Path, steps: int) -> Mapping[str, str]:
    says.mkdir(parents=True)
    return {"WORK_SAYS": str(says), "WORK_STEPS": str(steps), **ONE}


def _spans(asked: float, says: Path, trials: int) -> Spans:
    told = [json.loads(one.read_text()) for one in says.glob("*.json") if one.stem != "warm-up"]
    assert len(told) == trials, f"{len(told)} of {trials} trials have trained"
    return Spans(asked, [(begin, end, used) for begin, end, used in told])
