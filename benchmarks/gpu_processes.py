"""Parts of ``bench_gpu`` that are about processes: forks, workers' ranks, devices of lanes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import results

from benchmarks.start import worker_trials
from benchmarks.start.models import TRIAL
from hpcdet.jobs.script import lanes
from hpcdet.store.fs import journal
from tests import experiments

WORKS = "works"
_COMPUTE = """
import os, sys, time, traceback
begin = time.perf_counter()
import torch
def compute(begin):
    weight = torch.ones(1 << 16, device=sys.argv[1], requires_grad=True)
    (weight * weight).sum().backward()
    assert weight.grad.sum().item() == 2 << 16
    print(time.perf_counter() - begin, flush=True)
"""
_NEW = f"{_COMPUTE}\ncompute(begin)\n"
_FORKS = f"""{_COMPUTE}
assert sys.argv[1] == "cpu" or torch.cuda.is_available(), "NVML finds no device"
assert not torch.cuda.is_initialized()
import pynvml
try:
    pynvml.nvmlInit()
except pynvml.NVMLError:
    assert sys.argv[1] == "cpu", "NVML does not answer"
for _ in range(2):
    child = os.fork()
    if child == 0:
        try:
            compute(time.perf_counter())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        sys.exit("the fork could not compute")
"""
_SEES = """
import json, torch
from hpcdet.train.telemetry import probes
count = torch.cuda.device_count()
uuids = [str(torch.cuda.get_device_properties(n).uuid) for n in range(count)]
print(json.dumps([[uuid, probes.nvidia(uuid) is not None] for uuid in uuids]))
"""
_MODEL = TRIAL.replace(
    "nn.Linear(1, 1)", "nn.Sequential(nn.Linear(1, 64), nn.Dropout(0.5), nn.Linear(64, 1))"
).replace("        say()\n", "        loss.item()\n        say()\n")


def forks(device: str) -> results.Row:
    """Compute on a device in forks of a process that has asked NVML for it, and nothing else."""
    by_driver = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    forked = [float(line) for line in _said(_FORKS, device, **by_driver)]
    [new] = [float(line) for line in _said(_NEW, device)]
    what = f"first result on {device} in a fork, NVML asked before"
    median = statistics.median(forked)
    return _row(what, "s", median, new, "a new process, with its import", WORKS, len(forked) == 2)


def workers(trials: int, folder: Path) -> Iterator[results.Row]:
    """Trials of a worker whose ranks are forked, and of one whose ranks start anew."""
    walls: dict[str, list[float]] = {}
    digests: dict[str, list[str]] = {}
    cold: list[str] = []
    for warm in ("auto", "off"):
        place = folder / warm
        variables = {"START_SAYS": str(place / "says")}
        with worker_trials.ended(_MODEL, warm, trials, place, variables) as paths:
            walls[warm] = worker_trials.walls(paths)
            numbers = range(1, trials + 1)
            digests[warm] = [experiments.final_digest(paths, number) for number in numbers]
            if warm == "auto":
                [worker] = paths.root.glob("workers/*/journal.jsonl")
                cold = [note["why"] for note in journal.read(worker) if note["kind"] == "cold"]
    anew = "ranks that start anew"
    later = [statistics.median(walls[warm][1:]) for warm in ("auto", "off")]
    what = f"later trials from their claim{': ' if cold else ''}{'; '.join(cold)}"
    yield _row(what, "s", later[0], later[1], anew, WORKS, not cold, trials - 1)
    alike = digests["auto"] == digests["off"]
    ours, other = (digests[warm][-1][:16] for warm in ("auto", "off"))
    yield _row("warm ranks, last trial", "digest", ours, other, anew, "the same", alike, trials)


def devices(count: int, lanes_per_node: int = 2) -> results.Row:
    """Count what the ranks of each lane see, of so many devices that are here."""
    seen: list[str] = []
    right = True
    for lane in range(lanes_per_node):
        shown = lanes.devices(os.environ, lane, lanes_per_node)
        part = [one for text in shown.values() for one in text.split(",") if one]
        found = json.loads(_said(_SEES, **shown)[-1])
        right &= len(found) == len(part) and all(known for _, known in found)
        right &= bool(part) or not count
        seen += [uuid for uuid, _ in found]
    least = min(count, lanes_per_node)
    what = f"devices that {lanes_per_node} lanes see, each its own, known to NVML"
    right &= len(set(seen)) >= least
    return _row(what, "devices", len(set(seen)), count, "all", WORKS, right, lanes_per_node)


def _said(code: str, *arguments: str, **variables: str) -> list[str]:
    """What a process prints."""
    environ: Mapping[str, str] = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environ,
        cwd=Path(__file__).resolve().parent.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout.split("\n")[:-1]


def _row(
    what: str,
    unit: str,
    ours: float | str,
    peer: float | str,
    peer_name: str,
    goal: str,
    met: bool,
    runs: int = 1,
) -> results.Row:
    timed = isinstance(ours, float) and isinstance(peer, float) and peer
    return {
        "what": what,
        "unit": unit,
        "ours": ours,
        "peer": peer,
        "peer_name": peer_name,
        "ratio": round(ours / peer, 4) if timed else None,  # type: ignore[operator]
        "goal": goal,
        "met": met,
        "runs": runs,
    }
