"""``reproducibility.threads`` and ``device``: what a rank finds, before it loads anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdet.config import api as config
from hpcdet.errors import ConfigError
from hpcdet.store.config import numerics
from tests import ranks

LOOKS = """
import json, os
from model_base import DigitsTrial as Base


class DigitsTrial(Base):
    def __init__(self, context):
        super().__init__(context)
        seen = {"cuda": os.environ.get("CUDA_VISIBLE_DEVICES"), "device": str(context.device)}
        open(os.environ["SEEN"], "w").write(json.dumps(seen))
"""


def test_a_rank_has_these_threads_and_no_accelerator(tmp_path: Path) -> None:
    trial = ranks.experiment(
        tmp_path / "exp",
        until=1,
        reproducibility={"threads": 2, "device": "cpu"},
    )
    code = tmp_path / "exp" / "code"
    (code / "model_def.py").rename(code / "model_base.py")
    (code / "model_def.py").write_text(LOOKS)
    away = {**os.environ, "CUDA_VISIBLE_DEVICES": "0", "SEEN": str(tmp_path / "seen")}
    argv = [sys.executable, "-Pm", "hpcdet.attempt", str(tmp_path / "exp"), "1", "1"]
    ran = subprocess.run(argv, env=away, capture_output=True, text=True, check=False)
    log = trial.attempt(1).log(0)
    assert ran.returncode == 0, log.read_text() if log.exists() else ran.stderr
    assert json.loads((tmp_path / "seen").read_text()) == {"cuda": "", "device": "cpu"}
    [kept] = (tmp_path / "exp" / "fingerprints").iterdir()
    whole = json.loads(kept.read_text())
    assert whole["parts"]["threads"] == "2"
    assert whole["parts"]["$OMP_NUM_THREADS"] == whole["parts"]["$MKL_NUM_THREADS"] == "2"
    blas = {count for name, count in whole["threads"].items() if name not in ("cores", "interop")}
    assert blas == {2}


def test_nothing_is_imposed_unless_it_is_asked_for() -> None:
    assert numerics.imposed(None, None) == {}
    assert set(numerics.imposed(None, "cpu").values()) == {""}
    assert set(numerics.imposed(3, None).values()) == {"3"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("reproducibility.threads=0", "reproducibility.threads"),
        ("reproducibility.device=cuda", "reproducibility.device"),
        ("distributed.backend=nccl", "hides them"),
    ],
)
def test_what_cannot_be_is_refused(given: str, said: str, tmp_path: Path) -> None:
    text = "entrypoint: a:B\nsearcher: {name: single, metric: loss, max_length: 3}\n"
    (tmp_path / "c.yaml").write_text(text + "reproducibility: {device: cpu}\n")
    with pytest.raises(ConfigError, match=said):
        config.load(tmp_path / "c.yaml", [given])
