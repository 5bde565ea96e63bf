"""Code written for Determined runs as it is (``tests/unmodified``), where that is not installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcdet import checkpoint
from hpcdet.process import determined_imports
from hpcdet.store.folder.layout import TrialPaths
from tests import TESTS, ranks

CODE = TESTS / "unmodified"
LAUNCH = "python3 -m determined.launch.torch_distributed python3"

pytestmark = pytest.mark.xdist_group("unmodified")


def experiment(
    root: Path, entrypoint: str, metric: str, world: int = 2, **changes: Any
) -> TrialPaths:
    return ranks.experiment(
        root,
        code=CODE,
        hparams={"slope": 1.0, "lr": 0.01},
        ranks=world,
        entrypoint=entrypoint,
        searcher={"metric": metric},
        **changes,
    )


def killed_once(trial: TrialPaths, world: int = 2) -> ranks.Result:
    """The result after a rank was killed behind a checkpoint of a step above 0."""
    with ranks.start(trial, world) as attempt:
        attempt.wait_for(
            lambda: any(one.step > 0 for one in checkpoint.committed(trial.checkpoints))
        )
        attempt.signal(signal.SIGKILL, world - 1)
        attempt.wait()
        assert attempt.verdict() is None, attempt.log()
    last = ranks.finish(trial, world)
    [start] = [line for line in last.lines() if line["kind"] == "start"]
    assert start["batches"] > 0, last.log()
    return ranks.result(trial)


@pytest.mark.parametrize(
    ("entrypoint", "metric"),
    [(f"{LAUNCH} trial.py --batches 120", "validation_loss"), (f"{LAUNCH} loop.py", "total")],
)
def test_it_goes_on_from_the_middle(tmp_path: Path, entrypoint: str, metric: str) -> None:
    whole = experiment(tmp_path / "1", entrypoint, metric)
    log = ranks.finish(whole, 2).log()
    assert log.count("`import determined` is hpcdet's face of it") == 1
    assert killed_once(experiment(tmp_path / "2", entrypoint, metric)) == ranks.result(whole)


def test_batch_inference_does_each_batch_once_and_all(tmp_path: Path) -> None:
    trial = experiment(tmp_path / "EXP", f"{LAUNCH} batches.py", "total")
    (trial.root / "outputs" / "rank_1" / ".new-1-killed").mkdir(parents=True)
    result = killed_once(trial)
    assert result.validations[601]["total"] == sum(range(1201)) * 2
    outputs = trial.root / "outputs"
    found = [sorted(one.name for one in (outputs / f"rank_{rank}").iterdir()) for rank in (0, 1)]
    assert [len(names) for names in found] == [601, 600], "and no folder that was left half filled"


def test_where_a_shell_starts_it(tmp_path: Path) -> None:
    """In another Python process, with all that a shell makes of the entrypoint."""
    entrypoint = f"N=20 && {LAUNCH} trial.py --batches $N > out-$RANK.txt"
    sharded = {"strategy": "fsdp2"}  # of which attributes pass through as well
    trial = experiment(tmp_path / "EXP", entrypoint, "validation_loss", distributed=sharded)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    attempt = ranks.run(trial, 2, PATH=path)
    assert ranks.result(trial).batches == 20, attempt.log()


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    entrypoint = "python3 trial.py --batches 4"
    trial = experiment(tmp_path / "EXP", entrypoint, "x", compat={"determined": "off"})
    verdict = ranks.run(trial, 2).verdict()
    assert verdict is not None and "No module named 'determined' (hpcdet's" in verdict.error


def imports(program: str, *path: Path) -> subprocess.CompletedProcess[str]:
    """A Python that has hpcdet, with these folders before its own."""
    before = "".join(f"sys.path.insert(0, {str(one)!r}); " for one in path)
    offer = "from hpcdet.process import determined_imports; determined_imports.offer('auto')"
    whole = f"import sys; {before}{offer}\n"
    argv = [sys.executable, "-c", whole + program]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120)


def test_the_package_itself_wins(tmp_path: Path) -> None:
    (tmp_path / "determined" / "core").mkdir(parents=True)
    (tmp_path / "determined" / "__init__.py").write_text("from determined import core\n")
    (tmp_path / "determined" / "core" / "__init__.py").write_text("REAL = True\n")
    program = "import determined.core; print(determined.core.REAL)"
    assert imports(program, tmp_path).stdout == "True\n"
    # in what a rank starts, the module path has hpcdet's folder before those of packages
    again = imports(program, tmp_path, Path(determined_imports.FOLDER))
    assert again.stdout == "True\n" and "which knows nothing of hpcdet" in again.stderr


def test_folders_of_that_name_without_a_package_in_them_change_nothing(tmp_path: Path) -> None:
    """Data, or modules of the code's own, which are found beside hpcdet's."""
    (tmp_path / "code" / "determined" / "mine").mkdir(parents=True)
    (tmp_path / "code" / "determined" / "core.py").write_text("raise AssertionError('hidden')\n")
    (tmp_path / "code" / "determined" / "mine" / "deep.py").write_text("NAME = __name__\n")
    (tmp_path / "other" / "determined").mkdir(parents=True)
    program = (
        "import determined.core, determined.mine.deep as deep; from determined import pytorch\n"
        "print(determined.core.__name__, deep.NAME, determined.__name__)\n"
        "try: import determined.nothing\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    for first in (tmp_path / "other", Path(determined_imports.FOLDER)):
        done = imports(program, tmp_path / "code", first)
        assert done.stdout.splitlines() == [
            "hpcdet.determined.core determined.mine.deep hpcdet.determined",
            "No module named 'determined.nothing': hpcdet has none (docs/start/port.md)",
        ], done.stderr


def test_one_module_under_two_names() -> None:
    done = imports(
        "import determined.core, hpcdet.determined.core\n"
        "import determined as det, determined.pytorch.samplers as s, hpcdet.determined as ours\n"
        "print(det is ours, determined.core is ours.core, s is ours.pytorch.samplers)\n"
    )
    assert done.stdout == "True True True\n", done.stderr


NOT_THERE = {
    "import determined.cli": "No module named 'determined.cli': hpcdet has none: the command line",
    "from determined import EnvContext": "hpcdet has no determined.EnvContext: use get_cluster",
    "import determined as d; d.nothing": "has no attribute 'nothing'",
    "from determined.experimental.client import create_user": (
        "hpcdet has no determined.experimental.client.create_user: users are those of the cluster"
    ),
}


def test_what_is_not_there_says_why() -> None:
    done = imports(
        f"for program in {list(NOT_THERE)!r}:\n"
        "    try: exec(program)\n"
        "    except (ImportError, AttributeError) as error: print(error)\n"
    )
    for said, expected in zip(done.stdout.splitlines(), NOT_THERE.values(), strict=True):
        assert expected in said


def test_the_client_is_imported_without_the_login_tower() -> None:
    done = imports(
        "import sys\n"
        "from determined.experimental import client, Determined\n"
        "print(Determined is client.Determined, 'hpcdet.client' in sys.modules)\n"
    )
    assert done.stdout == "True False\n", done.stderr
