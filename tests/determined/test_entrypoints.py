"""What entrypoints mean: the same as to the shell that Determined gives them to.

Each is run twice: by ``sh``, once, with launchers that start all ranks of the node (as
Determined's do), and by every rank of an attempt of ours. Both must do the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdet.config import api as config
from hpcdet.errors import ConfigError
from hpcdet.process.entrypoint import parse
from hpcdet.store.config import resolved_config as resolved
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from tests import dose

RANKS = 2
PATIENCE_S = 300
L = "python3 -m determined.launch.torch_distributed"
SCRIPT = """\
import json, os, sys
line = [os.environ.get("RANK"), sys.argv[1:], os.environ.get("FOO"), os.path.basename(os.getcwd())]
with open(os.environ["MARKS"], "a") as marks:
    marks.write(json.dumps(line) + "\\n")
print("printed", *sys.argv[1:])
sys.exit(int(os.environ.get("CODE", 0)))
"""
LAUNCHER = f"""\
import os, subprocess, sys
args = sys.argv[1:]
args = args[args.index("--") + 1:] if "--" in args else args
runs = [subprocess.Popen(args, env={{**os.environ, "RANK": str(n)}}) for n in range({RANKS})]
sys.exit(max(run.wait() for run in runs))
"""

WRAPPED = "python3 -m determined.launch.wrap_rank RANK --"

TABLE = [
    f"{L} python3 t.py",
    f"{L} python3 t.py --lr=0.1 --flag",
    f"{L} -- python3 t.py a",
    f"{L} --rdzv_backend c10d -- python3 t.py a",
    f"{L} python3 t.py 'two words' \"and three more\"",
    f"{L} python3 t.py a\\ b",
    f"{L} python3 t.py '$HOME'",
    f'{L} python3 t.py "$HOME/x"',
    f"{L} python3 t.py $HOME/x ${{HOME}}/y",
    f"{L} python3 t.py $(echo from a shell)",
    f"{L} python3 t.py `echo old style`",
    f"{L} python3 t.py *.txt",
    f"{L} python3 t.py ~/x",
    f"{L} python3 t.py && echo SECOND >>$MARKS",
    f"{L} python3 t.py; echo SECOND >>$MARKS",
    f"{L} python3 t.py || echo NEVER >>$MARKS",
    f"CODE=3 {L} python3 t.py || echo REPAIRED >>$MARKS",
    f"CODE=3 {L} python3 t.py && echo NEVER >>$MARKS",
    f"FOO=1 {L} python3 t.py",
    f"FOO='a b' {L} python3 t.py",
    f"FOO=1 OTHER=2 exec {L} python3 t.py",
    f"export FOO=exported; {L} python3 t.py",
    f"unset FOO; {L} python3 t.py",
    f"env FOO=2 {L} python3 t.py",
    f"cd sub && {L} python3 ../t.py",
    f"(cd sub && {L} python3 ../t.py); {L} python3 t.py after",
    f"echo installed >>$MARKS && {L} python3 t.py",
    f"{L} python3 t.py >out.txt && cat out.txt | wc -l | tr -d ' ' >>$MARKS",
    f"{L} python3 t.py 2>&1 | tee log.txt >/dev/null",
    f"{L} python3 t.py one \\\n  two",
    f"# a comment\n{L} python3 t.py",
    f"for i in 1 2; do {L} python3 t.py $i; done",
    f"if true; then {L} python3 t.py; fi",
    f"set -e; {L} python3 t.py; false; {L} python3 t.py never",
    f"{L} sh -c 'exec python3 t.py from-sh'",
    f"{L} python3 -u t.py",
    "python3 -m determined.launch.deepspeed python3 t.py",
    "FOO=1 python3 -m determined.launch.deepspeed python3 t.py && echo SECOND >>$MARKS",
    [*L.split(), "python3", "t.py", "$HOME", "a b"],
    ["sh", "-c", f"FOO=1 {L} python3 t.py $HOME"],
    f'exec {L} python3 t.py "it\'s" \'a "b" c\'',
    f"bash -c 'set -eu; FOO=${{FOO:-x}} {L} python3 t.py \"$FOO $HOME\"'",
    f"cd sub || exit 1; {L} python3 ../t.py; cd .. && {L} python3 t.py up",
    f"{L} python3 t.py & wait $! && echo WAITED >>$MARKS",
    f"(sleep 0.1; echo SLOW >>$MARKS) & {L} python3 t.py <a.txt; wait",
    f'echo piped | {{ read -r line; {L} python3 t.py "$line"; }}',
    f'{L} python3 t.py [ab].txt ?.tx* "*.txt" >"out $FOO.txt" 2>&1; ls out* >>$MARKS',
    f"export CODE=3; ! {L} python3 t.py; {L} python3 t.py || {{ unset CODE; {L} python3 t.py 3; }}",
    f"trap 'echo TRAP >>$MARKS' EXIT; {L} python3 t.py",
    f"run() {{ {L} python3 t.py \"$@\"; }}; run 1 '2 3' && L='{L}' && $L python3 t.py 4",
    "FOO=1 python3 -m 'determined.launch.torch_distributed' python3 t.py && echo ONCE >>$MARKS",
    f"PYTHONPATH=sub:$PYTHONPATH timeout 60 nice -n 1 {L} python3 t.py; echo ONCE >>$MARKS",
    "FOO=2 python3 -umdetermined.launch.torch_distributed python3 t.py; echo ONCE >>$MARKS",
    f"{L} python3 t.py one | {L} python3 t.py two",
    f"{L} sh -c 'sleep 1; python3 t.py late' & {L} python3 t.py early; wait",
]


def marks(path: Path) -> list[str]:
    return sorted(path.read_text().splitlines()) if path.exists() else []


def make_code(folder: Path) -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "t.py").write_text(SCRIPT)
    for name in ("a.txt", "b.txt"):
        (folder / name).touch()
    return folder


def by_shell(entrypoint: str | list[str], folder: Path) -> tuple[list[str], bool]:
    """Once, with launchers that start the ranks; whether it ended well."""
    code, stand_in = make_code(folder / "code"), folder / "path" / "determined" / "launch"
    stand_in.mkdir(parents=True)
    for name in ("torch_distributed", "deepspeed"):
        (stand_in / f"{name}.py").write_text(LAUNCHER)
    env = {**environment(folder), "PYTHONPATH": str(stand_in.parent.parent)}
    words = ["sh", "-c", entrypoint] if isinstance(entrypoint, str) else entrypoint
    done = subprocess.run(words, cwd=code, env=env, capture_output=True, timeout=PATIENCE_S)
    return marks(folder / "marks"), done.returncode == 0


def environment(folder: Path) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": "/home/ada",
        "FOO": "before",
        "MARKS": str(folder / "marks"),
    }


def by_ranks(entrypoint: str | list[str], folder: Path, **more: str) -> tuple[list[str], bool]:
    """By as many ranks, each as the launcher of a site starts it. ``more``: of the environment."""
    paths = ExperimentPaths(folder / "exp-0001")
    file = folder / "c.yaml"
    given = {"entrypoint": entrypoint, "resources": {"slots_per_trial": RANKS}}
    search = {"name": "single", "metric": "loss", "max_length": 10}
    file.write_bytes(resolved.dump({**given, "searcher": search}))
    files.make_folder(paths.trial(1).attempt(1).root)
    make_code(paths.code)
    paths.config.write_bytes(resolved.dump(config.load(file).resolved()))
    found = parse(resolved.load(paths.config).entrypoint)
    started = []
    for rank in range(RANKS):
        env = {
            **environment(folder),
            **more,
            **{"RANK": str(rank), "LOCAL_RANK": str(rank)},
            **{"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)},
        }
        # a script runs in the rank's own process, which takes seconds to import torch
        words = [sys.executable, *found.argv]
        cwd = paths.code
        if found.kind == "command":
            words = [sys.executable, "-Pm", "hpcdet.attempt", str(paths.root), "1", "1"]
        started.append(subprocess.Popen(words, cwd=cwd, env=env, stdout=subprocess.DEVNULL))
    codes = [one.wait(PATIENCE_S) for one in started]
    return marks(folder / "marks"), not any(codes)


@pytest.mark.parametrize("entrypoint", TABLE[:: dose.ENTRYPOINTS], ids=str)
def test_an_entrypoint_does_what_a_shell_makes_of_it(
    tmp_path: Path, entrypoint: str | list[str]
) -> None:
    expected = by_shell(entrypoint, tmp_path / "shell")
    (tmp_path / "ours").mkdir()
    assert by_ranks(entrypoint, tmp_path / "ours") == expected
    assert expected[0], "nothing ran"


def test_folders_for_temporary_files_may_have_long_names(tmp_path: Path) -> None:
    """A socket's path may have 107 bytes."""
    far = tmp_path / ("far" * 40)
    far.mkdir()
    found, good = by_ranks(f"FOO=1 {L} python3 t.py && true", tmp_path, TMPDIR=str(far))
    assert good and len(found) == RANKS


def test_the_rows_of_the_table_differ() -> None:
    assert len({json.dumps(one) for one in TABLE}) == len(TABLE) == 55


@pytest.mark.parametrize(
    "command",
    [
        'PYTHONPATH="src:$PYTHONPATH" X',
        "PYTHONPATH=.:${PYTHONPATH:-} X",
        "MY_PYTHONPATH=src X",
        "X -E -I && python3 -mTestE",
        "FOO=1 env -u BAR X",
    ],
)
def test_what_hides_no_launcher_is_accepted(tmp_path: Path, command: str) -> None:
    file = tmp_path / "c.yaml"
    search = {"name": "single", "metric": "loss", "max_length": 10}
    entrypoint = command.replace("X", f"{L} python3 t.py")
    file.write_bytes(resolved.dump({"entrypoint": entrypoint, "searcher": search}))
    assert not config.load(file).warnings


def test_where_one_rank_trains_several_slots_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    search = {"name": "single", "metric": "loss", "max_length": 10}
    entrypoint = "FOO=1 python3 -m determined.launch.tensorflow python3 t.py"
    file.write_bytes(resolved.dump({"entrypoint": entrypoint, "searcher": search}))
    assert config.load(file).config.entrypoint == entrypoint
    with pytest.raises(ConfigError, match="tensorflow trains on several ranks, hpcdet on one"):
        config.load(file, ["resources.slots_per_trial=2"])


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (f"PYTHONPATH=src {L}", "PYTHONPATH="),
        (f"export PYTHONPATH=src; {L}", "PYTHONPATH="),
        (f"env -i PATH=$PATH {L}", "env -i"),
        ("FOO=1 python3 -I -m determined.launch.torch_distributed", "python3 -I"),
    ],
)
def test_what_hides_the_launchers_is_refused(tmp_path: Path, before: str, said: str) -> None:
    file = tmp_path / "c.yaml"
    search = {"name": "single", "metric": "loss", "max_length": 10}
    file.write_bytes(resolved.dump({"entrypoint": f"{before} python3 t.py", "searcher": search}))
    with pytest.raises(ConfigError, match=f"{said} hides hpcdet's launchers.*") as caught:
        config.load(file)
    assert "PYTHONPATH=FOLDER:$PYTHONPATH" in str(caught.value)


OWN = [
    ("torchrun --nproc_per_node=2 t.py", "torchrun"),
    ("FOO=1 torchrun t.py", "torchrun"),
    ("cd sub && exec torchrun ../t.py", "torchrun"),
    ("python3 -m torch.distributed.run t.py", "torch.distributed.run"),
    ("python -m torch.distributed.launch t.py", "torch.distributed.launch"),
    ("accelerate launch t.py", "accelerate launch"),
    ("deepspeed t.py", "deepspeed"),
    ("/usr/bin/mpirun -n 2 python3 t.py", "mpirun"),
    ("horovodrun -np 2 python3 t.py", "horovodrun"),
    (["torchrun", "t.py"], "torchrun"),
    (["srun", "python3", "t.py"], "srun"),
    ("python -u -m torch.distributed.run t.py", "torch.distributed.run"),
    ("time -p torchrun t.py", "torchrun"),
    ("nice -n 5 timeout -k 5 60s mpirun -n 2 ./a", "mpirun"),
    ("bash -c 'set -e; torchrun t.py'", "torchrun"),
    ("uv run torchrun t.py", "torchrun"),
    ("if true; then torchrun t.py; fi", "torchrun"),
    ("{ torchrun t.py; }", "torchrun"),
    (["bash", "-c", "exec torchrun t.py"], "torchrun"),
    ("eval 'torchrun t.py'", "torchrun"),
    ("$(which torchrun) t.py", "torchrun"),
    ('FOO=1 "`command -v mpirun`" -n 2 python3 t.py', "mpirun"),
    ("python3 /opt/env/bin/torchrun t.py", "torchrun"),
    ("python3 -X dev -umtorch.distributed.run t.py", "torch.distributed.run"),
    ("'/opt/my env/bin/torchrun' t.py", "torchrun"),
    ("true | xargs jsrun ./a", "jsrun"),
]


@pytest.mark.parametrize(("entrypoint", "name"), OWN, ids=str)
def test_launchers_of_others_are_refused_by_name_on_several_slots(
    tmp_path: Path, entrypoint: str | list[str], name: str
) -> None:
    file = tmp_path / "c.yaml"
    values = {
        "entrypoint": entrypoint,
        "searcher": {"name": "single", "metric": "loss", "max_length": 10},
    }
    file.write_bytes(resolved.dump(values))
    assert config.load(file).config.entrypoint == entrypoint
    with pytest.raises(ConfigError, match=f"{name}.* would start processes of its own") as caught:
        config.load(file, ["resources.slots_per_trial=2"])
    assert "hpcdet starts a rank on each slot" in str(caught.value)


@pytest.mark.parametrize(
    "entrypoint",
    [
        "python3 t.py --launcher torchrun",
        "python3 t.py mpirun && echo 'torchrun t.py'",
        "accelerate config",
        "bash -c 'echo torchrun'",
        "python3 -c 'import torchrun' -m torch.distributed.run",
        "python3 torchrun.py",
        "python3 -W ignore t.py -m torch.distributed.run",
        "command -v torchrun || pip install torch; python3 t.py",
        "eval 'echo torchrun'",
    ],
)
def test_a_launcher_that_is_only_mentioned_is_none(tmp_path: Path, entrypoint: str) -> None:
    file = tmp_path / "c.yaml"
    search = {"name": "single", "metric": "loss", "max_length": 10}
    file.write_bytes(resolved.dump({"entrypoint": entrypoint, "searcher": search}))
    loaded = config.load(file, ["resources.slots_per_trial=2"])
    assert loaded.config.entrypoint == entrypoint


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("torch_distributed --nnodes 2 --trial m:T", "m:T"),
        ("horovod --autohorovod --trial m:T", "m:T"),
        ("horovod --trial=m:T", "m:T"),
        ("torch_distributed python3 t.py --trial x", "python3 t.py --trial x"),
        ("torch_distributed python3 t.py -- x", "python3 t.py -- x"),
        ("wrap_rank --no-redirect-stdio RANK python3 t.py", "python3 t.py"),
        ("wrap_rank 0 -- python3 t.py", "python3 t.py"),
        ("tensorflow --port 4 -- python3 t.py", "python3 t.py"),
        (f"torch_distributed {WRAPPED} python3 t.py", "python3 t.py"),
    ],
)
def test_what_is_launched_is_found(tmp_path: Path, arguments: str, meant: str) -> None:
    file = tmp_path / "c.yaml"
    search = {"name": "single", "metric": "loss", "max_length": 10}
    entrypoint = f"python3 -m determined.launch.{arguments}"
    file.write_bytes(resolved.dump({"entrypoint": entrypoint, "searcher": search}))
    assert config.load(file).config.entrypoint == meant


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("torch_distributed --trial", "--trial does not name a class"),
        ("horovod --autohorovod python3 t.py", "Horovod is not used here"),
        ("torch_distributed --nnodes 2 python3 t.py", "there is no command behind"),
    ],
)
def test_a_launcher_that_cannot_be_left_out_is_named(
    tmp_path: Path, arguments: str, said: str
) -> None:
    file = tmp_path / "c.yaml"
    search = {"name": "single", "metric": "loss", "max_length": 10}
    entrypoint = f"python3 -m determined.launch.{arguments}"
    file.write_bytes(resolved.dump({"entrypoint": entrypoint, "searcher": search}))
    with pytest.raises(ConfigError, match=said):
        config.load(file)
