"""Determined's own examples and test fixtures, run unmodified: ``make test-determined``.

    python -m tests.determined_corpus REPOSITORY [NAME...]

Each code is copied as it is and run undisturbed, then again with one rank killed behind a
checkpoint of a step above 0, and gone on; the digests of both ends are compared. What makes no
checkpoint is killed behind a report and begins anew; its reports are compared. Data are small
and made by ``tests/stubs``. Of configs only lengths, slots and what names a container change.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hpcdet import checkpoint
from hpcdet.config import api as config
from hpcdet.store.config import resolved_config as configs
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.records import Claim, Trial, Verdict
from hpcdet.store.fs import journal

STUBS = Path(__file__).parent / "stubs"
PATIENCE_S = 240.0
_TRIES = 3
_MEASURED = ("timing", "system")
"""Groups of metrics that hpcdet measures itself."""
FIXTURES = "e2e_tests/tests/fixtures"
LAUNCH = "python3 -m determined.launch.torch_distributed python3"
NET = {"learning_rate": 1.0, "n_filters1": 4, "n_filters2": 4, "dropout1": 0.25, "dropout2": 0.5}


@dataclass(frozen=True)
class Case:
    """One code of the repository.

    Attributes:
        file: the script, in the repository.
        config: its own config, beside it; "" where it has none.
        ranks: as many as the code is written for, and no more than 2.
        arguments: behind the script, where they are not the config's own.
        hparams: in place of the config's.
        instead: what is to be seen, where the code is to fail.
        never: why the digests cannot be equal, on any platform.
        images: of the data that ``tests/stubs`` make.
    """

    file: str
    config: str = ""
    ranks: int = 1
    arguments: str | None = None
    hparams: Mapping[str, Any] = field(default_factory=dict)
    instead: str = ""
    never: str = ""
    images: int = 1024

    @property
    def entrypoint(self) -> str:
        """The script behind Determined's launcher, if there are several ranks."""
        shell = "$" in (self.arguments or "")
        command = LAUNCH if self.ranks > 1 and not shell else "python3"
        return f"{command} {Path(self.file).name} {self.arguments or ''}".strip()


_ACTIONS = {
    str(number): action
    for number, action in enumerate(
        [
            {"action": "report", "group": "training", "metrics": {"x": 1.0}},
            {"action": "checkpoint"},
            {"action": "sleep", "time": 2},
            {"action": "report", "group": "validation", "metrics": {"x": "nan"}},
            {"action": "report", "group": "training", "metrics": {"x": 2.0}},
            {"action": "checkpoint"},
        ]
    )
}
_MODEL_ONLY = "it saves neither optimizer nor schedule, and does not use the model that it loads"
_MNIST = "examples/tutorials/core_api_pytorch_mnist"
_UNMANAGED = "examples/features/unmanaged"
_FIXED = f"{FIXTURES}/mnist_pytorch"
_COMPARED = "examples/features/torch_batch_process_core_api_comparison"

CASES = [
    Case("examples/tutorials/mnist_pytorch/train.py", "distributed.yaml", 2, "--epochs 12", NET),
    Case("examples/tutorials/core_api/0_start.py", "0_start.yaml"),
    Case("examples/tutorials/core_api/1_metrics.py", "1_metrics.yaml"),
    Case("examples/tutorials/core_api/2_checkpoints.py", "2_checkpoints.yaml"),
    Case("examples/tutorials/core_api/3_hpsearch.py", hparams={"increment_by": 3}),
    Case(
        "examples/tutorials/core_api/4_distributed.py",
        ranks=2,
        arguments="worker $RANK $LOCAL_RANK",
        hparams={"increment_by": 3},
    ),
    Case(f"{_MNIST}/model_def.py", "const.yaml", arguments="--epochs 2"),
    Case(f"{_MNIST}/model_def_metrics.py", arguments="--epochs 2"),
    Case(f"{_MNIST}/model_def_checkpoints.py", arguments="--epochs 6", never=_MODEL_ONLY),
    Case(f"{_MNIST}/model_def_adaptive.py", arguments="--epochs 6", hparams=NET, never=_MODEL_ONLY),
    Case(f"{_UNMANAGED}/1_singleton.py"),
    Case(f"{_UNMANAGED}/2_checkpoints.py", never="going on, it trains 100 batches more"),
    Case(f"{_UNMANAGED}/3_torch_distributed.py", ranks=2),
    Case(
        f"{_UNMANAGED}/advanced/checkpoints_advanced.py",
        hparams={"lr": 1e-5, "max_epochs": 40},
    ),
    Case(f"{_UNMANAGED}/advanced/context_manager.py"),
    Case(f"{_COMPARED}/torch_batch_process_inference.py", ranks=2, images=24000),
    Case(f"{_COMPARED}/core_api_inference.py", ranks=2, images=24000),
    Case(
        "examples/features/inference_mnist_pytorch/inference.py",
        ranks=2,
        instead="name 'NineRatioInferenceProcessor' is not defined",
    ),
    Case(f"{FIXTURES}/noop/train.py", hparams={"actions": _ACTIONS}),
    Case(f"{FIXTURES}/core_api/11_generic_metrics.py", "11_generic_metrics.yaml"),
    Case(f"{FIXTURES}/core_api/arbitrary_workload_order.py", "arbitrary_workload_order.yaml"),
    Case(f"{FIXTURES}/core_api/pytorch_profiler_sync.py", "pytorch_profiler_sync.yaml"),
    Case(f"{FIXTURES}/core_api/whoami.py", "whoami.yaml"),
    Case(f"{_FIXED}/train.py", "const-pytorch11.yaml", 2, "--batches 200", NET),
    Case(f"{_FIXED}/failable_model_def.py", "failable.yaml", 2, "", NET),
    Case(f"{_FIXED}/profiling.py", "const-profiling.yaml", 2, "--epochs 12", NET),
    Case(f"{_FIXED}/stop_requested_model_def.py", "distributed-stop-requested.yaml", 2, "", NET),
    Case(f"{FIXTURES}/unmanaged/checkpointing.py", never="going on, it trains 100 batches more"),
    Case(f"{FIXTURES}/unmanaged/checkpoint_distributed.py", ranks=2),
    Case(f"{FIXTURES}/unmanaged/error_termination.py", instead="ValueError: oops"),
]

NOT_APPLICABLE = {
    f"{_MNIST}/model_def_distributed.py": "a GPU: DDP(device_ids=…) refuses a CPU",
    "examples/computer_vision/iris_tf_keras/train.py": "a download; TensorFlow's legacy optimizers",
    "examples/deepspeed/dcgan/trainer.py": "an older DeepSpeed: one loss passes two engines",
    "examples/deepspeed/gpt_neox/gpt2_trial.py": "a GPU; a download",
    "examples/diffusion/textual_inversion_stable_diffusion/finetune.py": "a GPU; a download",
    "examples/diffusion/textual_inversion_stable_diffusion/generate.py": "a GPU; a download",
    "examples/features/ports/ray_launcher.py": "a cluster of Ray's and open ports",
    "examples/features/torch_batch_process_embeddings/bert_embedding_generation.py": "a download",
    "examples/features/unmanaged/ray/ray_hp_search.py": "a cluster of Ray's and a master",
    "examples/features/unmanaged/ray/ray_hp_search_cleanup.py": "a cluster of Ray's and a master",
    "examples/hf_trainer_api/hf_image_classification/image_classification.py": "a download",
    "examples/hf_trainer_api/hf_language_modeling/run_clm.py": "a download",
    f"{FIXTURES}/core_api/sleep.py": "no API: it sleeps for ten minutes",
    f"{FIXTURES}/hpc/data_validator.py": "the variable DET_EXPERIMENT_CONFIG of a container",
    f"{FIXTURES}/ports-proxy/start.py": "a proxy for open ports; it never ends",
}
"""What each of the others needs."""

REFUSED = ("experimental.client", "hpcdet has no determined.", "hpcdet has none")
"""How hpcdet refuses something by name."""


@dataclass(frozen=True)
class Outcome:
    """What came of a case: one word, and what there is to say."""

    word: str
    text: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.determined_corpus", description=__doc__)
    parser.add_argument("repository", type=Path)
    parser.add_argument("names", nargs="*", help="parts of paths: only these")
    given = parser.parse_args()
    if not (given.repository / "examples").is_dir():
        parser.error(f"{given.repository} is not Determined's repository: it has no examples/")
    counts: Counter[str] = Counter()
    for case in CASES:
        if given.names and not any(name in case.file for name in given.names):
            continue
        with tempfile.TemporaryDirectory(prefix="hpcdet-corpus-") as folder, _own_folders():
            outcome = try_out(case, given.repository, Path(folder))
        counts[outcome.word] += 1
        print(f"{outcome.word:24} {case.ranks} {case.file}  {outcome.text}", flush=True)
    if not given.names:
        for file, why in NOT_APPLICABLE.items():
            print(f"{'not applicable':24} - {file}  needs {why}")
        counts["not applicable"] = len(NOT_APPLICABLE)
        missing = forgotten(given.repository)
        counts["forgotten"] = len(missing)
        print(*(f"{'forgotten':24} - {one}" for one in missing), sep="\n")
    print("\n" + "\n".join(f"{count:4} {word}" for word, count in sorted(counts.items())))
    return int(bool(counts["FAILED"] or counts["DIFFERS"] or counts["forgotten"]))


def forgotten(repository: Path) -> list[str]:
    """Scripts of the repository that neither table has: those that say ``__main__``."""
    known = {case.file for case in CASES} | NOT_APPLICABLE.keys()
    found = [
        path.relative_to(repository).as_posix()
        for top in ("examples", FIXTURES)
        for path in sorted((repository / top).rglob("*.py"))
        if "__main__" in path.read_text()
    ]
    return [one for one in found if one not in known]


def try_out(case: Case, repository: Path, folder: Path) -> Outcome:
    """Run one code undisturbed, and again with a kill."""
    whole = prepare(case, repository, folder / "1")
    verdict, log = finish(whole, case)
    if case.instead:
        seen = case.instead in log
        return Outcome("run", f"fails as it is to: {case.instead}") if seen else _failed(log)
    if verdict is None or verdict.verdict != "done":
        if any(one in log for one in REFUSED):
            return Outcome("refused by name", _last(log))
        return _failed(log)
    saves, wanted = _step(whole) > 0, len(_reports(whole))
    if not saves and wanted < 2:
        return Outcome("run", "it neither saves nor reports")
    behind = _saved if saves else functools.partial(_reported, wanted)
    for number in range(_TRIES):
        killed = prepare(case, repository, folder / f"killed-{number}")
        at = _kill_once(killed, case, behind)
        if at is not None:
            break
    else:
        return Outcome("run", "it ended before it could be killed")
    verdict, log = finish(killed, case)
    if verdict is None or verdict.verdict != "done":
        return _failed(log)
    if not saves:
        equal = _reports(whole) == _reports(killed)
        word = "reports equal" if equal else "DIFFERS"
        return Outcome(word, f"killed behind {at} reports of {wanted}; it saves nothing")
    if _digest(whole) == _digest(killed):
        return Outcome("killed and equal", f"from {at} of {_step(whole)} batches")
    if case.never:
        return Outcome("killed and gone on", f"from {at}; {case.never}")
    return Outcome("DIFFERS", f"from {at} of {_step(whole)}: {_digest(whole)} {_digest(killed)}")


def prepare(case: Case, repository: Path, root: Path) -> TrialPaths:
    """An experiment's folder with the code as it is."""
    source = (repository / case.file).parent
    paths = ExperimentPaths(root)
    paths.root.mkdir(parents=True)
    shutil.copytree(source, paths.code)  # what links name is copied
    asked = yaml.safe_load((source / case.config).read_text()) if case.config else {}
    asked.pop("environment", None)
    asked.pop("bind_mounts", None)
    if case.arguments is not None or "entrypoint" not in asked:
        asked["entrypoint"] = case.entrypoint
    asked.setdefault("searcher", {"name": "single", "metric": "x"})
    asked["resources"] = {"slots_per_trial": case.ranks, "cpus_per_slot": 1}
    asked["checkpoint_every_s"] = 1
    asked["max_restarts"] = 0
    asked["hyperparameters"] = dict(case.hparams)
    file = root / "asked.yaml"
    file.write_text(yaml.safe_dump({"name": "corpus", **asked}))
    paths.config.write_bytes(configs.dump(config.load(file).resolved()))
    trial = paths.trial(1)
    Trial(1, dict(case.hparams), 7).write_once(trial.record)
    return trial


@contextlib.contextmanager
def start(trial: TrialPaths, case: Case) -> Iterator[tuple[AttemptPaths, list[Any]]]:
    """The ranks of the next attempt; killed at the end of the block, if they still live."""
    attempt = trial.attempt(max((one.number for one in trial.attempts()), default=0) + 1)
    Claim("0001-0000.0", "here").write_once(attempt.claim)
    rank = [sys.executable, "-m", "hpcdet.attempt", str(trial.root.parent.parent), "1"]
    stubs = [] if importlib.util.find_spec("torchvision") else [str(STUBS)]
    shell = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "HPCDET_"))
    } | {
        "PATH": shell,
        "PYTHONPATH": os.pathsep.join(stubs),
        "WORLD_SIZE": str(case.ranks),
        "LOCAL_WORLD_SIZE": str(case.ranks),
        "NODE_RANK": "0",
        "OMP_NUM_THREADS": "1",
        "DET_TEST_EXTERNAL_EXP_ID": "corpus",
        "STUB_SIZE": str(case.images),
    }
    processes = [
        subprocess.Popen(
            [*rank, str(attempt.number)],
            env=env | {"RANK": str(number), "LOCAL_RANK": str(number)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        for number in range(case.ranks)
    ]
    try:
        yield attempt, processes
    finally:
        for one in processes:
            _kill(one)
            one.wait()


def _kill(process: Any) -> None:
    """A rank with all that it has started, as a scheduler does."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def finish(trial: TrialPaths, case: Case) -> tuple[Verdict | None, str]:
    """Attempt after attempt until there is a verdict that ends the trial; and the log."""
    log = ""
    for _ in range(4):
        with start(trial, case) as (attempt, processes):
            end = time.monotonic() + PATIENCE_S
            while time.monotonic() < end and any(one.poll() is None for one in processes):
                time.sleep(0.05)
        log = "\n".join(one.read_text(errors="replace") for one in sorted(attempt.logs.glob("*")))
        verdict = Verdict.read(attempt.verdict)
        if verdict is None or verdict.verdict != "resume":
            return verdict, log + (verdict.error or "" if verdict else "")
    return None, log


def _kill_once(
    trial: TrialPaths, case: Case, behind: Callable[[TrialPaths], int | None]
) -> int | None:
    """SIGKILL for the last rank behind what is told; None where the code ended before."""
    with start(trial, case) as (attempt, processes):
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and all(one.poll() is None for one in processes):
            if (at := behind(trial)) is not None:
                _kill(processes[-1])
                for one in processes:
                    one.wait()
                return at if Verdict.read(attempt.verdict) is None else None
            time.sleep(0.002)
    return None


def _saved(trial: TrialPaths) -> int | None:
    """The step of a checkpoint above 0, once there is one."""
    return _step(trial) or None


def _reported(wanted: int, trial: TrialPaths) -> int | None:
    """How many reports there are, once there is one and not all of them."""
    found = len(_reports(trial))
    return found if 0 < found < wanted else None


def _step(trial: TrialPaths) -> int:
    return max((one.step for one in checkpoint.committed(trial.checkpoints)), default=0)


def _reports(trial: TrialPaths) -> dict[tuple[str, int], Any]:
    """The code's own metrics by group and step: the last report of each counts."""
    found: dict[tuple[str, int], Any] = {}
    for attempt in trial.attempts():
        for line in journal.read(attempt.journal) if attempt.journal.exists() else ():
            if line["kind"] == "metrics" and line["group"] not in _MEASURED:
                found[line["group"], line["step"]] = line["metrics"]
    return found


def _digest(trial: TrialPaths) -> str:
    """Of the last checkpoint, and of the validations."""
    newest = checkpoint.committed(trial.checkpoints)[-1]
    seen = _reports(trial)
    validations = {at: seen[at] for at in sorted(seen) if at[0] == "validation"}
    state = checkpoint.content_digest(trial.checkpoints / newest.name)
    return f"{state[:12]}/{hashlib.sha256(repr(validations).encode()).hexdigest()[:4]}"


def _failed(log: str) -> Outcome:
    return Outcome("FAILED", _last(log))


def _last(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip() and "hint:" not in line]
    return " | ".join(lines[-2:])[-300:]


@contextlib.contextmanager
def _own_folders() -> Iterator[None]:
    """What the codes write into fixed folders goes again, unless it was there before."""
    fixed = [Path("/tmp/data"), Path("/tmp/inference_out"), Path("/tmp/determined-cp")]
    new = [one for one in fixed if not one.exists()]
    try:
        yield
    finally:
        for one in new:
            shutil.rmtree(one, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
