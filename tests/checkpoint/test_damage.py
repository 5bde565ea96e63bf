"""Whatever happens to a byte on disk is noticed, and the checkpoint before is used."""

from __future__ import annotations

import json
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hpcdet import checkpoint
from hpcdet.checkpoint.format import manifest as manifests
from hpcdet.checkpoint.read import reader
from hpcdet.errors import IntegrityError, Unrecoverable
from hpcdet.store.folder.layout import ExperimentPaths
from tests.trees import ranks

STATE = {"model": {"w": torch.arange(2000.0), "b": torch.ones(3).bfloat16()}, "note": b"xyz"}


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    """A trial's folder of two checkpoints, by two ranks each."""
    for step in (1, 2):
        ranks(
            2,
            lambda rank, exchange, step=step: checkpoint.save(
                tmp_path / f"{step:08d}.g1",
                {**STATE, "step": step},
                {"rank": rank},
                rank=rank,
                world=2,
                exchange=exchange,
            ),
        )
    return tmp_path


def test_any_changed_byte_is_noticed(trial: Path) -> None:
    """A bit of every third byte of the files, and of every byte of the manifest."""
    folder = trial / "00000002.g1"
    manifest = manifests.read(folder)
    dice = random.Random(3)
    for part in manifest.shards:
        path = folder / part.file
        whole = path.read_bytes()
        with path.open("r+b") as file:
            for offset in range(dice.randrange(3), len(whole), 3):
                file.seek(offset)
                file.write(bytes([whole[offset] ^ (1 << dice.randrange(8))]))
                file.flush()
                with pytest.raises(IntegrityError) as caught:
                    list(reader.read(folder, [part]))
                assert part.file in caught.value.where
                file.seek(offset)
                file.write(whole[offset : offset + 1])
    path = folder / "MANIFEST.json"
    text = path.read_bytes()
    for offset in range(len(text)):
        changed = bytearray(text)
        changed[offset] ^= 1 << dice.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(IntegrityError):
            manifests.read(folder)
    path.write_bytes(text)
    assert checkpoint.verify(folder).root == manifest.root


def test_the_damaged_dataset_is_named(trial: Path) -> None:
    folder = trial / "00000002.g1"
    needle = struct.pack("<2f", 1000, 1001)
    [path] = [p for p in folder.glob("*.h5") if needle in p.read_bytes()]
    path.write_bytes(path.read_bytes().replace(needle, bytes(8)))
    with pytest.raises(IntegrityError, match="dataset shared/model/w is not") as caught:
        checkpoint.load(folder)
    assert caught.value.where == str(path)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def lengthened(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def missing(path: Path) -> None:
    path.unlink()


def page_zeroed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0:4096] = bytes(len(data[0:4096]))
    path.write_bytes(data)


def of_another_checkpoint(path: Path) -> None:
    shutil.copy(path.parent.parent / "00000001.g1" / path.name, path)


HARMS = [truncated, emptied, lengthened, missing, page_zeroed, of_another_checkpoint]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("file", ["rank-00000-of-00002.h5", "MANIFEST.json"])
def test_restore_passes_over_a_damaged_checkpoint(trial: Path, harm, file: str) -> None:  # type: ignore[no-untyped-def]
    harm(trial / "00000002.g1" / file)
    restored = ranks(2, lambda rank, exchange: checkpoint.restore(trial, rank, 2, exchange))
    for rank, loaded in enumerate(restored):
        assert loaded is not None
        assert (loaded.shared["step"], loaded.private) == (1, {"rank": rank})
    aside = trial / ".bad-00000002.g1"
    if (file, harm) == ("MANIFEST.json", missing):  # then it was never a checkpoint
        assert not aside.exists()
    else:
        assert (aside / "rank-00001-of-00002.h5").exists()


def test_damage_that_one_rank_alone_sees_is_told_to_all(
    trial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad network path of one node: the others must not go on from the newer one."""
    from hpcdet.checkpoint.read import load as loading

    real = loading.load

    def load(folder: Path, rank: int, world: int, **how: Any) -> checkpoint.LoadedState:
        if rank == 1 and folder.name == "00000002.g1":
            raise OSError(5, "Input/output error")
        return real(folder, rank, world, **how)

    monkeypatch.setattr(loading, "load", load)
    restored = ranks(2, lambda rank, exchange: checkpoint.restore(trial, rank, 2, exchange))
    assert [loaded.shared["step"] for loaded in restored if loaded] == [1, 1]
    # it is not known to be damaged: once the network is back it counts again
    assert (trial / "00000002.g1" / "MANIFEST.json").exists()


def test_a_folder_that_cannot_be_changed_is_no_obstacle(
    trial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(30, "Read-only file system")

    truncated(trial / "00000002.g1" / "rank-00001-of-00002.h5")
    monkeypatch.setattr(Path, "rename", refuse)
    restored = ranks(2, lambda rank, exchange: checkpoint.restore(trial, rank, 2, exchange))
    assert [loaded.shared["step"] for loaded in restored if loaded] == [1, 1]


def test_nothing_usable_is_an_error_and_nothing_at_all_is_not(trial: Path) -> None:
    assert checkpoint.restore(trial / "no such folder") is None
    for name in ("00000001.g1", "00000002.g1"):
        truncated(trial / name / "rank-00001-of-00002.h5")
    for _ in range(2):  # by the attempt that sets them aside, and by every one after it
        with pytest.raises(Unrecoverable, match="none of its checkpoints can be used"):
            checkpoint.restore(trial)
    bad = sorted(trial.iterdir())
    assert [path.name for path in bad] == [".bad-00000001.g1", ".bad-00000002.g1"]
    # scratch that is purged leaves halves behind: no reason not to begin
    assert checkpoint.restore(trial, kept=trial / "kept") is None
    for path in bad:
        path.rename(trial / path.name.removeprefix("."))
    assert checkpoint.restore(trial) is None


def of_the_future(folder: Path) -> None:
    """What a newer hpcdet may write: another version, and a root of its own making."""
    path = folder / "MANIFEST.json"
    made = json.loads(path.read_text()) | {"schema": 3, "writer": "hpcdet 9.1", "root": "of v3"}
    path.write_text(json.dumps(made))


def test_a_checkpoint_of_a_newer_hpcdet_is_refused_and_left_alone(trial: Path) -> None:
    folder = trial / "00000002.g1"
    of_the_future(folder)

    def refused(rank: int, exchange: checkpoint.Exchange) -> str:
        with pytest.raises(checkpoint.NewerFormat, match=r"newer hpcdet \(hpcdet 9.1, format 3"):
            checkpoint.restore(trial, rank, 2, exchange)
        return "refused"

    assert ranks(2, refused) == ["refused"] * 2
    with pytest.raises(checkpoint.NewerFormat, match="made by a newer hpcdet"):
        next(checkpoint.newest(trial))
    done = subprocess.run(
        [sys.executable, "-m", "hpcdet.checkpoint", "verify", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 9 and json.loads(done.stdout)["state"] == "newer"
    experiment = ExperimentPaths(trial / "EXP")
    checkpoints = experiment.trial(1).checkpoints
    for name in ("00000001.g1", "00000002.g1"):
        shutil.copytree(trial / name, checkpoints / name)
    none = checkpoint.RetentionRules(0, 0, 0)
    assert checkpoint.sweep(experiment, none, trial=1, attempt=9, resume=0) == ["00000001.g1"]
    assert [path.name for path in checkpoints.iterdir()] == ["00000002.g1"]
    assert len(list((checkpoints / "00000002.g1").iterdir())) == 3


def test_a_damaged_version_is_damage(trial: Path) -> None:
    path = trial / "00000002.g1" / "MANIFEST.json"
    path.write_text(path.read_text().replace('"schema":1', '"schema":3'))
    loaded = checkpoint.restore(trial)
    assert loaded is not None and loaded.manifest.step == 1
