"""What a nursery's own life must not leave in ranks, and what is said between it and its worker."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpcdet.launchers.common import Launch
from hpcdet.store.config import resolved_config
from hpcdet.worker.attempts.step import Exit
from hpcdet.worker.attempts.warm_ranks import WarmRanks
from tests import experiments as x
from tests.nursery.test_forked_ranks import Trials, environment, launch, nursery

SPAWNS = """
import multiprocessing, sys

def answer(queue):
    queue.put(3)

if __name__ == "__main__":
    from see import say
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.SimpleQueue()
    child = spawn.Process(target=answer, args=(queue,))
    child.start()
    child.join()
    say(code=child.exitcode, main=sys.modules["__mp_main__"].__spec__.name)
"""
PRINTS = """
import ctypes
print("printed")
ctypes.CDLL(None).puts(b"put")
"""
HASTY = """
import json, sys
print(json.dumps({"kind": "ready"}), flush=True)
number = json.loads(sys.stdin.readline())["number"]
pid = 1 << 30  # beyond what a kernel gives: the worker sweeps up behind its ranks
said = (
    {"kind": "forked", "number": number, "pids": [pid]},
    {"kind": "ended", "pid": pid, "code": 3},
)
print(*map(json.dumps, said), sep="\\n", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def test_a_process_that_a_script_spawns_finds_the_script(root: Path) -> None:
    warm = nursery(root)
    said = Trials(root, warm).run(SPAWNS)
    warm.close()
    assert said == {"code": 0, "main": "hpcdet.attempt"}


def test_what_imports_print_is_in_no_ranks_output(root: Path) -> None:
    (root / "prints.py").write_text(PRINTS)
    warm = nursery(root, "prints", PYTHONPATH=str(root))
    assert not warm.why
    argv = (sys.executable, "-Pm", "hpcdet.attempt", str(root / "none"), "1", "1")
    plan = launch(argv, {**environment(root), "PYTHONPATH": str(root)})
    log = root / "launcher.log"
    step = warm.fork(plan, log, root)
    assert step is not None
    x.until(lambda: not step.running())
    warm.close()
    assert "error: " in log.read_text()
    assert "printed" not in log.read_text() and "put\n" not in log.read_text()


def test_a_rank_that_ends_at_once_has_ended(root: Path) -> None:
    config = resolved_config.resolve({"name": "test", "entrypoint": "model_def:Model"})
    warm = WarmRanks(config, lambda *_, **__: None)
    argv = (sys.executable, "-c", HASTY)
    warm.start(Launch(argv, environment(root), ({},), by_launcher=False))
    x.until(lambda: warm.settled)
    step = warm.fork(launch(argv, environment(root)), root / "launcher.log", root)
    assert step is not None
    running = step.running()
    warm.close()
    assert not running
    assert step.result() == Exit(3, 0)


@pytest.mark.parametrize("pid", [1, 0, -1])
def test_a_process_that_can_be_no_rank_is_not_taken_for_one(root: Path, pid: int) -> None:
    config = resolved_config.resolve({"name": "test", "entrypoint": "model_def:Model"})
    warm = WarmRanks(config, lambda *_, **__: None)
    argv = (sys.executable, "-c", HASTY.replace("1 << 30", str(pid)))
    warm.start(Launch(argv, environment(root), ({},), by_launcher=False))
    x.until(lambda: warm.settled)
    with pytest.raises(OSError, match="are no ranks"):
        warm.fork(launch(argv, environment(root)), root / "launcher.log", root)
    warm.close()


def test_a_request_may_be_longer_than_a_pipe_is(root: Path) -> None:
    warm = nursery(root)
    argv = (sys.executable, "-Pm", "hpcdet.attempt", str(root / "none"), "1", "1")
    plan = launch(argv, environment(root), HPCDET_LONG="x" * (1 << 20))
    step = warm.fork(plan, root / "launcher.log", root)
    assert step is not None
    x.until(lambda: not step.running())
    warm.close()
    assert step.result().code == 1 and not warm.why
