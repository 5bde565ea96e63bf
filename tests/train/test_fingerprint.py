"""The environment of an attempt: what is part of it, where it is kept, what counts as a change."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcdet.process.installed_packages import installed
from hpcdet.store.config import numerics
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.train.attempt import fingerprint


@pytest.fixture
def paths(tmp_path: Path) -> ExperimentPaths:
    (tmp_path / "code").mkdir()
    (tmp_path / "provenance.json").write_text('{"code": {}}')
    return ExperimentPaths(tmp_path)


def test_variables_are_those_that_change_bits() -> None:
    given = {
        "MKL_CBWR": "AVX2", "OMP_NUM_THREADS": "3", "OPENBLAS_CORETYPE": "Haswell",
        "CUBLAS_WORKSPACE_CONFIG": ":16:8", "OMP_PLACES": "{0}", "GOMP_CPU_AFFINITY": "0-3",
        "HOME": "/root", "MY_TOKEN": "hunter2",
    }  # fmt: skip
    found = numerics.variables(given)
    assert list(found) == [
        "CUBLAS_WORKSPACE_CONFIG", "MKL_CBWR", "OMP_NUM_THREADS", "OPENBLAS_CORETYPE",
    ]  # fmt: skip
    assert found["OMP_NUM_THREADS"] == "3"


def test_the_blas_says_its_version_and_threads_itself() -> None:
    code = "import numpy; from hpcdet.store.config import numerics; print(numerics.loaded_blas())"
    said = {
        threads: subprocess.run(
            [sys.executable, "-c", code],
            env={"OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    }
    blas: Any = np.show_config("dicts")
    version = blas["Build Dependencies"]["blas"]["version"]
    assert version in said["1"] and said["1"].endswith(": 1}\n")
    assert said["2"] == said["1"].replace(": 1}", ": 2}")


def test_nothing_is_loaded_to_name_the_installed_blas() -> None:
    code = (
        "import sys; from hpcdet.store.config import numerics; print(numerics.installed_blas());"
        "assert 'numpy' not in sys.modules; assert not numerics.loaded_blas()"
    )
    ran = [sys.executable, "-c", code]
    assert "openblas" in subprocess.run(ran, capture_output=True, text=True, check=True).stdout


def test_what_changes_bits_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint.take(None, 1, 1, installed(), {})
    assert before["processor"] == numerics.processor()
    assert before["capability"] in torch.__config__.show()
    assert "OpenBLAS" in before["blas"]
    assert all(one in torch.__config__.show() for one in before["torch_blas"].split("; "))
    monkeypatch.setattr(numerics, "processor", lambda: "another")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        changed = fingerprint.differences(before, fingerprint.take(None, 1, 1, installed(), {}))
    finally:
        torch.use_deterministic_algorithms(False)
    assert changed == [
        "$MKL_CBWR: - -> COMPATIBLE",
        "cudnn_benchmark: false -> true",
        "deterministic: false -> warn",
        f"processor: {before['processor']} -> another",
    ]


def test_precision_that_torch_does_not_tell_is_no_error() -> None:
    code = (
        "import torch; torch.backends.fp32_precision = 'tf32';"
        "from hpcdet.train.attempt import fingerprint as f;"
        "print(f.take(None, 1, 1, {}, {})['matmul_precision'])"
    )
    ran = [sys.executable, "-c", code]
    assert subprocess.run(ran, capture_output=True, text=True).stdout == "by backend\n"


def test_a_checkpoint_of_an_older_version_is_compared_by_what_it_has() -> None:
    now = fingerprint.take(None, 1, 1, installed(), {})
    old = {name: now[name] for name in ("hpcdet", "python", "torch", "packages", "threads")}
    old |= {name: now[name] for name in ("machine", "numpy", "cuda", "world")}
    assert fingerprint.differences(old, now) == []
    assert fingerprint.differences({**old, "threads": "7"}, now) == ["threads: 7 -> 1"]


def test_the_whole_is_kept_once_for_all_attempts_that_share_it(paths: ExperimentPaths) -> None:
    parts = fingerprint.take(paths, 1, 1, installed(), {})
    name = fingerprint.keep(paths, parts, installed())
    [file] = paths.fingerprints.iterdir()
    assert file == paths.fingerprint(name)
    inode = file.stat().st_ino
    assert fingerprint.keep(paths, parts, installed()) == name
    assert fingerprint.keep(paths, {**parts, "threads": "2"}, installed()) != name
    assert len(list(paths.fingerprints.iterdir())) == 2 and file.stat().st_ino == inode
    whole = json.loads(file.read_text())
    assert whole["parts"] == parts
    assert whole["packages"]["torch"] == metadata.version("torch")
    assert whole["threads"]["cores"] == numerics.cores()
    assert whole["threads"]["interop"] == torch.get_num_interop_threads()
    assert whole["threads"][parts["blas"]] >= 1


def test_a_record_that_cannot_be_written_keeps_no_training_from_its_work(
    paths: ExperimentPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    paths.fingerprints.write_text("in the way")
    fingerprint.keep(paths, fingerprint.take(paths, 1, 1, installed(), {}), installed())
    assert "the environment is not recorded" in capsys.readouterr().err
