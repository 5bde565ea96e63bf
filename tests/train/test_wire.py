"""What ranks send each other: it arrives bit for bit, is refused by name, and is never code."""

from __future__ import annotations

import enum
import os
import re
import struct
import tracemalloc
from collections import Counter, OrderedDict, defaultdict, namedtuple
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdet.core import DistributedContext
from hpcdet.errors import UsageError
from hpcdet.process.ranks import Ranks
from hpcdet.rehearsal import rehearse
from hpcdet.train import wire
from hpcdet.train.comm import messages
from hpcdet.train.comm.collectives import Peers, is_peer_loss
from tests import ranks as processes
from tests import trees
from tests.pytorch.test_bits_local import MODEL, make

surrogates = st.text(st.characters(codec=None, categories=["Cs", "L"]), max_size=4)
keys = st.recursive(
    st.one_of(trees.keys, surrogates, st.floats(), st.booleans(), st.none(), st.binary(max_size=3)),
    lambda inner: st.tuples(inner, inner),
    max_leaves=3,
)
values = st.recursive(
    st.one_of(
        trees.leaves, surrogates, st.integers(-(2**80), 2**80), st.just(np.str_("")),
        st.lists(st.floats(), max_size=3), st.lists(st.integers(-(2**66), 2**66), max_size=3),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.lists(st.tuples(inner, st.floats()), min_size=1, max_size=3),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=2).map(OrderedDict),
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=200)
@given(values)
def test_every_value_that_may_be_sent_arrives_bit_for_bit(value: Any) -> None:
    assert trees.same(wire.copied(value), value)


def test_what_is_rare_arrives_bit_for_bit() -> None:
    for bits in (0x7FF8000000000001, 0xFFF8000000000000, 1 << 63):  # NaN, another one, -0.0
        [given] = struct.unpack("<d", struct.pack("<Q", bits))
        for sent in (given, [given]):
            got = wire.copied(sent)
            got = got[0] if isinstance(got, list) else got
            assert struct.pack("<d", got) == struct.pack("<d", given)
    for number in (10**5000, -(2**63) - 1, 2**63, -(2**63)):
        assert wire.copied(number) == number and wire.copied([number, 1]) == [number, 1]
    for dtype in {one for one in vars(torch).values() if isinstance(one, torch.dtype)}:
        got = wire.copied(torch.arange(16, dtype=torch.uint8).view(dtype))
        assert got.dtype == dtype and bytes(got.view(torch.uint8).numpy()) == bytes(range(16))
    empty = np.ndarray((2, 3), "<U0")
    assert wire.copied(empty).dtype == empty.dtype and wire.copied(empty).shape == (2, 3)
    state = torch.nn.BatchNorm1d(3).state_dict()
    assert wire.copied(state)._metadata == state._metadata
    for array in (
        np.arange(10)[::-2],
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.array(3.5),
        np.arange(3, dtype=">i2"),
        np.array(["2020", "NaT"], "M8[D]"),
        np.longdouble(1) / 3,
        np.array(["a", "\ud800"]),
    ):
        got = wire.copied(array)
        assert (type(got), got.dtype, got.shape) == (type(array), array.dtype, array.shape)
        assert got.tobytes() == array.tobytes()
    keyed = {True: 1, 2: 2, None: 3, 0.5: 4, b"x": 5, (1, ("a", np.int8(2))): 6, "y": 7}
    assert list(map(repr, wire.copied(keyed))) == list(map(repr, keyed))
    grown = torch.nn.Parameter(torch.ones(2, 3)) * 2
    got = wire.copied([grown.t().conj(), torch.ones(3).expand(2, 3)])
    assert not got[0].requires_grad and torch.equal(got[0], grown.t()) and got[1].is_contiguous()


def test_what_arrives_shares_no_memory_with_what_was_sent() -> None:
    tensor, array, inner = torch.zeros(3), np.zeros(3), [0]
    for got in (
        wire.copied([tensor, array, inner, tensor]),
        _alone([tensor, array, inner, tensor]),
    ):
        got[0].fill_(1), got[1].fill(1), got[2].append(1)
        assert not tensor.any() and not array.any() and inner == [0] and not got[3].any()


def _alone(value: Any) -> Any:
    return DistributedContext.of(Ranks(), Peers(Ranks())).allgather(value)[0]


Point = namedtuple("Point", "x y")
Colour = enum.IntEnum("Colour", "RED")


class Text(str):
    pass


class Marks(dict[str, int]):
    pass


class Marked(torch.Tensor):
    pass


class Own:
    def __repr__(self) -> str:
        raise AssertionError("nothing of a stranger's is called")


endless: list[Any] = []
endless.append({"again": endless})
deep: Any = 0
for _ in range(100_000):
    deep = [deep]

REFUSED = {
    "a set": ({"a": [1, {2}]}, r"value\['a'\]\[1\] is a set: "),
    "an object of one's own": ((1, Own()), r"value\[1\] is a tests.train.test_wire.Own: "),
    "a function": (print, "value is a builtin_function_or_method"),
    "a named tuple": ([Point(1, 2)], r"value\[0\] is a tests.train.test_wire.Point"),
    "an enumeration": ({"c": Colour.RED}, r"value\['c'\] is a tests.train.test_wire.Colour"),
    "a str of one's own": (Text("a"), "value is a tests.train.test_wire.Text"),
    "a defaultdict": (defaultdict(int), "value is a collections.defaultdict"),
    "a counter": (Counter("a"), "value is a collections.Counter"),
    "a path": ({"p": Path("a")}, r"value\['p'\] is a pathlib.PosixPath"),
    "a decimal": (Decimal(1), "value is a decimal.Decimal"),
    "a complex": ([1j], r"value\[0\] is a complex"),
    "a bytearray": (bytearray(b"a"), "value is a bytearray"),
    "a set in a table": ([(1, 2), (1, {3})], r"value\[1\]\[1\] is a set"),
    "objects": ([np.array([{}])], r"value\[0\] is a numpy.ndarray of object"),
    "a record": (np.zeros(1, "i4,i4"), "value is a numpy.ndarray of "),
    "a masked array": (np.ma.zeros(1), "value is a numpy.ma.MaskedArray of float64"),
    "a sparse tensor": ({1: torch.ones(2).to_sparse()}, r"value\[1\] is a tensor of .*sparse_coo"),
    "a tensor without data": (torch.ones(1, device="meta"), "value is a tensor of .*on meta"),
    "a tensor of one's own": (torch.ones(1).as_subclass(Marked), r"value is a .*wire.Marked"),
    "a shape": ({"s": torch.ones(2).shape}, r"value\['s'\] is a torch.Size"),
    "bytes of no type": (np.void(b"abc"), "value is a numpy.void of"),
    "an int of one's own": ([Colour.RED, 1], r"value\[0\] is a tests.train.test_wire.Colour"),
    "a dict of one's own": (Marks(a=1), "value is a tests.train.test_wire.Marks"),
    "a key": ([{frozenset(): 1}], r"value\[0\] is a dict with a frozenset as a key"),
    "a part of a key": ({(1, Point(1, 2)): 1}, "value is a dict with a tuple as a key"),
    "itself": (endless, r"value\[0\]\['again'\]\[0\].*… is nested more than 200 deep"),
    "a deep list": (deep, r"value\[0\].*… is nested more than 200 deep"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "words"), REFUSED.values(), ids=list(REFUSED))
def test_anything_else_is_a_type_error_that_says_what_and_where(value: Any, words: str) -> None:
    """Where one rank is alone as well, so that a test on one finds it."""
    with pytest.raises(TypeError, match=words):
        wire.encode(value)
    context = DistributedContext.of(Ranks(), Peers(Ranks()))
    methods = ("broadcast", "allgather", "gather", "broadcast_local", "allgather_local")
    for method in (*methods, "gather_local"):
        with pytest.raises(TypeError, match=rf"context.distributed.{method}: {words}"):
            getattr(context, method)(value)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused_too() -> None:
    with pytest.raises(TypeError, match=r"value\[0\] is a nested tensor of torch.float32"):
        wire.encode([torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])])


def _read(message: bytes) -> None:
    """What becomes of hostile bytes: a value, or the one error; and little memory."""
    said = ""
    tracemalloc.start()
    try:
        wire.decode(bytearray(message))
    except wire.Garbled as error:
        said = str(error)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(said) < 500
    assert peak < 100 * len(message) + 100_000


LETTERS = b"NTFiIdsbltmofqxacz"


@settings(max_examples=300)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.lists(
            st.one_of(
                st.sampled_from([bytes([one]) for one in LETTERS]),
                st.sampled_from([0, 1, 2, 8, 2**31, 2**62, 2**63, 2**64 - 1]).map(
                    struct.Struct("<Q").pack
                ),
                st.sampled_from([b"float32", b"<f8", b"|O8", b"<U0", b"<M8[s]", b"load", b"\x02"]),
            ),
            max_size=30,
        ).map(b"".join),
    )
)
def test_no_bytes_do_harm(message: bytes) -> None:
    _read(message)


@settings(max_examples=300)
@given(values, st.data())
def test_no_damage_to_a_message_does_harm(value: Any, data: st.DataObject) -> None:
    message = wire.encode(value)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(len(message) - 1, 0)))
        more = data.draw(st.binary(max_size=9))
        message[at : at + data.draw(st.integers(0, 9))] = more
    _read(bytes(message))


def _typed(letter: bytes, name: bytes, *shape: int, data: bytes = b"") -> bytes:
    axes = struct.pack("<B" + "Q" * len(shape), len(shape), *shape)
    return letter + struct.pack("<Q", len(name)) + name + axes + data


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"NN",
        b"?",
        b"l" + struct.pack("<Q", 2**60),
        b"f" + struct.pack("<Q", 2**60),
        b"s" + struct.pack("<Q", 2) + b"\xff\xff",
        (b"l" + struct.pack("<Q", 1)) * 5000 + b"N",
        b"m" + struct.pack("<Q", 1) + b"l" + struct.pack("<Q", 0) + b"N",
        _typed(b"x", b"float32", 2**62),
        _typed(b"x", b"float32", 1, data=b"123"),
        _typed(b"x", b"load"),
        _typed(b"x", b"float32", 0, 2**63),
        _typed(b"a", b"|O8", 1, data=b"12345678"),
        _typed(b"a", b"i4,i4", 1, data=b"12345678"),
        _typed(b"a", b"<f8", 2**61, 8),
        _typed(b"a", b"<f8", 0, 2**63),
        _typed(b"c", b"<f8", 1, data=b"12345678"),
        _typed(b"c", b"<U1", data=b"\xff\xff\xff\x7f"),
        _typed(b"a", b">U1", 1, data=b"\xff\0\0\0"),
    ],
    ids=range(19),
)
def test_what_lies_about_its_size_or_type_is_refused(message: bytes) -> None:
    with pytest.raises(wire.Garbled):
        wire.decode(bytearray(message))
    _read(message)


def test_what_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcdet.train.wire.writing.MOST_BYTES", 1000)
    with pytest.raises(UsageError, match="takes 1021 bytes: ranks send each other 1000"):
        wire.encode(np.zeros(1000, np.uint8))


# -- between ranks --------------------------------------------------------------------------------


def test_ranks_hear_each_other_and_of_what_cannot_be_sent(tmp_path: Path) -> None:
    """Three processes over gloo; a refused value leaves nobody waiting, whoever has it."""
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda rank: processes.elsewhere(_talks, rank, tmp_path), range(3)))


def _talks(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 3)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
    ranks = Ranks(rank, 3, rank % 2, 2 - rank // 2, rank // 2)  # two on the first node
    peers = Peers(ranks)
    context = DistributedContext.of(ranks, peers)

    def check() -> None:
        own = {"rank": rank, "x": torch.full((rank,), 1.5), "big": np.zeros(rank << 16)}
        everyone = context.allgather(own)
        assert [one["rank"] for one in everyone] == [0, 1, 2]
        assert everyone[rank]["x"] is not own["x"]
        assert [len(one["big"]) for one in everyone] == [0, 1 << 16, 2 << 16]  # type: ignore[arg-type]
        gathered = context.gather(own)
        assert gathered is None if rank else len(gathered) == 3  # type: ignore[arg-type]
        assert context.broadcast(own if rank == 0 else Own())["rank"] == 0  # type: ignore[index]
        assert context.allgather_local(rank) == ([0, 1] if rank < 2 else [2])
        assert context.gather_local(rank) == {0: [0, 1], 1: None, 2: [2]}[rank]
        assert context.broadcast_local(rank if rank != 1 else Own()) == (0 if rank < 2 else 2)

    check()
    refused = {"allgather": {2}, "gather": {1, 2}, "broadcast": {0}, "allgather_local": {0}}
    for method, odd in {**refused, "gather_local": {2}, "broadcast_local": {2}}.items():
        value = {"a": [1, {2, 3}]} if rank in odd else {}
        said = rank if rank in odd else min(odd)
        with pytest.raises(TypeError, match=rf"{method}, rank {said}: value\['a'\]\[1\] is a set"):
            getattr(context, method)(value)
        check()

    def full(_: Any) -> Any:
        patch.undo()
        raise MemoryError("no room")

    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(wire, "encode", full)
        with pytest.raises(Exception, match=r"no room" if rank == 1 else r"rank 1: .*no room"):
            peers.allgather(1)
    check()
    for header, body in (((0, 1 << 60), b""), ((0, -1), b""), ((7, 8), b""), ((1, 1 << 30), b""),
                         ((0, 3), b"any"), ((1, 1), b"N")):  # fmt: skip
        group = peers._group
        assert group is not None
        if rank < 2:
            with pytest.raises(wire.Garbled, match="rank 2") as caught:
                peers.allgather(0)
            assert is_peer_loss(caught.value)
            continue
        messages._all(torch.tensor(header), [2] * 3, rank, group)  # no rank of ours sends this
        content = torch.frombuffer(bytearray(body), dtype=torch.uint8) if body else None
        if content is not None and header[0]:
            dist.broadcast(content, src=2, group=group)
        elif content is not None:
            messages._all(content, [9, 9, 3], rank, group)
    check()
    dist.destroy_process_group()


BAD = """
class BitsTrial(BitsTrial):
    def __init__(self, context):
        super().__init__(context)
        self.odd = context.wrap_reducer(lambda parts: len(parts), name="odd")

    def evaluate_batch(self, *batch):
        self.odd.update({"labels": {1, 2}})
        return super().evaluate_batch(*batch)
"""


def test_the_rehearsal_of_one_rank_finds_what_a_reducer_cannot_send(tmp_path: Path) -> None:
    trial = make(tmp_path / "e", 2, code=MODEL + BAD, until=6)
    processes.elsewhere(_rehearses, trial.root.parent.parent, tmp_path / "said")
    words = r"per_slot_reduce of reducer odd: value\[0\]\['labels'\] is a set"
    assert re.search(words, (tmp_path / "said").read_text())
    attempt = processes.run(trial, 2)
    assert (verdict := attempt.verdict()) is not None and verdict.verdict == "fail"
    assert re.search(words.replace(":", ", rank [01]:"), verdict.error)
    for rank in range(2):  # neither is left waiting, nor takes the other for lost
        log = (attempt.paths.logs / f"rank-{rank}.log").read_text()
        assert "value[0]['labels'] is a set" in log and "are gone" not in log


def _rehearses(experiment: Path, said: Path) -> None:
    from hpcdet import attempt  # which installs handlers of signals

    with said.open("w") as file:
        os.dup2(file.fileno(), 2)
    assert rehearse(experiment, 1, attempt.run) == 1


def test_what_may_not_be_sent_is_found_at_once_however_deep_it_lies() -> None:
    """Each level of lists of tuples was tried twice: 2 to the power of their number."""
    value: Any = object()
    for _ in range(60):
        value = [(value,)]
    with pytest.raises(TypeError, match=r"value(\[0\]){8}… is a object"):
        wire.encode(value)
    endless: list[Any] = []
    endless.append((endless,))
    with pytest.raises(TypeError, match="nested more than 200 deep"):
        wire.encode(endless)
    table = [(1, 2), (3, object())]
    with pytest.raises(TypeError, match=r"value\[1\]\[1\]"):
        wire.encode(table)
