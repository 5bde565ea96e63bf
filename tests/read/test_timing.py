"""Where the time goes: measured by the ranks, read by the views, shown to people."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pynvml
import pytest

from hpcdet.errors import UsageError
from hpcdet.read import report
from hpcdet.read.experiment import series, timing
from hpcdet.read.experiment.gather import gather
from hpcdet.read.report import step_phases
from hpcdet.read.usage import efficiency
from hpcdet.read.views import views
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.fs import journal
from hpcdet.train.telemetry import probes
from hpcdet.train.telemetry.device_timer import DeviceTimes, corrected
from hpcdet.train.telemetry.phases import PHASES, Phases
from hpcdet.train.telemetry.profile import Profile
from hpcdet.train.telemetry.resource_monitor import ResourceMonitor
from hpcdet.train.telemetry.tracker import Tracker
from hpcdet.units import Units
from tests import TOP, ranks
from tests.builders import EPOCH, AttemptBuilder, Builder
from tests.commands import Cli

SLOW_DATA = """
import os, time
import torch
from hpcdet import pytorch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if os.environ["RANK"] == "1":
            time.sleep(0.005)
        return torch.full((4,), float(index)), torch.ones(1)

class Trial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)
        self.model = context.wrap_model(torch.nn.Sequential(*layers))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), 1e-4))
    def build_training_data_loader(self):
        return pytorch.DataLoader(Data(), 8)
    def build_validation_data_loader(self):
        return pytorch.DataLoader(Data(), 8)
    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = (self.model(batch[0]) - batch[1]).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}
    def evaluate_batch(self, batch, batch_idx):
        return {"validation_loss": 1.0}
"""


class Clock:
    """A clock that its reader turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


# -- measured ------------------------------------------------------------------------------


def test_each_rank_tells_where_its_time_went_and_who_was_waited_for(tmp_path: Path) -> None:
    trial = ranks.experiment(
        tmp_path / "EXP",
        code=SLOW_DATA,
        ranks=2,
        until=22,
        entrypoint="model_def:Trial",
        hparams={},
        min_validation_period={"batches": 11},
    )
    attempt = ranks.run(trial, 2)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    own = [line for line in attempt.lines() if line["kind"] == "profile"]
    for rank, lines in enumerate((own, journal.read(attempt.paths.profile(1)))):
        assert {line["rank"] for line in lines} == {rank}
        assert sum(line["steps"] for line in lines) == 21
        assert sum(line["samples"] for line in lines) == 21 * 16
        assert {name for line in lines for name in line["phases"]} == set(PHASES) - {"waiting"}
        for line in lines:  # one, or more where the machine is so busy that it takes long
            assert sum(line["phases"].values()) == pytest.approx(line["seconds"], abs=0.001)
        assert lines[-1]["use"]["rss_bytes_max"] > 10e6
    # rank 0 has little to do but to wait for rank 1, whose data come slowly
    both = timing.ranks(gather(found_in(trial)).trials[0])
    fast, slow = (one.times.phases for one in both)
    assert slow["data"] >= 21 * 8 * 0.005
    assert slow["data"] > fast["data"]
    assert fast["communication"] > slow["communication"]
    [found] = timing.stragglers(both)
    assert (found.rank, found.phase) == (1, "data")
    rows = series.metrics(found_in(trial), group="timing", name="rank1.data_s")
    assert rows[-1]["step"] == 22


def found_in(trial: TrialPaths) -> ExperimentPaths:
    return ExperimentPaths(trial.root.parent.parent)


def test_batches_are_traced_where_the_config_asks_for_it(tmp_path: Path) -> None:
    trial = ranks.experiment(
        tmp_path / "EXP",
        code=SLOW_DATA,
        until=6,
        entrypoint="model_def:Trial",
        hparams={},
        profiling={"enabled": True, "begin_on_batch": 2, "end_after_batch": 3},
    )
    attempt = ranks.run(trial)
    verdict = attempt.verdict()
    assert verdict is not None and verdict.verdict == "done", attempt.log()
    [file] = views.show(found_in(trial)).files.traces
    assert file == str(attempt.paths.trace(0))
    events = json.loads(gzip.decompress(Path(file).read_bytes()))["traceEvents"]
    names = [event["name"] for event in events if event.get("ph") == "X"]
    for phase in ("forward", "backward", "optimizer"):
        assert names.count(f"hpcdet: {phase}") >= 2
    assert names.count("hpcdet: backward") == 2
    assert any("addmm" in name for name in names)
    times = timing.wall(gather(found_in(trial)).trials[0])
    assert times.phases["profiling"] > 0 and times.step_s is not None
    assert times.step_s * times.steps == pytest.approx(
        sum(
            s for n, s in times.phases.items() if n not in ("profiling", "validation", "checkpoint")
        ),
        abs=0.001,
    )
    clock = iter(range(0, 1000, 100))
    profile = Profile(None, clock=lambda: float(next(clock)))
    before = profile._last
    with profile.apart("profiling"):
        pass
    assert profile._last > before and set(profile.phases.take()) == {"other", "profiling"}


LOOP = """
from hpcdet import core

with core.init() as context:
    for step in range(1, 6):
        with context.profiler.phase("data"):
            with context.profiler.phase("augment"):
                pass
        context.profiler.count(32)
        if step == 3:
            context.checkpoint.save({"step": step}, step)
        context.train.report_training_metrics(step, {"loss": 0.0})
        assert not context.preempt.should_preempt()
"""


def test_a_loop_of_ones_own_names_its_phases(tmp_path: Path) -> None:
    trial = ranks.experiment(
        tmp_path / "EXP", code="", entrypoint="python3 script.py", until=5, hparams={}
    )
    (tmp_path / "EXP" / "code" / "script.py").write_text(LOOP)
    attempt = ranks.run(trial)
    [told] = [line for line in attempt.lines() if line["kind"] == "profile"]
    assert (told["steps"], told["samples"]) == (4, 4 * 32), attempt.log()
    assert {"other", "checkpoint"} <= told["phases"].keys()
    quiet = ranks.experiment(
        tmp_path / "QUIET",
        code="",
        entrypoint="python3 script.py",
        until=5,
        hparams={},
        profiling={"measure": False},
    )
    (tmp_path / "QUIET" / "code" / "script.py").write_text(LOOP)
    attempt = ranks.run(quiet)
    assert attempt.verdict() is not None
    assert all(line["kind"] != "profile" for line in attempt.lines())


def test_phases_exclude_each_other_and_add_up() -> None:
    clock = Clock()
    phases = Phases(clock)
    for name, seconds in (("data", 1.0), ("forward", 2.0)):
        clock.now += 0.25
        with phases.within(name):
            clock.now += seconds
            with phases.within("communication"):
                clock.now += 0.5
            clock.now += seconds
    assert phases.take() == {"other": 0.5, "data": 2.0, "forward": 4.0, "communication": 1.0}
    clock.now += 3
    assert phases.take() == {"other": 3.0}


def test_records_are_few_however_long_it_takes(tmp_path: Path) -> None:
    clock = Clock()
    told = Profile(Tracker(tmp_path / "journal.jsonl"), clock=clock, rank=0, host="n1")
    month = 30 * 24 * 3600
    for step in itertools.count(1):
        clock.now += 10.0
        told.step(Units(step, 10 * step))
        if clock.now >= month:
            break
    told.close(Units(step, 10 * step))
    lines = journal.read(tmp_path / "journal.jsonl")
    assert 1000 < len(lines) < 4000
    assert lines[0]["seconds"] == 10
    # nothing of what passed behind the first step is missing
    assert sum(line["seconds"] for line in lines) == pytest.approx(month - 10, abs=1)
    assert sum(line["steps"] for line in lines) == step - 1
    assert sum(line["samples"] for line in lines) == 10 * (step - 1)


def test_names_of_phases_are_words_and_few() -> None:
    told = Profile(None)
    told.phase("my_phase_2")
    for name in ("My phase", "", "x" * 33):
        with pytest.raises(UsageError):
            told.phase(name)
    with pytest.raises(UsageError, match="phase_2"):
        list(map(told.phase, (f"phase_{number}" for number in range(100))))


class Event:
    """An accelerator's event: it passes when its device comes to it."""

    device: ClassVar[list[Event]] = []

    def __init__(self) -> None:
        self.at: float | None = None

    def record(self) -> None:
        Event.device.append(self)

    def query(self) -> bool:
        return self.at is not None

    def elapsed_time(self, end: Event) -> float:
        assert self.at is not None and end.at is not None
        return 1000 * (end.at - self.at)


def test_an_accelerator_is_sampled_and_never_waited_for() -> None:
    Event.device = []
    times = DeviceTimes(Event, every=3)
    for _ in range(6):
        mark = times.begin()
        for phase in ("forward", "backward", "communication", "optimizer"):
            if mark is not None:
                mark(phase)
        times.end()
    assert times.take() == (0, {})  # the device has not come so far
    assert len(Event.device) == 2 * 5
    for event, at in zip(Event.device[:5], (10, 12, 15, 15.5, 16.5), strict=True):
        event.at = at
    steps, found = times.take()
    assert (steps, found) == (
        1,
        {"forward": 2.0, "backward": 3.0, "communication": 0.5, "optimizer": 1.0},
    )
    # the host was quick to ask for the work and then waited, in the optimizer and for data
    host = {"data": 1.0, "forward": 0.5, "backward": 0.5, "optimizer": 11.0, "other": 1.0}
    told = corrected(host, 2, steps, found)
    assert sum(told.values()) == pytest.approx(sum(host.values()))
    assert told["data"] == 1.0
    assert told["forward"] == pytest.approx(told["optimizer"] * 2) == pytest.approx(4.0)
    assert told["communication"] == pytest.approx(1.0)
    short = corrected({"forward": 1.0, "other": 0.0}, 2, steps, found)
    assert sum(short.values()) == pytest.approx(1.0)


# -- used ----------------------------------------------------------------------------------


def test_what_a_job_uses_is_read_from_its_cgroup(tmp_path: Path) -> None:
    two = tmp_path / "v2" / "system.slice" / "slurmstepd.scope" / "job_12"
    (two / "step_0").mkdir(parents=True)
    files = {
        "cpu.stat": "usage_usec 2000000\nuser_usec 1\n",
        "memory.current": "5000\n",
        "memory.max": "8000\n",
        "memory.stat": "anon 3000\ninactive_file 1500\n",
    }
    for name, text in files.items():
        (two / name).write_text(text)
    said = "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n"
    probe = probes.job_cgroup(said, tmp_path / "v2")
    assert probe is not None
    (two / "cpu.stat").write_text("usage_usec 9000000\n")
    found = probe()
    assert (found["job_memory_bytes"], found["job_memory_limit_bytes"]) == (3500, 8000)
    assert found["job_cpu_cores"] > 0
    (two / "memory.max").write_text("max\n")
    assert "job_memory_limit_bytes" not in probe()

    for controller in ("cpu,cpuacct", "memory"):
        (tmp_path / "v1" / controller / "slurm" / "uid_0" / "job_12").mkdir(parents=True)
    one = tmp_path / "v1"
    (one / "cpu,cpuacct/slurm/uid_0/job_12/cpuacct.usage").write_text("1000000000\n")
    (one / "memory/slurm/uid_0/job_12/memory.usage_in_bytes").write_text("700\n")
    (one / "memory/slurm/uid_0/job_12/memory.limit_in_bytes").write_text(f"{2**63 - 4096}\n")
    (one / "memory/slurm/uid_0/job_12/memory.stat").write_text("total_inactive_file 100\n")
    path = "/slurm/uid_0/job_12/step_0/task_0"
    probe = probes.job_cgroup(f"5:cpu,cpuacct:{path}\n4:memory:{path}\n", one)
    assert probe is not None
    assert probe()["job_memory_bytes"] == 600
    assert "job_memory_limit_bytes" not in probe()
    # what is no job's (a login session, a container) says nothing of one
    assert probes.job_cgroup("0::/user.slice/user-0.slice/session-2.scope\n", two) is None


def test_processes_count_those_that_they_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))

    def process(pid: int, ticks: int, pages: int, children: str) -> None:
        folder = tmp_path / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
        (folder / "task" / str(pid) / "children").write_text(children)
        fields = ["S", *["0"] * 10, str(ticks), "0", *["0"] * 27]
        (folder / "stat").write_text(f"{pid} (a) b) " + " ".join(fields))
        (folder / "statm").write_text(f"0 {pages} 0 0 0 0 0\n")
        io = {"rchar": 1, "wchar": 1, "syscr": 1, "syscw": 1, "read_bytes": ticks, "write_bytes": 0}
        (folder / "io").write_text("".join(f"{name}: {value}\n" for name, value in io.items()))

    pid = os.getpid()
    process(pid, 0, 10, "77 78")
    process(77, 0, 5, "79")
    process(79, 0, 1, "")  # 78 has just ended
    probe = probes.Processes(clock)
    second, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    process(pid, 2 * second, 10, "77 78")
    process(79, 2 * second, 3, "")
    clock.now = 2.0
    looked = ResourceMonitor([probe])
    looked.look()
    (tmp_path / "77" / "io").unlink()  # as of one that may not be asked
    clock.now = 3.0
    looked.look()
    found = looked.take()
    assert found["cpu_cores"] == pytest.approx((2.0 + 0.0) / 2)
    assert found["rss_bytes"] == found["rss_bytes_max"] == 18 * page
    assert found["read_bytes_per_s"] == pytest.approx(second)
    assert looked.take() == {}


def test_processes_of_this_machine_are_measured() -> None:
    probe = probes.Processes()
    before = probe()["rss_bytes"]
    code = "import time; held = b'x' * 2**27; print(flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline()
        found = probe()
    finally:
        child.kill()
        child.communicate()
    assert list(found) == ["cpu_cores", "rss_bytes", "read_bytes_per_s", "written_bytes_per_s"]
    assert found["rss_bytes"] > before + 2**27
    assert found["cpu_cores"] > 0


class FakeNvml:
    """Stands in for the driver's library below pynvml; its numbers are made up."""

    def __init__(self, *lacks: str, knows: str = "GPU-1234-5678") -> None:
        self.lacks, self.knows = lacks, knows
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*given: Any) -> int:
            self.asked.append(name)
            if name in self.lacks:
                return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
            if name == "nvmlDeviceGetHandleByUUID" and given[0].value != self.knows.encode():
                return int(pynvml.NVML_ERROR_NOT_FOUND)
            if name == "nvmlDeviceGetUtilizationRates":
                given[1]._obj.gpu, given[1]._obj.memory = 87, 31
            if name == "nvmlDeviceGetMemoryInfo":
                given[1]._obj.total, given[1]._obj.used = 80 * 2**30, 5 * 2**30
            if name == "nvmlDeviceGetPowerUsage":
                given[1]._obj.value = 412_345
            return 0

        return call


def test_an_accelerator_is_asked_through_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def library(fake: FakeNvml) -> FakeNvml:
        monkeypatch.setattr(pynvml, "nvmlLib", fake)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return fake

    whole = library(FakeNvml())
    assert probes.nvidia("9999") is None
    probe = probes.nvidia("1234-5678")  # as torch writes it
    assert probe is not None
    assert probe() == {"gpu_percent": 87.0, "gpu_memory_bytes": 5 * 2.0**30, "gpu_watts": 412.345}
    assert all(name.startswith("nvml") for name in whole.asked), "no call of CUDA's"
    library(FakeNvml("nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates"))
    probe = probes.nvidia("1234-5678")
    assert probe is not None and list(probe()) == ["gpu_memory_bytes"]
    library(FakeNvml("nvmlDeviceGetUtilizationRates", knows="MIG-1234-5678"))
    probe = probes.nvidia("1234-5678")  # which torch writes of a part of a device, too
    assert probe is not None and "gpu_memory_bytes" in probe()
    library(FakeNvml("nvmlInitWithFlags"))
    assert probes.nvidia("1234-5678") is None


# -- read ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """What one rank tells, in seconds of each phase."""

    rank: int = 0
    host: str = "n1"
    steps: int = 100
    data: float = 1.0
    forward: float = 4.0
    communication: float = 1.0
    checkpoint: float = 0.1
    rss_bytes: float = 2e9
    cpu_cores: float = 0.8

    def line(self) -> dict[str, Any]:
        phases = {
            "data": self.data,
            "forward": self.forward,
            "communication": self.communication,
            "checkpoint": self.checkpoint,
        }
        use = {"cpu_cores": self.cpu_cores, "rss_bytes": 1.0, "rss_bytes_max": self.rss_bytes}
        return {
            "rank": self.rank,
            "host": self.host,
            "batches": self.steps,
            "seconds": sum(phases.values()),
            "steps": self.steps,
            "samples": 3200,
            "slowest_s": 0.2,
            "phases": phases,
            "by": "host",
            "use": use,
        }


def tell(attempt: AttemptBuilder, *told: Told) -> None:
    for one in told:
        if not one.rank:
            attempt.line("profile", **one.line())
            continue
        with journal.Writer(attempt.paths.profile(one.rank)) as writer:
            writer.append("profile", **one.line())


@pytest.fixture
def measured(tmp_path: Path) -> Builder:
    """Four ranks on two nodes; those on n2 are slower, and the data are slow for all."""
    resources = {"slots_per_trial": 4, "cpus_per_slot": 8, "memory_per_slot": 16 * 10**9}
    built = Builder(tmp_path / "digits-7f3a", resources=resources)
    attempt = built.trial().attempt(ranks=4)
    usual = Told(data=2.0)
    slow = replace(usual, host="n2", forward=6.0, communication=0.0, rss_bytes=3e9)
    tell(attempt, usual, replace(usual, rank=1), replace(slow, rank=2), replace(slow, rank=3))
    attempt.end("completed")
    return built


def test_times_of_all_ranks_and_who_was_slow(measured: Builder) -> None:
    trial = gather(measured.paths).trials[0]
    times = timing.of_trial(trial)
    assert (times.steps, times.samples) == (100, 3200)
    assert times.seconds == pytest.approx(2 * 7.1 + 2 * 8.1)
    assert timing.wall(trial).step_s == pytest.approx(0.07)
    assert timing.wall(trial).samples_per_s == pytest.approx(3200 / 7.0)
    [found] = timing.stragglers(timing.ranks(trial))
    assert (found.name, found.phase) == ("node n2", "forward")
    assert found.over == pytest.approx(1 / 3)
    assert found.cost_s == pytest.approx(0.02)


def test_one_of_two_is_compared_with_the_other(tmp_path: Path) -> None:
    built = Builder(tmp_path / "two-0000")
    attempt = built.trial().attempt()
    tell(attempt, Told(), Told(rank=1, data=1.9))
    retried = built.trial().attempt()
    tell(retried, Told(), Told(rank=1, data=2.5, communication=0.0))
    first, second = (timing.stragglers(timing.ranks(t)) for t in gather(built.paths).trials)
    assert first == []  # 18 % is no straggler
    assert [(one.name, one.phase) for one in second] == [("rank 1 on n1", "data")]
    hints = [one.next for one in timing.findings(gather(built.paths).trials[1])]
    assert "look at what rank 1 alone does: others on n1 keep up" in hints


def test_metrics_of_time_come_when_asked_for(measured: Builder) -> None:
    assert series.metrics(measured.paths) == []
    rows = series.metrics(measured.paths, group="timing")
    named = {row["name"]: row["value"] for row in rows}
    assert named["data_s"] == pytest.approx(0.02)
    assert named["rank2.forward_s"] == pytest.approx(0.06)
    assert named["samples_per_s"] == pytest.approx(457.1)
    assert {row["group"] for row in rows} == {"timing"}
    system = series.metrics(measured.paths, group="s*", name="rank3.*")
    assert {row["name"]: row["value"] for row in system}["rank3.rss_bytes_max"] == 3e9
    assert views.show(measured.paths).attempts[0].steps == 100


@pytest.mark.parametrize(("data", "fewer"), [(0.1, True), (0.2, False)])
def test_cores_that_loading_lacks_are_not_taken_away(
    measured: Builder, monkeypatch: pytest.MonkeyPatch, data: float, fewer: bool
) -> None:
    """It was to have more and fewer cores per slot at once."""
    share = timing.Times.share
    monkeypatch.setattr(
        timing.Times, "share", lambda self, name: data if name == "data" else share(self, name)
    )
    [row] = efficiency.efficiency(measured.paths)
    assert ("resources.cpus_per_slot" in {one.key for one in row.suggestions}) == fewer
    assert any("more num_workers" in str(one.value) for one in row.suggestions) != fewer


def test_eff_compares_asked_with_used(measured: Builder, cli: Cli) -> None:
    [row] = efficiency.efficiency(measured.paths)
    assert (row.cpus, row.memory_peak_bytes) == (8, 3 * 10**9)
    assert row.cpu_cores == pytest.approx(0.8)
    wanted = {one.key: one.value for one in row.suggestions if one.key}
    assert wanted == {"resources.memory_per_slot": "4G"}  # its data is slow: cores are not too many
    ran = cli("eff", measured.paths.root)
    assert "10 % of 8" in ran.out
    assert "node n2 works 33 % longer" in ran.out
    assert "try resources.memory_per_slot: 4G" in cli("eff", measured.paths.root, "--suggest").out
    assert "LOST" in cli("eff", measured.paths.root, "--waste").out
    [item] = cli("eff", measured.paths.root, "-o", "json").items
    assert item["phases"]["data"] == pytest.approx(row.phases["data"])
    said = cli("explain", measured.paths.root).out
    assert f"slow: data: {100 * row.phases['data']:.0f} % of the time" in said  # of all ranks
    assert "--exclude-node n2" in said


def test_the_report_shows_phases_and_stragglers(measured: Builder) -> None:
    page = report.render(gather(measured.paths), EPOCH.timestamp() + 1000)
    assert "Inside training" in page
    assert "<td>70 ms</td>" in page
    assert "node n2" in page
    assert "trial 1, Waiting for other ranks" in page
    assert "<td>1.1</td><td>3</td><td>n2</td><td>0.8</td><td>3.0 GB</td>" in page
    silent = Builder(measured.paths.root.parent / "old-0000")
    silent.trial().attempt().end("completed")  # made before ranks told of their time
    assert "Inside training" not in report.render(gather(silent.paths), EPOCH.timestamp() + 1000)
    [row] = efficiency.efficiency(silent.paths)
    assert (row.cpu_cores, row.step_s, row.phases) == (None, None, {})


def test_each_phase_has_a_colour_of_its_own() -> None:
    style = (TOP / "templates" / "report" / "style.css").read_text()
    fills = dict(re.findall(r"\.f(\d) \{ fill: var\(--(\w+)\)", style))
    assert len(fills) == step_phases.COLOURS >= len(timing.PHASES)
    colours = dict(re.findall(r"--(\w+): (#\w+)", style.partition("@media")[0]))
    assert len({colours[name] for name in fills.values()}) == len(fills)
