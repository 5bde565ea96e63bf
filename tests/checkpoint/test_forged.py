"""Forged checkpoints, whose digests are right, are loaded as what they were, or refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcdet import checkpoint
from hpcdet.checkpoint.read import load
from hpcdet.errors import IntegrityError, UsageError
from hpcdet.store.trials import hard_links
from tests import RECORDED, TOP
from tests.dose import FORGERIES
from tests.dose import FORGERIES_SEED as SEED
from tests.forging import Forgery

PARTS = RECORDED / "checkpoints" / "schema-2" / "00000003.g1"
NAME = "00000001.g1"
FILE = "rank-00000-of-00001.h5"


def state() -> dict[str, Any]:
    return {
        "model": {"w": torch.arange(600.0).reshape(20, 30), "v": torch.ones(20, 30)},
        "half": torch.ones(3).bfloat16(),
        "empty": torch.zeros(0, 4),
        "note": b"xyz" * 50,
        "table": np.arange(9, dtype="<i8"),
        "scalar": np.float32(2),
        "list": [1, (2.5, float("nan")), None, "text"],
    }


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    checkpoint.save(tmp_path / NAME, state(), {"rank": 0, "r": torch.arange(16)})
    return tmp_path / NAME


@pytest.mark.parametrize("kind", ["whole", "parts"])
def test_a_forgery_is_loaded_equal_or_refused(sound: Path, tmp_path: Path, kind: str) -> None:
    """`make fuzz` deals 10,000. The control, taken apart and put together, is accepted."""
    base = sound
    if kind == "parts":
        base = tmp_path / "parts" / NAME
        shutil.copytree(PARTS, base)
    count, where = str(FORGERIES // 2), TOP
    argv = [sys.executable, "-m", "tests.forging", str(base), count, str(SEED)]
    limit = 120 + FORGERIES
    done = subprocess.run(
        argv, cwd=where, capture_output=True, text=True, timeout=limit, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    tally = json.loads(done.stdout)
    assert tally["problems"] == []
    assert tally["refused"] > FORGERIES // 5 and tally["nothing"] < FORGERIES // 10


def rows(forgery: Forgery) -> dict[str, list[Any]]:
    return {row[0]: row for row in forgery.tables[FILE]["leaves"]}


def overlapping(forgery: Forgery) -> None:
    found = rows(forgery)
    found["shared/model/w"][4] = found["shared/model/v"][4]


def before_the_file(forgery: Forgery) -> None:
    rows(forgery)["shared/model/w"][4] = -2400


def behind_the_file(forgery: Forgery) -> None:
    rows(forgery)["shared/model/w"][4] = 1 << 40


def of_a_tebibyte(forgery: Forgery) -> None:
    rows(forgery)["shared/model/w"][3:6] = [[1 << 38], 0, 1 << 40]


def many_values_without_bytes(forgery: Forgery) -> None:
    rows(forgery)["shared/table"][1:6] = ["array", "|S0", [1 << 33], 0, 0]


def negative_axis(forgery: Forgery) -> None:
    rows(forgery)["shared/model/w"][3] = [-1]


def other_names(forgery: Forgery) -> None:
    found = rows(forgery)
    found["shared/model/w"][0], found["shared/model/v"][0] = "shared/model/v", "shared/model/w"


def part_of_what_is_not_there(forgery: Forgery) -> None:
    row = rows(forgery)["shared/model/w"]
    row.insert(6, {"shape": [1 << 38, 30], "start": 0})


def short_row(forgery: Forgery) -> None:
    del rows(forgery)["shared/model/w"][5:]


def no_leaves(forgery: Forgery) -> None:
    del forgery.tables[FILE]["leaves"]


def deep_table(forgery: Forgery) -> None:
    forgery.tables[FILE] = b"[" * 100_000


def table_of_an_exbibyte(forgery: Forgery) -> None:
    forgery.manifest["shards"][0] |= {"table": [0, 1 << 60], "bytes": 1 << 61, "forged": True}


def file_elsewhere(forgery: Forgery) -> None:
    forgery.manifest["shards"][0] |= {"file": "../elsewhere.h5", "forged": True}


def name_with_a_nul(forgery: Forgery) -> None:
    forgery.manifest["shards"][0] |= {"file": "rank\0.h5", "forged": True}


def no_shards(forgery: Forgery) -> None:
    del forgery.manifest["shards"]


def shards_of_text(forgery: Forgery) -> None:
    forgery.manifest["shards"] = "text"


def deep_meta(forgery: Forgery) -> None:
    value: Any = 1
    for _ in range(300):
        value = [value]
    forgery.manifest["meta"]["x"] = value


def meta_of_another_type(forgery: Forgery) -> None:
    forgery.manifest["meta"]["save_s"] = "soon"


HARMS = [
    *(overlapping, before_the_file, behind_the_file, of_a_tebibyte, many_values_without_bytes),
    *(negative_axis, other_names, part_of_what_is_not_there, short_row, no_leaves, deep_table),
    *(table_of_an_exbibyte, file_elsewhere, name_with_a_nul, no_shards, shards_of_text),
    *(deep_meta, meta_of_another_type),
]


@pytest.mark.parametrize("harm", HARMS)
def test_restore_sets_a_forgery_aside_and_takes_the_one_before(
    sound: Path, harm: Callable[[Forgery], None]
) -> None:
    trial = sound.parent
    forged = trial / "00000002.g1"
    forgery = Forgery.of(sound)
    harm(forgery)
    forgery.write(forged)
    for act in (checkpoint.load, checkpoint.verify):
        with pytest.raises(IntegrityError):
            act(forged)
    restored = checkpoint.restore(trial)
    assert restored is not None and restored.folder == sound
    assert (trial / ".bad-00000002.g1").exists()


def test_the_control_is_accepted(sound: Path) -> None:
    made = sound.parent / "00000002.g1"
    Forgery.of(sound).write(made)
    assert checkpoint.verify(made).digest == checkpoint.verify(sound).digest
    load.look(made)


def test_no_name_leads_out_of_the_folder(sound: Path) -> None:
    """The login tower links files by the names in a manifest, and reads no table."""
    forgery = Forgery.of(sound)
    file_elsewhere(forgery)
    forged = sound.parent / "00000002.g1"
    forgery.write(forged)
    shutil.copy(sound / FILE, sound.parent / "elsewhere.h5")
    with pytest.raises((IntegrityError, UsageError), match="outside of its folder"):
        hard_links.link(forged, sound.parent / "copy" / "00000002.g1")
    assert not (sound.parent / "copy").exists()


@pytest.mark.parametrize("harm", [overlapping, deep_table, file_elsewhere])
def test_the_command_says_what_is_wrong(sound: Path, harm: Callable[[Forgery], None]) -> None:
    forgery = Forgery.of(sound)
    harm(forgery)
    forged = sound.parent / "00000002.g1"
    forgery.write(forged)
    for verb, more in (("verify", []), ("export", [str(sound.parent / "out")])):
        done = subprocess.run(
            [sys.executable, "-m", "hpcdet.checkpoint", verb, str(forged), *more],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 9 and "Traceback" not in done.stderr
        said = json.loads(done.stdout.splitlines()[-1])
        assert "error" in said or said["failed"]["hint"]
