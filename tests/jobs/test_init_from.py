"""A job script that somebody has becomes a config, and nothing of it is dropped in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcdet.errors import ConfigError
from hpcdet.schedulers.slurm.script.job_script_import import translate
from hpcdet.store.fs import yaml12
from tests.commands import Cli

SCRIPT = """\
#!/bin/bash -l
#SBATCH --job-name=resnet
#SBATCH -N 2 --ntasks-per-node=4
#SBATCH --gres=gpu:a100:4   # whole nodes
#SBATCH -c 8
#SBATCH --mem=240G
#SBATCH -t 1-12:00:00
#SBATCH -p gpu -A proj42
#SBATCH --exclude=n[07-08]
#SBATCH --output=logs/%j.out
#SBATCH --array=0-9%2
set -euo pipefail
module purge
module load cuda/12.4 \\
    nccl
source $HOME/venv/bin/activate
export OMP_NUM_THREADS=8 WANDB_MODE=offline
export DATA=$SCRATCH/imagenet
cd $SLURM_SUBMIT_DIR
echo "starting on $(hostname)"
srun -n 8 --kill-on-bad-exit=1 --label \\
    ENTRYPOINT
"""
ENTRYPOINT = 'python -u train.py --data "$DATA" --fold $SLURM_ARRAY_TASK_ID --out $RESULTS'


def test_what_a_script_asks_for_sets_up_and_runs_becomes_a_config(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "job.sbatch"
    script.write_text(SCRIPT.replace("ENTRYPOINT", ENTRYPOINT))
    folder = tmp_path / "new"
    shown = cli("init", folder, "--from", script, "-n", "--profile", "generic-slurm")
    assert "entrypoint: " in shown.out and not folder.exists()
    ran = cli("init", folder, "--from", script, "--profile", "generic-slurm")
    site, file = folder / ".hpcdet" / "sites" / "job.yaml", folder / "experiment.yaml"
    assert ran.out.split() == [str(site), str(file)]
    assert yaml12.read(file).values == {
        "name": "resnet",
        "entrypoint": ENTRYPOINT,
        "searcher": {"name": "single", "metric": "validation_loss"},
        "resources": {
            "slots_per_trial": 8,
            "nodes": 2,
            "cpus_per_slot": 8,
            "memory_per_slot": 60 * 2**30,
            "walltime_s": 36 * 3600,
            "exclude_nodes": ["n07", "n08"],
            "resource_pool": "gpu",
        },
        "slurm": {"sbatch_args": ["--gres=gpu:a100:4", "--account=proj42"]},
        "environment": {"environment_variables": {"OMP_NUM_THREADS": "8", "WANDB_MODE": "offline"}},
        "site": "job",
    }
    assert yaml12.read(site).values == {
        "extends": "generic-slurm",
        "setup": [
            "module purge",
            "module load cuda/12.4 nccl",
            "source $HOME/venv/bin/activate",
            "export DATA=$SCRATCH/imagenet",
        ],
    }
    left = [line for line in ran.err.splitlines() if "not translated" in line]
    assert [line.split(": ")[2] for line in left] == [
        "line 19", "line 20", "line 21", "line 21", "line 10", "line 11",
    ]  # fmt: skip
    assert "$RESULTS: nothing sets it" in ran.err and "a search takes its place" in ran.err
    assert all(line.removeprefix("warning: not translated: ") in file.read_text() for line in left)
    monkeypatch.chdir(folder)
    assert cli("config", "get", file, "site").out == "job\n"
    assert "module purge" in cli("site", "show", "job").out
    assert "already" in cli("init", folder, "--from", script, code=2).err
    file.unlink()
    assert "job.yaml already" in cli("init", folder, "--from", script, code=2).err
    assert not file.exists()


def of(*lines: str, directives: tuple[str, ...] = ()) -> dict[str, Any]:
    script = ["#!/bin/sh", *(f"#SBATCH {line}" for line in directives), *lines]
    return translate("\n".join(script), "x").config


@pytest.mark.parametrize(
    ("lines", "directives", "entrypoint", "slots", "cpus"),
    [
        (["python3 a.py"], [], "python3 a.py", 1, 1),
        (["mpirun -np 4 --bind-to none python a.py -n 3"], ["-n 4"], "python a.py -n 3", 4, 1),
        (
            ["srun torchrun --nnodes 1 --nproc_per_node=4 a.py --lr 1e-3"],
            ["--gpus=4", "-c16"],
            "python a.py --lr 1e-3",
            4,
            4,
        ),
        (["python -m torch.distributed.run --nproc-per-node 2 a.py"], [], "python a.py", 2, 1),
        (["accelerate launch --num_processes 2 -m pkg.a"], [], "python -m pkg.a", 2, 1),
        (["srun ./run.sh --fast"], ["--ntasks 2"], "./run.sh --fast", 2, 1),
        (["python a.py > out.txt 2>&1"], [], "python a.py > out.txt 2>&1", 1, 1),
        (["python prepare.py", "python a.py"], ["--gpus-per-task=1", "-n2"], "python a.py", 2, 1),
    ],
)
def test_starters_of_ranks_are_taken_apart(
    lines: list[str], directives: list[str], entrypoint: str, slots: int, cpus: int
) -> None:
    config = of(*lines, directives=tuple(directives))
    need = config["resources"]
    assert config["entrypoint"] == entrypoint
    assert (need["slots_per_trial"], need["cpus_per_slot"]) == (slots, cpus)


def test_memory_time_and_accelerators_in_all_their_ways() -> None:
    def need(*directives: str) -> dict[str, Any]:
        config = of("python a.py", directives=directives)
        arguments = config.get("slurm", {"sbatch_args": []})["sbatch_args"]
        return {**config["resources"], "arguments": arguments}

    assert need("--mem-per-cpu=2000", "-c 4")["memory_per_slot"] == 8000 * 2**20
    assert need("--mem-per-gpu 32G", "-G v100:2", "-N 2", "-n 2")["memory_per_slot"] == 2**35
    assert need("-G v100:2", "-N 2")["arguments"] == ["--gpus-per-node=v100:1"]
    assert need("--mem=0", "--exclusive")["arguments"] == ["--exclusive", "--mem=0"]
    assert [need(f"--time={text}")["walltime_s"] for text in ("90", "30:00", "2-0")] == [
        5400, 1800, 172800,
    ]  # fmt: skip
    for wrong, said in (("echo hi", "runs nothing"), ("python 'a.py", "quote")):
        with pytest.raises(ConfigError, match=said):
            of(wrong)
