"""What is saved is what is loaded: every type, any number of ranks, whatever the names."""

from __future__ import annotations

import gc
import tempfile
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcdet import checkpoint
from hpcdet.checkpoint import CheckpointFailed, LoadedState, Saved, StateError
from hpcdet.checkpoint.state import tree
from hpcdet.checkpoint.state.tree import Leaf
from hpcdet.checkpoint.write.leaf_plan import partition
from tests import RECORDED
from tests.trees import TORCH_TYPES, ranks, same, tensor, trees

CHECKPOINTS = RECORDED / "checkpoints"
FIXTURE = CHECKPOINTS / "schema-1" / "00000003.g1"
SECOND_DIGEST = "f76bd8d930502ef9712a5493cd0cf69f70b2dbcbdd90ff99009483505d9682e5"


def save_by(folder: Path, world: int, shared: Any, private: list[Any]) -> list[Saved]:
    return ranks(
        world,
        lambda rank, exchange: checkpoint.save(
            folder, shared, private[rank], rank=rank, world=world, exchange=exchange
        ),
    )


def load_by(folder: Path, world: int) -> list[LoadedState]:
    return ranks(world, lambda rank, _: checkpoint.load(folder, rank, world))


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(trees, st.lists(trees, min_size=4, max_size=4), st.integers(1, 4))
def test_a_state_comes_back_bit_for_bit(shared: Any, private: list[Any], world: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "00000001.g1"
        saved = save_by(folder, world, shared, private)
        for rank, loaded in enumerate(load_by(folder, world)):
            assert same(loaded.shared, shared)
            assert same(loaded.private, private[rank])
            assert loaded.manifest.root == saved[rank].root
        assert checkpoint.content_digest(folder) == saved[0].digest
        alone = checkpoint.save(Path(name) / "00000002.g1", shared)
        together = save_by(Path(name) / "00000003.g1", world, shared, [None] * 4)
        assert alone.digest == together[0].digest


def test_every_tensor_type_and_shape(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(2, 3, 4)
    state: dict[str, Any] = {
        str(dtype): [tensor(dtype, shape, 3) for shape in [(), (0, 2), (7,), (3, 2)]]
        for dtype in TORCH_TYPES
    }
    state["views"] = [base.permute(2, 0, 1), base[:, 1], base.expand(2, 2, 3, 4), base[..., ::2]]
    state["conj"] = torch.tensor([1 + 2j]).conj()
    state["parameter"] = torch.nn.Parameter(torch.ones(2))
    checkpoint.save(tmp_path / "00000001.g1", state)
    loaded = checkpoint.load(tmp_path / "00000001.g1").shared
    expected = state | {
        "conj": state["conj"].resolve_conj(),
        "parameter": state["parameter"].detach(),
    }
    assert same(loaded, expected)


def test_tied_weights_stay_tied_and_are_written_once(tmp_path: Path) -> None:
    weight = torch.randn(1000)
    tied = checkpoint.save(tmp_path / "00000001.g1", {"a": weight, "b": [weight]})
    apart = checkpoint.save(tmp_path / "00000002.g1", {"a": weight, "b": [weight.clone()]})
    loaded = checkpoint.load(tmp_path / "00000001.g1").shared
    assert loaded["a"] is loaded["b"][0]
    assert apart.bytes - tied.bytes >= 4000
    assert tied.digest == apart.digest


def test_a_save_keeps_nothing_of_the_state_in_memory(tmp_path: Path) -> None:
    state = {"w": torch.randn(64, 3)}
    saved = weakref.ref(state["w"])
    checkpoint.save(tmp_path / "00000001.g1", state)
    state.clear()
    gc.collect()
    assert saved() is None


def test_the_digest_tells_states_apart(tmp_path: Path) -> None:
    base = {"w": torch.zeros(3), "n": 1, "t": (1, 2)}
    states = [
        base,
        base | {"w": torch.tensor([0.0, 0.0, -0.0])},
        base | {"w": torch.zeros(3, dtype=torch.float16)},
        base | {"w": torch.zeros(3, 1)},
        base | {"w": np.zeros(3, "f4")},
        base | {"n": 1.0},
        base | {"n": True},
        base | {"t": [1, 2]},
        base | {"more": None},
        {"v": torch.zeros(3), "n": 1, "t": (1, 2)},
    ]
    digests = {
        checkpoint.save(tmp_path / f"{n:08d}.g1", state).digest for n, state in enumerate(states)
    }
    assert len(digests) == len(states)
    turned = checkpoint.save(tmp_path / "00000099.g1", dict(reversed(base.items())))
    assert turned.digest == checkpoint.load(tmp_path / "00000000.g1").manifest.digest


def test_private_state_counts_and_is_not_given_to_another_world(tmp_path: Path) -> None:
    one, two = tmp_path / "00000001.g1", tmp_path / "00000002.g1"
    save_by(one, 2, {"w": torch.ones(4)}, [{"rng": 1}, {"rng": 2}])
    save_by(two, 2, {"w": torch.ones(4)}, [{"rng": 1}, {"rng": 3}])
    assert [loaded.private for loaded in load_by(one, 2)] == [{"rng": 1}, {"rng": 2}]
    assert [loaded.private for loaded in load_by(one, 3)] == [None] * 3
    first, second = checkpoint.committed(tmp_path)
    assert first.digest != second.digest
    assert first.shared == second.shared


@pytest.mark.parametrize(
    ("state", "path", "kind"),
    [
        ({"a": [1, {"b": {1, 2}}]}, "shared/a/#1/b", "builtins.set"),
        ({"a": np.array([object()])}, "shared/a", "numpy.ndarray of object"),
        ({"model": {"w": torch.zeros(2).to_sparse()}}, "shared/model/w", "torch.sparse"),
        ({"model": {"w": torch.zeros(2, device="meta")}}, "shared/model/w", "meta"),
        ({("a", object()): 1}, "shared", "tuple"),
        ({"f": print}, "shared/f", "builtin_function"),
    ],
)
def test_what_cannot_be_saved_is_named(tmp_path: Path, state: Any, path: str, kind: str) -> None:
    with pytest.raises(StateError) as caught:
        checkpoint.save(tmp_path / "00000001.g1", state)
    assert caught.value.where == path
    assert kind in caught.value.what
    assert not checkpoint.committed(tmp_path)


def test_ranks_that_disagree_are_told(tmp_path: Path) -> None:
    def work(rank: int, exchange: checkpoint.Exchange) -> Exception:
        state = {"w": torch.zeros(2 + rank)}
        with pytest.raises((CheckpointFailed, StateError)) as caught:
            checkpoint.save(tmp_path / "1", state, rank=rank, world=2, exchange=exchange)
        return caught.value

    first, second = ranks(2, work)
    assert "ranks 0 and 1 have tensors of different" in str(first)
    assert "ranks 0 and 1 have tensors of different" in str(second)
    assert not (tmp_path / "1").exists()


def test_a_rank_with_an_odd_state_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    def work(rank: int, exchange: checkpoint.Exchange) -> Exception:
        private = {"odd": {1, 2}} if rank == 1 else {"odd": None}
        with pytest.raises((CheckpointFailed, StateError)) as caught:
            checkpoint.save(tmp_path / "1", {}, private, rank=rank, world=3, exchange=exchange)
        return caught.value

    errors = ranks(3, work)
    assert [type(error) for error in errors] == [CheckpointFailed, StateError, CheckpointFailed]
    assert "rank 1: StateError: private/odd" in str(errors[0])


def test_a_name_is_never_used_twice(tmp_path: Path) -> None:
    folder = tmp_path / "00000001.g1"
    checkpoint.save(folder, {"n": 1})
    with pytest.raises(CheckpointFailed, match="exists"):
        checkpoint.save(folder, {"n": 2})
    assert checkpoint.load(folder).shared == {"n": 1}


def test_manifests_form_a_chain_and_hold_what_they_are_given(tmp_path: Path) -> None:
    first = checkpoint.save(tmp_path / "00000001.g1", {}, meta={"metric": float("nan")})
    checkpoint.save(tmp_path / "00000002.g1", {}, meta={"kind": "resume"}, previous=first.root)
    old, new = checkpoint.committed(tmp_path)
    assert (new.prev_root, old.prev_root) == (old.root, "")
    assert (old.meta, new.meta) == ({"metric": "NaN"}, {"kind": "resume"})
    assert (new.step, new.attempt, new.world) == (2, 1, 1)


def test_any_hdf5_reader_reads_the_file(tmp_path: Path) -> None:
    state = {
        "model": OrderedDict(w=torch.arange(6.0).reshape(2, 3), half=torch.ones(2).bfloat16()),
        "epoch": 3,
    }
    folder = tmp_path / "00000001.g1"
    checkpoint.save(folder, state)
    with h5py.File(folder / "rank-00000-of-00001.h5", "r", locking=False) as file:
        assert file.attrs["schema_version"] == 1
        assert np.array_equal(file["shared/model/w"][...], state["model"]["w"].numpy())  # type: ignore[index]
        half = file["shared/model/half"]
        assert (half.attrs["dtype"], half.dtype) == ("bfloat16", np.dtype("<u2"))
        assert half[...].tobytes() == b"\x80\x3f" * 2


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 8))
def test_the_partition_is_complete_and_balanced(sizes: list[int], world: int) -> None:
    leaves = [Leaf(f"w{n}", "tensor", "uint8", (size,), size) for n, size in enumerate(sizes)]
    parts = partition(leaves, world)
    assert sorted(leaf.name for part in parts for leaf in part) == sorted(x.name for x in leaves)
    loads = [sum(leaf.nbytes for leaf in part) for part in parts]
    assert max(loads) - min(loads) <= max(sizes, default=0)
    assert parts == partition(leaves, world)


def test_the_first_format_is_read_for_ever() -> None:
    loaded = checkpoint.load(FIXTURE, rank=1, world=2)
    assert loaded.manifest.digest == checkpoint.verify(FIXTURE).digest
    assert loaded.manifest.digest == checkpoint.content_digest(FIXTURE)
    assert same(loaded.shared, fixture_state())
    assert same(loaded.private, {"rng": np.arange(5, dtype="u4"), "rank": 1})
    assert loaded.manifest.meta == {"kind": "kept", "metric": 0.25}


def fixture_state() -> dict[str, Any]:
    """What the committed fixture holds."""
    return {
        "model": OrderedDict(
            w=torch.arange(12.0).reshape(3, 4), b=torch.tensor([1.5, -2.0]).bfloat16()
        ),
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "lr": 0.1, "betas": (0.9, 0.99)},
        "cursor": {"epoch": 1, "samples": 192, "note": b"\x00\xff", "none": None},
        "odd": [True, float("inf"), np.float64(2.5), np.array(["x", "yz"]), torch.empty(0, 3)],
    }


def test_the_second_format_is_read_for_ever() -> None:
    """Rows of two ranks, and files of what did not change, some of which lie in rows, too."""
    folder = CHECKPOINTS / "schema-2" / "00000003.g1"
    assert {path.name for path in folder.glob("*.h5")} == {
        *("rank-00000-of-00002.h5", "rank-00000-of-00002.frozen.h5"),
        *("rank-00001-of-00002.h5", "rank-00001-of-00002.frozen.h5"),
    }
    whole = checkpoint.load(folder, rank=1, world=2)
    assert whole.manifest.schema == 2
    assert whole.manifest.digest == SECOND_DIGEST == checkpoint.content_digest(folder)
    assert same(whole.shared, second_state(0, 1)) and same(whole.private, {"rank": 1})
    for rank in range(3):
        rows = checkpoint.load(folder, rank, 3, sharded=True).shared
        for name, wanted in second_state(rank, 3)["model"].items():
            found = rows["model"][name]
            assert (found.shape, found.start) == (wanted.shape, wanted.start)
            assert torch.equal(found.local, wanted.local)


def second_state(rank: int, world: int) -> dict[str, Any]:
    """What a rank has of what the second fixture holds; of one rank, the whole."""
    body, head = torch.arange(24.0).reshape(6, 4), torch.full((5, 3), 3.0)
    model: dict[str, Any] = {"body": body, "head": head}
    if world > 1:
        for name, one in model.items():
            first, last = tree.rows(len(one), rank, world)
            model[name] = checkpoint.Sharded(one[first:last].clone(), tuple(one.shape), first)
    return {"model": model, "table": torch.arange(64).bfloat16(), "step": 3}


@pytest.mark.parametrize(("kind", "shape"), [("scalar", ()), ("array", (1,))])
def test_a_text_of_characters_that_do_not_exist_is_refused(
    kind: str, shape: tuple[int, ...]
) -> None:
    """Taken out of its array, numpy would end it in a SystemError."""
    beyond = torch.tensor(list((0x110000).to_bytes(4, "little")), dtype=torch.uint8)
    with pytest.raises(ValueError, match="characters that do not exist"):
        tree.from_bytes(kind, "<U1", shape, beyond)
    last = torch.tensor(list((0x10FFFF).to_bytes(4, "little")), dtype=torch.uint8)
    assert str(tree.from_bytes("scalar", "<U1", (), last)) == "\U0010ffff"
