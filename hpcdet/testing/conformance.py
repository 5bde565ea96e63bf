"""The same verbs on any scheduler: what they print must be the same, and the bits of the trials.

A test of a backend tells two stories at its site and at ``local``, and compares::

    told = Conformance("my-site", tmp_path / "mine").tell()
    assert told == Conformance("local", tmp_path / "local").tell()

Ids, paths, hosts and times are left out of what is compared, and so are choices of the scheduler:
which jobs there were, and which of two trials was first (a checkpoint is kept as the best of those
that have been told so far).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from hpcdet import shipped

TRIALS = 6
_PATIENCE_S = 300
_LOOK_S = 1.0
_OWN = {
    *("id", "experiment", "site", "site_reason", "job", "jobs", "allocations"),
    *("provenance", "fingerprints"),
    *("spent", "kept", "host", "nodes", "worker", "workers", "copies"),
    *("waits", "why", "health_why", "next"),
}
"""Keys whose values are a run's own; those that end in a unit are, too."""
_UNITS = ("_s", "_hours", "bytes")
_OWN_TEXT = re.compile(r"\d{4}-\d\d-\d\dT\S+|/.*")
"""Times and paths."""


class Conformance:
    """One site under test.

    Args:
        site: its name, or the path of its file.
        folder: a new folder, which the site's nodes see.
        environ: further variables of the commands.
    """

    def __init__(self, site: str, folder: Path, environ: Mapping[str, str] | None = None) -> None:
        self.site = site
        self.root = folder / "root"
        self.model = folder / "model"
        self._environ = {**os.environ, **(environ or {}), "HPCDET_ROOT": str(self.root)}
        self.model.mkdir(parents=True, mode=0o700)
        source = shipped.folder("templates") / "init"
        shutil.copyfile(source / "model_def.py", self.model / "model_def.py")
        self._example = yaml.safe_load((source / "random.yaml").read_text())

    def tell(self) -> dict[str, Any]:
        """Tell both stories; returns what the verbs printed, to be compared with another site's.

        Raises:
            RuntimeError: a verb ended as it must not, or nothing came of it in time.
        """
        return {"search": self.search(), "control": self.control()}

    def search(self) -> dict[str, Any]:
        """A search of six trials from its submission to its end."""
        name = self._submit(trials=TRIALS, batches=60, words=("--wait",))
        verbs = ("show", "status", "best", "ckpt ls", "metrics")
        told: dict[str, Any] = {verb: compared(self._raw(verb, name)) for verb in verbs}
        told["digests"] = [(row["trial"], row["digest"]) for row in self._raw("ckpt ls", name)]
        return told

    def control(self) -> dict[str, Any]:
        """One long trial that is held, released, paused, resumed and canceled."""
        name = self._submit(trials=1, batches=10_000_000, words=("--hold",))
        told: dict[str, Any] = {"held": self._state(name)}
        self._run("release", name)
        self._until(name, "it trains", lambda row: (row["trials"][0]["steps"] or 0) > 0)
        told["running"] = self._state(name)
        [attempt] = self._raw("show", name)[0]["attempts"]
        [by_job] = self._raw("show", str(attempt["job"]))
        told["found by its job"] = by_job["id"] == name
        self._run("pause", name, "--wait")
        told["paused"] = self._state(name)
        self._run("resume", name)
        self._until(name, "it trains again", lambda row: len(row["attempts"]) == 2)
        self._run("cancel", name, "--wait")
        told["canceled"] = self._state(name)
        told["attempts"] = [
            each["reason"] for each in self._raw("show", f"{name}/1")[0]["attempts"]
        ]
        return told

    def _submit(self, trials: int, batches: int, words: tuple[str, ...]) -> str:
        config = {**self._example, "reproducibility": {"experiment_seed": 7}}
        config["searcher"] = {
            **config["searcher"],
            "max_trials": trials,
            "max_length": {"batches": batches},
        }
        config["min_validation_period"] = {"batches": 30}
        config["resources"] = {"slots_per_trial": 1, "walltime_s": 3600}
        (self.model / "experiment.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        path = str(self.model / "experiment.yaml")
        [made] = self._raw("submit", path, "--site", self.site, *words)
        return str(made["id"])

    def _state(self, name: str) -> Any:
        [row] = self._raw("status", name)
        return row["state"], [trial["state"] for trial in row["trials"]]

    def _until(self, name: str, what: str, holds: Callable[[dict[str, Any]], bool]) -> None:
        limit = time.monotonic() + _PATIENCE_S
        while not holds(row := self._raw("show", name)[0]):
            if time.monotonic() > limit:
                raise RuntimeError(f"{name} at {self.site}: not that {what}: {row['why']}")
            time.sleep(_LOOK_S)

    def _raw(self, verb: str, *words: str) -> list[dict[str, Any]]:
        said = self._run(verb, *words, "-o", "json")
        items: list[dict[str, Any]] = json.loads(said)["items"]
        return items

    def _run(self, verb: str, *words: str) -> str:
        argv = [sys.executable, "-m", "hpcdet", *verb.split(), *words]
        done = subprocess.run(
            argv, env=self._environ, capture_output=True, text=True, cwd=self.model, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv[2:])}: exit {done.returncode}: {done.stderr}")
        return done.stdout


def compared(value: Any) -> Any:
    """The part of what a verb printed that is the same on every site."""
    if isinstance(value, dict):
        return {
            name: compared(each)
            for name, each in value.items()
            if name not in _OWN and not name.endswith(_UNITS)
        }
    if isinstance(value, list):
        return [compared(each) for each in value]
    return "..." if isinstance(value, str) and _OWN_TEXT.fullmatch(value) else value
