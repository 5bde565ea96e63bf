"""``make leslie``: a run that nobody could repeat, explained without training, then repeated.

    python scripts/leslie.py [--batches 30] [--work .leslie]

Exit code 0: each cause was named and nothing else, and the last run has the bits of the first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np

TOP = Path(__file__).resolve().parent.parent
EXAMPLE = TOP / "examples" / "leslie"
SCALING = {
    "1.0": "return (features - features.mean(0)) / (features.std(0) + 1e-6)",
    "1.1": "return (features - features.mean(0)) / (features.max(0) - features.min(0))",
}
GIVEN = ("hyperparameters.global_batch_size=4096", "hyperparameters.learning_rate=0.2")
NOW = ("resources.cpus_per_slot=2",)
CAUSES = {
    "data": ["train-1.npz"],
    "hyperparameters": ["hyperparameters.global_batch_size", "hyperparameters.learning_rate"],
    "code": [],
    "libraries": ["leslie-scaling"],
    "seeds": ["reproducibility.experiment_seed"],
    "threads": ["resources.cpus_per_slot"],
    "determinism": [],
    "hardware": [],
}
"""What has to be named, and nothing else."""


def main() -> int:
    """Play the story; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--work", type=Path, default=TOP / ".leslie")
    asked = parser.parse_args()
    work: Path = asked.work.resolve()
    shutil.rmtree(work, ignore_errors=True)
    config = prepared(work, asked.samples, asked.batches)
    python = environment(work)

    install(python, work, "1.0")
    say("Leslie trains")
    sets = [word for one in GIVEN for word in ("--set", one)]
    ran = hpcdet(
        work,
        python,
        "submit",
        str(config),
        "--site",
        "local",
        "--no-test",
        *sets,
        "--wait",
        "-o",
        "id",
    )
    if ran.returncode != 0:
        return ran.returncode
    run = ran.stdout.strip()

    say("half a year passes: samples are added, a library is upgraded, Dave has more cores")
    write(work / "data" / "train-1.npz", asked.samples // 2, seed=3, wrong=0.5)
    install(python, work, "1.1")
    now = [word for one in NOW for word in ("--set", one)]

    say("what has changed since, without training")
    hpcdet(work, python, "reproduce", run, *now, shown=True)
    asked_again = hpcdet(work, python, "reproduce", run, *now, "-o", "json")
    rows = json.loads(asked_again.stdout)["items"]
    named = {row["factor"]: row["names"] for row in rows}
    if named != CAUSES:
        print(f"named: {named}\nwanted: {CAUSES}", file=sys.stderr)
        return 1

    say("one cause after the other is put back")
    return hpcdet(work, python, "reproduce", run, *now, "--ablate", shown=True).returncode


def prepared(work: Path, samples: int, batches: int) -> Path:
    """Write Leslie's data and copy her script; returns its config."""
    (work / "model").mkdir(parents=True)
    (work / "data").mkdir()
    shutil.copy(EXAMPLE / "model_def.py", work / "model")
    text = (EXAMPLE / "experiment.yaml").read_text()
    text = text.replace("paths: data", f"paths: {json.dumps(str(work / 'data'))}")
    text = text.replace("{batches: 30}", f"{{batches: {batches}}}")
    config = work / "model" / "experiment.yaml"
    config.write_text(text)
    write(work / "data" / "train-0.npz", samples, seed=1)
    write(work / "data" / "held-0.npz", 4000, seed=2)
    return config


def write(path: Path, count: int, seed: int, wrong: float = 0.1) -> None:
    """Write samples of ten classes; the features of each are noise of its own size about a mean.

    Args:
        wrong: share of labels that are drawn anew.
    """
    means = np.random.default_rng(0).normal(0, 0.16, (10, 256))
    sizes = np.random.default_rng(0).lognormal(0, 1, 256)
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 10, count)
    features = (means[labels] + draw.normal(0, 1, (count, 256))) * sizes
    again = draw.random(count) < wrong
    labels = np.where(again, draw.integers(0, 10, count), labels)
    np.savez(path, features=features.astype(np.float16), labels=labels.astype(np.uint8))


def environment(work: Path) -> Path:
    """Make an environment that has what this one has, and room for a library; returns python."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(work / "venv")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = work / "venv" / "lib" / version / "site-packages"
    lines = [f"import site; site.addsitedir({folder!r})" for folder in site.getsitepackages()]
    (packages / "outer.pth").write_text("\n".join(lines) + "\n")
    for number in SCALING:
        wheel(work / "wheels", number)
    return work / "venv" / "bin" / "python"


def wheel(folder: Path, version: str) -> None:
    """Write a wheel of the library: a module, and who it is."""
    folder.mkdir(exist_ok=True)
    about = f"leslie_scaling-{version}.dist-info"
    files = {
        "leslie_scaling.py": f"def scaled(features):\n    {SCALING[version]}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: leslie-scaling\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{about}/RECORD"
    files[record] = "".join(f"{name},,\n" for name in (*files, record))
    with zipfile.ZipFile(folder / f"leslie_scaling-{version}-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def install(python: Path, work: Path, version: str) -> None:
    """Install a version of the library into the environment."""
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    argv = [*pip, "--disable-pip-version-check", f"leslie-scaling=={version}"]
    subprocess.run(argv, env=variables(work), check=True)


def variables(work: Path) -> dict[str, str]:
    """The environment of every command: its experiments, and a pip that finds the wheels."""
    own = {
        "HPCDET_ROOT": str(work / "experiments"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(work / "wheels"),
    }
    return {**os.environ, **own}


def hpcdet(
    work: Path, python: Path, *words: str, shown: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a verb in that environment; its tables are shown, or returned."""
    where = None if shown else subprocess.PIPE
    argv = [str(python), "-m", "hpcdet", *words]
    return subprocess.run(argv, env=variables(work), stdout=where, text=True, check=False)


def say(what: str) -> None:
    """Print a heading."""
    print(f"\n== {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
