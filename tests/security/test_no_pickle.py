"""Nothing that hpcdet reads or hears is unpickled: not in its sources, nor in torch on its way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hpcdet
from tests import ranks
from tests.pytorch.test_bits_local import MODEL, make

pytestmark = pytest.mark.xdist_group("bits")
TOP = Path(hpcdet.__file__).parent

MODULES = frozenset(
    {
        "pickle",
        "_pickle",
        "cPickle",
        "pickle5",
        "cloudpickle",
        "dill",
        "marshal",
        "shelve",
        "joblib",
    }
    | {"multiprocessing.connection", "multiprocessing.managers"}  # pickles that come by sockets
    | {"torch.distributed.checkpoint"}  # its plans travel as objects
)
OBJECTS = frozenset(
    {"broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list"}
    | {"send_object_list", "recv_object_list", "_object_to_tensor", "_tensor_to_object"}
    | {"read_pickle", "to_pickle"}
)
MPI = frozenset(
    {"send", "bsend", "ssend", "isend", "ibsend", "issend", "recv", "irecv", "mrecv", "sendrecv"}
    | {
        "bcast",
        "gather",
        "scatter",
        "allgather",
        "alltoall",
        "reduce",
        "allreduce",
        "scan",
        "exscan",
    }
)
"""Of mpi4py's communicators: those with a capital send memory."""
OURS = ("self", "self._direct")  # process groups, which have torch's names for them

WRITE_OR_READ = ("torch.save", "marshal.load", "marshal.loads")

ALLOWED = {
    "checkpoint/state/structure_cache.py: import marshal": "dumps only, to compare plain values",
    "checkpoint/keep/convert.py: torch.save": "exports for other tools, which read nothing else",
}


def pickles(source: str) -> Iterator[str]:
    """What of a source pickles, or may unpickle what came from elsewhere."""
    tree = ast.parse(source)
    names: dict[str, str] = {}  # as this source has it -> what it is
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
            names |= {one.asname: one.name for one in node.names if one.asname}
        elif isinstance(node, ast.ImportFrom):
            found = [f"{node.module}.{alias.name}" for alias in node.names] + [str(node.module)]
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        else:
            continue
        for one in found:
            if any(f"{one}.".startswith(f"{module}.") for module in MODULES):
                yield f"import {one}"
            elif one.rpartition(".")[2] in OBJECTS:
                yield one
    speaks_mpi = "mpi4py" in source
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            whole = _dotted(node, names)
            inside = any(whole.startswith(f"{module}.") for module in MODULES - {"marshal"})
            if inside or node.attr in OBJECTS or whole in WRITE_OR_READ:
                yield whole
        elif isinstance(node, ast.Constant) and node.value in MODULES | OBJECTS:
            yield f"the word {node.value!r}"  # for import_module, __import__, getattr
        elif isinstance(node, ast.Call):
            yield from _called(node, _dotted(node.func, names), speaks_mpi)


def _called(node: ast.Call, whole: str, speaks_mpi: bool) -> Iterator[str]:
    place, _, last = whole.rpartition(".")
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    loads = whole in ("torch.load", "torch.serialization.load")
    if loads and not _is(given.get("weights_only"), True):
        yield "torch.load without weights_only=True"
    arrays = whole == "numpy.load" and len(node.args) > 2
    if arrays or not _is(given.get("allow_pickle", ast.Constant(False)), False):
        yield "allow_pickle"
    if (
        last in MPI
        and place not in OURS
        and (speaks_mpi or "comm" in place.rpartition(".")[2].lower())
    ):
        yield f"{whole} of MPI"


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, names)}.{node.attr}"
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else "?"


def test_no_source_pickles() -> None:
    files = sorted(TOP.rglob("*.py"))
    assert len(files) > 100
    found = {
        f"{path.relative_to(TOP).as_posix()}: {what}"
        for path in files
        for what in pickles(path.read_text())
    }
    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "def f():\n    import cloudpickle.fast",
        "import marshal\nmarshal.loads(b'')",
        "from marshal import loads as read",
        "import importlib\nimportlib.import_module('dill')",
        "__import__('shelve')",
        "from multiprocessing.connection import Client",
        "import multiprocessing\nmultiprocessing.connection.Listener()",
        "import torch.distributed.checkpoint as dcp",
        "from torch.distributed import checkpoint",
        "import torch\ntorch.distributed.checkpoint.save({})",
        "import torch.distributed as dist\ndist.broadcast_object_list([1])",
        "from torch.distributed import all_gather_object as gather",
        "def f(group):\n    return getattr(group, 'gather_object')",
        "import torch\ntorch.load('a')",
        "from torch import load\nload('a')",
        "import torch\ntorch.load('a', weights_only=False)",
        "import torch\ndef f(w):\n    torch.load('a', weights_only=w)",
        "import torch\ntorch.save({}, 'a')",
        "import numpy as np\nnp.load('a', allow_pickle=True)",
        "import numpy\nnumpy.load('a', None, True)",
        "from numpy import load\ndef f(a):\n    load('a', allow_pickle=a)",
        "def f(table):\n    table.read_pickle('a')",
        "class A:\n    def f(self):\n        self._comm.bcast(1)",
        "from mpi4py import MPI\ndef f(world):\n    world.allgather(1)",
        "from mpi4py import MPI\nMPI.COMM_WORLD.recv()",
    ],
)
def test_a_source_that_pickles_is_found(source: str) -> None:
    assert list(pickles(source))


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.load('a', map_location='cpu', weights_only=True)",
        "import numpy as np\nnp.load('a', allow_pickle=False)",
        "import numpy as np\nnp.load('a')",
        "def f(peers):\n    return peers.allgather(1)",
        "class A:\n    def f(self):\n        self._comm.Iallgather(1, 2)",
        "'No pickle between ranks.'",
    ],
)
def test_a_source_that_does_not_is_left_alone(source: str) -> None:
    assert not list(pickles(source))


TRAP = """
import sys
import torch.distributed.distributed_c10d as c10d

def refuse(*_, **__):
    raise AssertionError("an object is pickled between ranks")

def watch(event, _):
    if event == "pickle.find_class":
        refuse()

c10d._object_to_tensor = c10d._tensor_to_object = refuse
sys.addaudithook(watch)
"""
PLANTED = """
import torch.distributed
class BitsTrial(BitsTrial):
    def evaluate_batch(self, *batch):
        torch.distributed.all_gather_object([None] * 2, 1)
"""


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizations": {"gradient_compression": "powersgd", "powersgd": {"start_step": 2}}},
        {"distributed": {"strategy": "fsdp2"}},
        {"reproducibility": {"elastic": "exact", "virtual_ranks": 2}},
    ],
    ids=["ddp", "powersgd", "fsdp2", "elastic"],
)
def test_torch_pickles_nothing_between_ranks_while_they_train_save_and_go_on(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    trial = make(tmp_path / "e", 2, **{"code": MODEL + TRAP, "until": 6, **changes})
    left = ranks.run(trial, 2, LEAVE="train:3")
    assert (verdict := left.verdict()) is not None and verdict.verdict == "resume", left.log()
    ranks.finish(trial, 2)


def test_an_object_that_is_pickled_between_ranks_is_noticed(tmp_path: Path) -> None:
    trial = make(tmp_path / "e", 2, code=MODEL + TRAP + PLANTED, until=6)
    attempt = ranks.run(trial, 2)
    assert (verdict := attempt.verdict()) is not None
    assert "an object is pickled between ranks" in verdict.error
