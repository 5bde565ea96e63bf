"""Checkpoints as other programs' files and back; and nothing that is read ever runs code."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import os
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from hpcdet import checkpoint
from hpcdet.checkpoint import __main__ as node_side
from hpcdet.checkpoint.format import hdf5_layout, safetensors, shard
from hpcdet.checkpoint.format import manifest as manifests
from hpcdet.checkpoint.keep import convert
from hpcdet.checkpoint.state.tree import Leaf
from hpcdet.errors import IntegrityError, NotFound, UsageError
from hpcdet.read.exports import checkpoint_process
from hpcdet.store.fs import files
from tests.builders import Builder
from tests.commands import Cli
from tests.trees import TORCH_TYPES, same, tensor

MODEL = OrderedDict(
    (f"conv.{str(dtype).removeprefix('torch.')}", tensor(dtype, (3, 2), 3))
    for dtype in TORCH_TYPES
    if safetensors.knows(dtype)
)
STATE: dict[str, Any] = {
    "models": [MODEL],
    "optimizers": [{"state": {0: {"step": torch.tensor(3.0)}}, "betas": (0.9, float("inf"))}],
    "odd": [np.float64(2.5), np.array(["x", "yz"]), np.arange(4, dtype=">i4"), b"\0\xff", None],
}


def made(tmp_path: Path, state: Any = STATE) -> Path:
    folder = tmp_path / "00000007.g1"
    checkpoint.save(folder, state, {"rank": 0})
    return folder


@pytest.mark.parametrize("form", ["safetensors", "pt"])
def test_weights_go_out_and_come_back(tmp_path: Path, form: str) -> None:
    file = tmp_path / f"weights.{form}"
    folder = made(tmp_path)
    out = convert.export(folder, file, form)
    assert (out.tensors, out.bytes) == (len(MODEL), file.stat().st_size)
    back = convert.take_in(file, tmp_path / "00000000.g1")
    loaded = checkpoint.load(tmp_path / "00000000.g1")
    back_again = {name: loaded.shared["models"][0][name] for name in MODEL}
    assert same(back_again, dict(MODEL))
    assert loaded.manifest.meta["kind"] == "import"
    assert loaded.manifest.digest == back.digest
    if form == "pt":
        assert same(torch.load(file, weights_only=True), MODEL)
    with pytest.raises(UsageError, match="exists"):
        convert.take_in(file, tmp_path / "00000000.g1")


def test_a_whole_state_is_the_same_after_a_journey(tmp_path: Path) -> None:
    folder = made(tmp_path)
    convert.export(folder, tmp_path / "all.safetensors", "safetensors", whole=True)
    back = convert.take_in(tmp_path / "all.safetensors", tmp_path / "00000000.g1")
    assert same(checkpoint.load(tmp_path / "00000000.g1").shared, STATE)
    assert back.digest == checkpoint.save(tmp_path / "00000001.g1", STATE).digest
    convert.export(folder, tmp_path / "all.pt", "pt", whole=True)
    plain = torch.load(tmp_path / "all.pt", weights_only=True)["shared"]
    assert same(plain["models"], STATE["models"])
    assert plain["optimizers"][0]["betas"] == (0.9, float("inf"))
    assert same(plain["odd"][:2], [2.5, ["x", "yz"]])
    convert.export(folder, tmp_path / "all.h5", "hdf5", whole=True)
    with h5py.File(tmp_path / "all.h5") as file:
        assert file["shared/models/#0/conv.float64"][...].shape == (2, 3)


def test_the_safetensors_file_is_as_the_format_wants_it(tmp_path: Path) -> None:
    """Against the bytes that the format's own library (0.8.0) writes for the same tensors."""
    tensors = {
        "b": torch.arange(3, dtype=torch.int16),
        "a.w": torch.ones(2, 2),
        "0": torch.ones(()),
    }
    safetensors.write(tmp_path / "x.safetensors", tensors, {"format": "pt"})
    data = (tmp_path / "x.safetensors").read_bytes()
    assert hashlib.sha256(data).hexdigest() == SAFETENSORS, data
    for damaged in (data[:-1], data + b"\0", data[:4], data.replace(b"F32", b"F99"), b"x" * 64):
        (tmp_path / "y").write_bytes(damaged)
        with pytest.raises(IntegrityError, match="no safetensors file, or damaged"):
            safetensors.read(tmp_path / "y")


SAFETENSORS = "26463b492dc68fca812b9233872a3503d599ace54076e0c35f11a249826c23e1"


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ({"state": {"model": {"w": torch.ones(1)}, "opt": torch.ones(1)}}, ["w"]),
        ({"state": [torch.ones(1), {"x": np.ones(2)}, "text"]}, ["0", "1.x"]),
        ({"models": [{"w": torch.ones(1)}, {"w": torch.ones(1)}]}, ["0.w", "1.w"]),
    ],
)
def test_weights_are_found_and_named(tmp_path: Path, state: Any, names: list[str]) -> None:
    assert list(convert.weights(checkpoint.load(made(tmp_path, state)).shared)) == names


def test_nothing_to_export_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no weights"):
        convert.export(made(tmp_path, {"state": 3}), tmp_path / "x.pt", "pt")
    assert not (tmp_path / "x.pt").exists()


# -- pickled code ------------------------------------------------------------------------------


class Hostile:
    """Unpickled, it leaves a folder behind."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_an_empty_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "empty.pt").touch()
    with pytest.raises(UsageError, match="EOFError"):
        convert.take_in(tmp_path / "empty.pt", tmp_path / "c")


def test_files_outside_of_a_checkpoint_are_none_of_its(tmp_path: Path) -> None:
    folder = made(tmp_path, {"w": torch.ones(2)})
    sound = manifests.read(folder)
    [shard] = sound.shards
    for file in ("../x.h5", "/x.h5", "..", ""):
        forged = dataclasses.replace(sound, shards=(dataclasses.replace(shard, file=file),))
        (folder / "MANIFEST.json").write_bytes(forged.sealed().encode())
        with pytest.raises(IntegrityError, match="outside of its folder"):
            manifests.read(folder)


def test_pickled_code_is_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    hostile = pickle.dumps(Hostile(mark))
    for number, legacy in enumerate((False, True)):
        file = tmp_path / f"{number}.pt"
        value = {"w": torch.ones(2), "x": Hostile(mark)}
        torch.save(value, file, _use_new_zipfile_serialization=not legacy)
        with pytest.raises(UsageError, match="without running code"):
            convert.take_in(file, tmp_path / "c")
    for name in ("raw.pt", "raw.safetensors"):
        (tmp_path / name).write_bytes(hostile)
        with pytest.raises((UsageError, IntegrityError)):
            convert.take_in(tmp_path / name, tmp_path / "c")
    assert not (tmp_path / "c").exists()
    # in a checkpoint, in place of any of its files, and as a value
    folder = made(tmp_path, {"note": hostile, "text": np.frombuffer(hostile, "u1")})
    assert checkpoint.load(folder).shared["note"] == hostile
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(hostile)
        for read in (checkpoint.load, checkpoint.verify, manifests.read):
            if read is not manifests.read or path.name == "MANIFEST.json":
                with pytest.raises(IntegrityError):
                    read(folder)
        path.write_bytes(whole)
    assert not mark.exists()


def test_a_checkpoint_forged_with_objects_in_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digests are no signature: whoever writes files can make them fit."""
    real = hdf5_layout._table_text

    def forged(forgery: str, frame: str, extents: Any, digests: Any) -> bytes:
        table = json.loads(real(frame, extents, digests))
        for row in table["leaves"]:
            if row[0] == "shared/x":
                row[2] = forgery
        return files.canonical(table)

    honest = shard.leaf_digest

    def digest(forgery: str, leaf: Leaf, data: memoryview) -> str:
        forged = dataclasses.replace(leaf, dtype=forgery) if leaf.name == "shared/x" else leaf
        return honest(forged, data)

    for number, forgery in enumerate(("|O", "O8 ", "<i9")):
        with monkeypatch.context() as patch:
            patch.setattr(hdf5_layout, "_table_text", functools.partial(forged, forgery))
            patch.setattr(shard, "leaf_digest", functools.partial(digest, forgery))
            folder = tmp_path / f"{number:08d}.g1"
            state = {"x": np.arange(number + 2, dtype="<i8")}
            checkpoint.save(folder, state, image=checkpoint.Image(lambda: 0))
        with pytest.raises(IntegrityError, match="dataset shared/x cannot be a array"):
            checkpoint.load(folder)


def test_no_module_unpickles() -> None:
    """The one place that reads PyTorch's files asks for plain tensors only."""
    root = Path(checkpoint.__file__).parents[1]
    found = [
        (path.name, line.strip())
        for path in root.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"\b(pickle|torch|np|numpy|joblib|dill)\.loads?\(|Unpickler", line)
    ]
    assert [name for name, _ in found] == ["convert.py"]
    assert "weights_only=True" in found[0][1]


# -- verbs -------------------------------------------------------------------------------------


@pytest.fixture
def within(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that reads checkpoints is this one: torch is imported already."""

    def process(arguments: list[str], heard: Callable[[Any], None]) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            node_side.main(arguments)
        for line in out.getvalue().splitlines():
            heard(json.loads(line))
        return ""

    monkeypatch.setattr(checkpoint_process, "run", process)


def test_the_verbs_in_processes_of_their_own(cli: Cli, tmp_path: Path) -> None:
    folder = made(tmp_path)
    file = tmp_path / "w.pt"
    assert cli("ckpt", "export", folder, "-o", file).out == f"{file}\n"
    torch.save(Hostile(tmp_path / "it ran"), file)
    refused = cli("ckpt", "import", file, tmp_path / "c", "-o", "json", code=2)
    assert json.loads(refused.err)["error"]["hint"].startswith("where it was made: torch.save")
    assert not (tmp_path / "it ran").exists()


def test_the_verbs(cli: Cli, tmp_path: Path, within: None) -> None:
    built = Builder(cli.root / "digits-7f3a")
    paths = built.paths
    attempt = built.trial().attempt()
    for step, loss in ((100, 0.5), (200, 0.2), (300, 0.3)):
        state = {"models": [{"w": torch.full((2,), loss)}]}
        checkpoint.save(paths.trial(1).checkpoint(step, 1), state, meta={"metric": loss})
        attempt.line("checkpoint", name=f"{step:08d}.g1", step=step, metric=loss)
    attempt.end("completed")
    file = tmp_path / "w.pt"
    for flags, value in (([], 0.3), (["--best"], 0.2), (["100"], 0.5)):
        ran = cli("ckpt", "export", "digits", *flags, "-o", file)
        assert ran.out == f"{file}\n" and "1 tensors of" in ran.err
        assert torch.equal(torch.load(file, weights_only=True)["w"], torch.full((2,), value))
    assert "no checkpoint 400" in cli("ckpt", "export", "digits", "400", "-o", file, code=3).err
    [item] = cli("ckpt", "import", file, tmp_path / "warm", "-o", "json").items
    assert checkpoint.load(tmp_path / "warm").manifest.digest == item["digest"]
    assert "exists" in cli("ckpt", "import", file, tmp_path / "warm", code=2).err
    cli("ckpt", "get", "digits", "--best", "-o", tmp_path / "mine")
    assert checkpoint.verify(tmp_path / "mine").step == 200
    [item] = cli("ckpt", "verify", tmp_path / "mine", "--quick", "-o", "json").items
    assert item["state"] == "valid"
    [file] = (tmp_path / "mine").glob("*.h5")
    whole = bytearray(file.read_bytes())
    whole[100] ^= 1
    file.write_bytes(whole)
    cli("ckpt", "verify", tmp_path / "mine", "--quick")
    assert "not what was written" in cli("ckpt", "verify", tmp_path / "mine", "--deep", code=9).err
    assert (
        "not what" in cli("ckpt", "export", tmp_path / "mine", "-o", tmp_path / "x.pt", code=9).err
    )


def test_pinned_checkpoints_outlast_the_rules(cli: Cli) -> None:
    built = Builder(cli.root / "digits-7f3a")
    built.trial().attempt().end("completed")
    paths, trial = built.paths, built.paths.trial(1)
    for step in (100, 200, 300):
        checkpoint.save(trial.checkpoint(step, 1), {"step": step})
    cli("ckpt", "pin", "digits/1", "100")
    folder = trial.checkpoint(100, 1)
    assert "the checkpoint is pinned" in cli("ckpt", "rm", folder, "-y", code=2).err
    none = checkpoint.RetentionRules(0, 0, 0)
    assert checkpoint.sweep(paths, none, trial=1, attempt=1, resume=1) == ["00000200.g1"]
    cli("ckpt", "unpin", folder)
    assert "is not pinned" in cli("ckpt", "unpin", folder, code=3).err
    assert checkpoint.sweep(paths, none, trial=1, attempt=1, resume=1) == ["00000100.g1"]
