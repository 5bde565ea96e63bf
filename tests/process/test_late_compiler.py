"""torch's compiler is loaded by whoever needs it, and by nobody else; nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ranks
from tests.train.test_attempt import line, verdict_of

ABSENT = "not any(one.startswith('torch._dynamo.') for one in sys.modules)"
LATE = "from hpcdet.process import late_compiler\nlate_compiler.put_off()"
# imports torch once; each snippet runs in a child of its own
IN_CHILDREN = """
import os, sys, traceback
{first}
import torch
for name, snippet in zip(sys.argv[2::2], sys.argv[3::2]):
    if os.fork() == 0:
        try:
            sys.stdout = open(os.path.join(sys.argv[1], name), "w", buffering=1)
            exec(snippet, {{"sys": sys, "torch": torch}})
            os._exit(0)
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        os._exit(1)
    os.wait()
"""
TRAIN = """
from torch import nn
torch.manual_seed(1)
meeting = "file://" + sys.stdout.name + ".store"
torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1))
model = nn.parallel.DistributedDataParallel(model)
adam = torch.optim.AdamW(model.parameters(), lr=0.1)
for _ in range(5):
    adam.zero_grad()
    model(torch.rand(3, 4)).sum().backward()
    adam.step()
adam.load_state_dict(adam.state_dict())
torch.distributed.destroy_process_group()
print([one.tolist() for one in model.parameters()])
"""
BREAKS = """
@torch.compiler.disable
def apart(x):
    return x.sin()

def step(x):
    return apart(x * 2) + 1

found = torch._dynamo.explain(step)(torch.ones(3))
print(found.graph_count, found.graph_break_count, apart.__name__)
assert torch._dynamo is sys.modules["torch._dynamo"]
print(torch.compile(step, backend="eager")(torch.ones(3)).tolist())
"""


THREADS = """
import threading
module, found, begin = sys.modules["torch._dynamo"], [], threading.Barrier(8)
def use(n):
    begin.wait()
    if n % 2:
        import torch._dynamo.utils
    found.append((module.OptimizedModule, module.config.optimize_ddp, module.graph_break()))
threads = [threading.Thread(target=use, args=(n,)) for n in range(8)]
for one in threads:
    one.start()
for one in threads:
    one.join()
assert len(set(found)) == 1 and len(found) == 8, found
"""
BROKEN = """
sys.modules["torch._C._dynamo"] = None
for _ in range(2):
    try:
        torch.compile(lambda x: x, backend="eager")(torch.ones(1))
    except ImportError as error:
        print(error)
"""
STEPS = """
import importlib
linear = torch.nn.Linear(1, 1)
sgd = torch.optim.SGD(linear.parameters(), lr=0.1)
def step():
    linear(torch.ones(1)).sum().backward()
    sgd.step()
    sgd.zero_grad()
step()
importlib.import_module = None
step()
"""
USES = {
    "setting": "import torch._dynamo.config as config\nassert config.optimize_ddp is True\n"
    "config.disable = True\nassert torch._dynamo.eval_frame.config is config\n"
    "assert config.__spec__.loader.name == config.__name__\n"
    "assert torch.compile(lambda x: x.sin(), backend=lambda *_: 1 / 0)(torch.ones(1)) > 0",
    "backends": "import torch._dynamo.backends.registry as registry\n"
    "assert torch._dynamo.eval_frame.lookup_backend is registry.lookup_backend",
    "unused": "import torch._dynamo.backends.debugging as found\n"
    "assert torch._dynamo.backends.debugging is found",
    "name": "from torch._dynamo import OptimizedModule",
    "call": "torch._dynamo.reset()",
    "deterministic": "from hpcdet.process import deterministic\ndeterministic.demand()\n"
    f"assert {ABSENT}\nassert torch.are_deterministic_algorithms_enabled()\n"
    "import torch._inductor.config\nassert torch._inductor.config.deterministic",
    "module": "assert torch.compiler.disable(torch.nn.Linear(1, 1))(torch.ones(1)).shape == (1,)",
}
LOADED = f"assert not {ABSENT}\nassert type(torch._dynamo) is type(sys)\nprint('loaded')"
EARLY = BREAKS.replace("def step", f"apart(torch.ones(3))\nassert {ABSENT}\n\ndef step")


def outputs(folder: Path, first: str, snippets: dict[str, str]) -> dict[str, str]:
    folder.mkdir()
    argv = [str(folder), *(word for pair in snippets.items() for word in pair)]
    code = IN_CHILDREN.format(first=first)
    subprocess.run([sys.executable, "-c", code, *argv], check=True, timeout=600)
    return {name: (folder / name).read_text() for name in snippets}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What processes say that import torch as it is."""
    snippets = {
        "train": TRAIN,
        "breaks": BREAKS,
        "again": f"import torch._dynamo\n{LATE}\n{LOADED}",
    }
    return outputs(tmp_path_factory.mktemp("late") / "plain", "", snippets)


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What processes say that have put the compiler off."""
    snippets = {"train": f"{TRAIN}assert {ABSENT}", "breaks": BREAKS, "early": EARLY}
    snippets |= {use: f"assert {ABSENT}\n{code}\n{LOADED}" for use, code in USES.items()}
    snippets |= {"threads": THREADS, "broken": BROKEN, "steps": f"{STEPS}assert {ABSENT}"}
    return outputs(tmp_path_factory.mktemp("late") / "late", LATE, snippets)


def test_training_loads_no_compiler_and_has_the_same_bits(
    plain: dict[str, str], late: dict[str, str]
) -> None:
    assert plain["train"].startswith("[[[")
    assert late["train"] == plain["train"]


def test_what_was_not_to_be_compiled_is_not_compiled_later(
    plain: dict[str, str], late: dict[str, str]
) -> None:
    assert plain["breaks"].startswith("2 1 apart\n")
    assert late["breaks"] == late["early"] == plain["breaks"]


def test_steps_after_the_first_import_nothing(late: dict[str, str]) -> None:
    assert not late["steps"]


@pytest.mark.parametrize("use", USES)
def test_every_other_use_loads_it(late: dict[str, str], use: str) -> None:
    assert late[use] == "loaded\n"


def test_threads_that_need_it_at_once_load_it_once(late: dict[str, str]) -> None:
    assert not late["threads"]


def test_a_compiler_that_cannot_be_imported_is_the_error_of_who_needs_it(
    late: dict[str, str],
) -> None:
    """Twice the same error, as of every import that fails."""
    first, second = late["broken"].splitlines()
    assert "torch._C._dynamo" in first
    assert first == second


def test_a_compiler_that_is_loaded_already_stays_as_it_is(plain: dict[str, str]) -> None:
    assert plain["again"] == "loaded\n"


@pytest.mark.parametrize("world", [1, 2])
def test_ranks_of_a_trial_that_compiles_nothing_never_load_it(tmp_path: Path, world: int) -> None:
    """Nor sympy, which a pass from given gradients imports."""
    what = "import sys; assert 'sympy' not in sys.modules and " + ABSENT
    trial = line(tmp_path / "EXP", what, ranks=world)
    verdict = verdict_of(ranks.by_mpirun(trial, world))
    assert (verdict.verdict, verdict.error) == ("done", "")
