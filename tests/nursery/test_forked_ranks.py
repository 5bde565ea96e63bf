"""Ranks that are forked: what they share with new processes, and what with nobody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdet.launchers.common import Launch
from hpcdet.schedulers.common import processes
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.records import Claim
from hpcdet.worker.attempts import step as steps
from hpcdet.worker.attempts.step import Exit, RunningStep
from hpcdet.worker.attempts.warm_ranks import WarmRanks
from tests import experiments as x
from tests import intruders, ranks

SEE = """
import ctypes, json, multiprocessing, os, random, resource, signal, sys, threading, time
from pathlib import Path

def say(**more):
    path = Path(os.environ["SAYS"])
    path.with_suffix(".new").write_text(json.dumps(more))
    path.with_suffix(".new").rename(path)

def seen():
    import numpy, torch
    death = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(death), 0, 0, 0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    main = sys.modules["__main__"]
    opened = sorted(os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
    return {
        "argv": sys.argv, "orig": sys.orig_argv, "path": sys.path, "flags": list(sys.flags),
        "line": Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").decode().split("\\0"),
        "environ": {n: v for n, v in os.environ.items() if n != "HPCDET_HELD_IS"},
        "environ_of_c": ctypes.CDLL(None).getenv(b"LEFT") or 0,
        "masks": [status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt")],
        "handlers": [str(signal.getsignal(n)).split(" at ")[0] for n in signal.valid_signals()],
        "death": death.value, "leads": os.getpgrp() == os.getpid(),
        "cores": sorted(os.sched_getaffinity(0)), "nice": os.nice(0), "umask": os.umask(0o077),
        "limits": [resource.getrlimit(n) for n in range(10)], "name": status["Name"],
        "opened": [one for one in opened if not one.startswith("/proc")], "folder": os.getcwd(),
        "main": main.__spec__.name if main.__spec__ else main.__file__,
        "thread": threading.current_thread().name,
        "cuda": torch.cuda.is_initialized(),
    }, {
        "draws": [random.random(), numpy.random.rand(), *torch.rand(1).tolist()],
        "key": multiprocessing.current_process().authkey.hex(), "modules": list(sys.modules),
        "threads": int(status["Threads"]),
    }
"""
SPOIL = """
import socket, subprocess, tempfile
import numpy, torch
import neighbour
from see import *
random.seed(1); numpy.random.seed(1); torch.manual_seed(1); torch.set_num_threads(3)
left = open(tempfile.mkstemp()[1]); ends = socket.socketpair()
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
os.environ["LEFT"] = "1"; os.chdir("/"); sys.path.append("/nowhere"); torch.LEFT = 1
torch.rand(10, requires_grad=True).sum().backward()
say()
"""
WAIT = """
from see import *
from hpcdet.process import signals
say(pid=os.getpid())
while not signals.heard(): time.sleep(0.01)
os._exit(40 + (signals.heard() == "SIGTERM"))
"""
LOOK = """
from see import *
import torch
same, own = seen()
say(same=same, own=own, left=hasattr(torch, "LEFT"))
"""


class Trials:
    """Trials whose code is a script, warm and cold."""

    def __init__(self, root: Path, warm: WarmRanks | None) -> None:
        self.root, self.warm, self.count = root, warm, 0
        self.says = root / "says.json"

    def start(
        self, code: str, environ: dict[str, str] | None = None, **settings: Any
    ) -> RunningStep:
        self.count += 1
        self.says.unlink(missing_ok=True)
        place = self.root / f"exp-{self.count:04}"
        wanted = {"entrypoint": "python3 main.py", **settings}
        trial = ranks.experiment(place, code="", **wanted)
        place.chmod(0o700)
        for name, text in (("main", code), ("model_def", code), ("see", SEE), ("neighbour", "")):
            (place / "code" / f"{name}.py").write_text(text)
        Claim("0001-0000.0", "here").write_once(trial.attempt(1).claim)
        argv = (sys.executable, "-Pm", "hpcdet.attempt", str(place), "1", "1")
        given = environ or environment(self.root)
        plan = launch(argv, given, WORLD_SIZE="1", LOCAL_RANK="0")
        log = self.root / "launcher.log"
        step = self.warm.fork(plan, log, place / "code") if self.warm else None
        return step or steps.start(plan, log, place / "code")

    def story(self) -> str:
        logs = self.root.glob("exp-*/trials/*/attempts/*/logs/*.log")
        return "\n".join(log.read_text() for log in (self.root / "launcher.log", *logs))

    def end(self, step: RunningStep) -> Exit:
        x.until(lambda: not step.running(), self.story)
        return step.result()

    def said(self, step: RunningStep) -> dict[str, Any]:
        x.until(lambda: self.says.exists() or not step.running(), self.story)
        assert self.says.exists(), self.story()
        return dict(json.loads(self.says.read_text()))

    def run(self, code: str, **settings: Any) -> dict[str, Any]:
        step = self.start(code, **settings)
        said = self.said(step)
        assert self.end(step) == Exit(0), self.story()
        return said


def launch(argv: tuple[str, ...], environ: dict[str, str], **own: str) -> Launch:
    """One rank, as without a launcher."""
    rank = ({"RANK": "0", **own},)
    return Launch(argv, environ, rank, by_launcher=False, rank=argv, forked=(rank,))


def environment(root: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "SAYS": str(root / "says.json"), "OMP_NUM_THREADS": "2"}


def nursery(root: Path, *modules: str, **more: str) -> WarmRanks:
    argv = (sys.executable, "-Pm", "hpcdet.nursery", *modules, "-" * 4096)
    plan = Launch(argv, {**environment(root), **more}, ({},), by_launcher=False)
    config = resolved_config.resolve({"name": "test", "entrypoint": "model_def:Model"})
    warm = WarmRanks(config, lambda *_, **__: None)
    warm.start(plan)
    x.until(lambda: warm.settled)
    return warm


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("forked")
    root.chmod(0o700)
    return root


@pytest.fixture(scope="module")
def trials(root: Path) -> Iterator[Trials]:
    warm = nursery(root)
    assert not warm.why
    yield Trials(root, warm)
    warm.close()


@pytest.fixture(scope="module")
def looks(trials: Trials) -> list[dict[str, Any]]:
    """What two ranks see of themselves, one of them behind a trial that leaves all it can."""
    first = trials.run(LOOK)
    trials.run(SPOIL)
    return [first, trials.run(LOOK)]


def without_numbers(value: object) -> object:
    """The same, whatever the number of the experiment and of the folder's descriptor is."""
    import re

    text = re.sub(r"/proc/\d+/fd/\d+|exp-\d{4}", "X", json.dumps(value))
    return json.loads(re.sub(r"/X/trials/1/attempts/1/[^\"]*", "X", text))


def test_a_forked_rank_is_as_a_new_process(trials: Trials, looks: list[dict[str, Any]]) -> None:
    cold = Trials(trials.root, None)
    cold.count = 100
    expected, found = cold.run(LOOK), looks[1]
    for name, value in expected["same"].items():
        assert without_numbers(found["same"][name]) == without_numbers(value), name
    assert expected["same"]["line"][2] == "hpcdet.attempt"
    missing = {*expected["own"]["modules"]} - {*found["own"]["modules"]}
    assert not missing, "it has all that a new one would have"


def test_nothing_of_a_trial_is_in_the_next(looks: list[dict[str, Any]]) -> None:
    before, behind = looks
    assert without_numbers(before["same"]) == without_numbers(behind["same"])
    assert before["own"]["modules"] == behind["own"]["modules"]
    assert not behind["left"] and "LEFT" not in behind["same"]["environ"]
    assert before["own"]["threads"] == behind["own"]["threads"] == 1


def test_what_is_random_is_so_where_it_is_in_a_new_process(looks: list[dict[str, Any]]) -> None:
    one, other = (look["own"] for look in looks)
    assert len({*one["draws"], *other["draws"]}) == 6, "random, numpy's and torch's own"
    assert one["key"] != other["key"]


def test_a_first_step_imports_nothing_but_the_users_modules(
    trials: Trials, looks: list[dict[str, Any]]
) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    import bench_start  # type: ignore[import-not-found]

    code = bench_start.TRIAL.replace(bench_start.SAY, "from see import *\n").replace(
        "        say()\n", "        say(modules=list(sys.modules))\n"
    )
    settings = {"entrypoint": "model_def:StartTrial", "hparams": {"global_batch_size": 8}}
    after = trials.run(code, until=1, **settings)["modules"]
    inside = {*after} - {*looks[0]["own"]["modules"]} - {"model_def", "see", "neighbour"}
    assert len(inside) <= 20, inside


def test_a_rank_is_found_by_the_command_line_of_a_cold_one(trials: Trials) -> None:
    step = trials.start(WAIT)
    place = str(trials.root / f"exp-{trials.count:04}")
    pid = trials.said(step)["pid"]
    found = subprocess.run(
        ["pgrep", "-f", f"hpcdet.attempt {place} 1 1$"], capture_output=True, text=True
    )
    step.kill()
    trials.end(step)
    assert found.stdout.split() == [str(pid)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_notice_to_the_nursery_reaches_its_ranks(trials: Trials, number: signal.Signals) -> None:
    step = trials.start(WAIT)
    pid = trials.said(step)["pid"]
    os.kill(x.parent(pid), number)
    assert trials.end(step).code == 40 + (number == signal.SIGTERM)


def test_a_notice_right_behind_the_fork_is_kept_for_the_rank(trials: Trials) -> None:
    for _ in range(5):
        step = trials.start(WAIT)
        step.notify()
        assert trials.end(step).code == 40, trials.story()


def test_a_killed_rank_died_of_that(trials: Trials) -> None:
    step = trials.start(WAIT)
    os.kill(trials.said(step)["pid"], signal.SIGKILL)
    assert trials.end(step) == Exit(137, 0, "SIGKILL")


def test_ranks_that_cannot_be_forked_are_a_failed_launch(trials: Trials, root: Path) -> None:
    assert trials.warm is not None
    plan = launch(("python", "-Pm", "hpcdet.attempt"), environment(root))
    with pytest.raises(OSError, match="No such file"):
        trials.warm.fork(plan, root / "launcher.log", root / "nowhere")
    assert trials.run("import see; see.say()") == {}


def test_libraries_that_would_load_otherwise_start_cold(trials: Trials, root: Path) -> None:
    assert trials.warm is not None
    argv = ("python", "-Pm", "hpcdet.attempt")
    for name in ("OMP_NUM_THREADS", "MKL_CBWR", "LD_PRELOAD", "GLIBC_TUNABLES", "PYTHONHASHSEED"):
        plan = launch(argv, environment(root), **{name: "7"})
        assert trials.warm.fork(plan, root / "launcher.log", root) is None


def test_nobody_else_can_speak_to_a_nursery(trials: Trials) -> None:
    step = trials.start(WAIT)
    there = Path(f"/proc/{x.parent(trials.said(step)['pid'])}")
    step.kill()
    trials.end(step)
    opened = [str(fd.readlink()) for fd in (there / "fd").iterdir()]
    assert not [one for one in opened if one.startswith("socket:")]
    if os.getuid():
        pytest.skip("only root can act as another user")
    code = (
        f"import os; os.setgid({intruders.UID}); os.setuid({intruders.UID})\n"
        "refused = 0\n"
        f"for path in ['{there}/fd', '{there}/mem', '{there}/environ']:\n"
        "    try: os.listdir(path) if path.endswith('fd') else open(path, 'rb')\n"
        "    except PermissionError: refused += 1\n"
        f"try: os.kill({there.name}, 12)\n"
        "except PermissionError: refused += 1\n"
        "print(refused)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "4", done.stderr


def test_ranks_die_with_their_nursery_and_the_next_start_cold(root: Path) -> None:
    warm = nursery(root)
    mine = Trials(root, warm)
    mine.count = 200
    step = mine.start(WAIT)
    pid = mine.said(step)["pid"]
    os.kill(x.parent(pid), signal.SIGKILL)
    assert mine.end(step) == Exit(137, 0, "SIGKILL")
    assert processes.started(pid) is None
    assert mine.run("import see, sys; see.say(warm='hpcdet.nursery' in sys.modules)", until=1) == {
        "warm": False
    }
    assert "exit code -9" in warm.why
    warm.close()


def test_a_rank_that_the_kernel_kills_for_memory_is_known_as_such(
    trials: Trials, group: Path
) -> None:
    warm = trials.warm
    assert warm is not None
    step = trials.start(WAIT)
    parent = x.parent(trials.said(step)["pid"])
    step.kill()
    trials.end(step)
    assert warm.oom_kills == 0, "killed by somebody"
    (group / "memory.limit_in_bytes").write_text(str(700 << 20))
    (group / "cgroup.procs").write_text(str(parent))
    try:
        step = trials.start("from see import *; say(); left = bytearray(os.urandom(2 << 30))")
        assert trials.end(step) == Exit(137, 0, "SIGKILL"), trials.story()
        assert warm.oom_kills == 1
    finally:
        (group.parent / "cgroup.procs").write_text(str(parent))


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group inside this process's own, where the kernel has those of version 1."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    mine = [line.split(":", 2)[2] for line in lines if line.split(":")[1] == "memory"]
    group = Path(f"/sys/fs/cgroup/memory/{'/'.join(mine)}/hpcdet-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no control group could be made here")
    yield group
    x.until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


BAD = {
    "has_a_thread": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(600,), name='busy', daemon=True).start()\n",
    "is_broken": "1 / 0\n",
    "computes": "import torch\ntorch.set_num_threads(2)\ntorch.ones(1 << 20).exp()\n",
}


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("has_a_thread", "import has_a_thread has started the thread busy"),
        ("is_broken", "import is_broken: ZeroDivisionError"),
        ("computes", "import computes has started 2 threads"),
    ],
)
def test_what_an_import_must_not_do_is_said(root: Path, module: str, why: str) -> None:
    folder = root / "modules"
    folder.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(BAD[module])
    warm = nursery(root, module, PYTHONPATH=str(folder))
    assert why in warm.why
    warm.close()


def test_an_import_that_asks_for_devices_asks_the_driver(root: Path) -> None:
    folder = root / "modules"
    folder.mkdir(exist_ok=True)
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    (folder / "asks.py").write_text(f"import os; assert os.environ.pop('{name}') == '1'\n")
    warm = nursery(root, "asks", PYTHONPATH=str(folder))
    assert not warm.why
    code = f"from see import *\nsay(asked='asks' in sys.modules, left='{name}' in os.environ)"
    mine = Trials(root, warm)
    mine.count = 300
    plan = {**environment(root), "PYTHONPATH": str(folder)}
    assert mine.run(code, environ=plan) == {"asked": True, "left": False}
    warm.close()


def test_a_fork_that_cannot_compute_is_found_out() -> None:
    code = (
        "from hpcdet.nursery import imports\n"
        "imports._PROBE_S = 0.5\n"
        "imports._compute = lambda: imports.time.sleep(600)\n"
        "try: imports.probe()\n"
        "except imports.Unfit as why: print(why)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "takes more than 0.5 s" in done.stdout, done.stderr
