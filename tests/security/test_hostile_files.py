"""What is no file, or stands for more than it is, costs a listing one line and a verb an error.

Every test reads in a process of its own, with little memory to take and an end that is sure.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpcdet
from hpcdet.errors import IntegrityError
from hpcdet.read.experiment.lines import ATTEMPT, DECISION
from hpcdet.store.config import resolved_config
from hpcdet.store.fs import bounded_json, files, journal, packed, yaml_bounds
from tests.builders import Builder

MEMORY = 1 << 30
"""Bytes of address space that a reader may take."""
READ = 80 << 20
"""Bytes that a reader may read of one bad experiment: two times the longest line of a journal."""


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # its name may have 108 characters
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def looping(path: Path) -> None:
    path.symlink_to(path.name)


def integer(path: Path) -> None:
    number = "1" * 200_000
    path.write_text(f"name: {number}\n" if path.suffix == ".yaml" else f'{{"number": {number}}}')


def deep(path: Path) -> None:
    path.write_text("[" * 500_000)


def deep_enough_to_parse(path: Path) -> None:
    path.write_text('{"name": ' * 400 + "1" + "}" * 400)


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def nul(path: Path) -> None:
    path.write_bytes(b'{"number": "a\0b"}\n')


def no_utf8(path: Path) -> None:
    path.write_bytes(b'{"number": "\xff\xfe\xfd"}\n')


def of_other_types(path: Path) -> None:
    keys = ("number", "params", "searcher", "job", "reason", "verb", "action", "state", "term")
    path.write_text(json.dumps({key: [{"a": None}] for key in keys}))


HARMS = [
    *(fifo, unix_socket, device, folder, dangling, looping, integer, deep, deep_enough_to_parse),
    *(sparse, nul, no_utf8, of_other_types),
]


def alias_bomb(path: Path) -> None:
    rows = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    path.write_text("\n".join(["a0: &a0 [x, x, x]", *rows]))


def merge_bomb(path: Path) -> None:
    rows = [f"b{n}: &b{n} {{<<: [*b{n - 1}, *b{n - 1}]}}" for n in range(1, 40)]
    path.write_text("\n".join(["b0: &b0 {k: 1}", *rows]))


def tower_of_aliases(path: Path) -> None:
    path.write_text(
        "\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 300))])
    )


def wide(path: Path) -> None:
    path.write_text(f"a: [{'1,' * 300_000}1]")


def sexagesimal(path: Path) -> None:
    path.write_text("name: 1" + ":1" * 100_000)


def directives(path: Path) -> None:
    path.write_text("".join(f"%TAG !a{n}! x\n" for n in range(100_000)))


YAML_HARMS = [alias_bomb, merge_bomb, tower_of_aliases, wide, sexagesimal, directives]


def endless_line(path: Path) -> None:
    with path.open("w") as file:
        file.write('{"n":1,"t":"')
        file.truncate(1 << 40)


def line_of_text(path: Path) -> None:
    path.write_text('{"n":1,"t":"' + "x" * (journal.LONGEST + 1000))


def deep_line(path: Path) -> None:
    head = b'{"n":1,"t":"","kind":"metrics","a":' + b"[" * 400 + b"]" * 400
    import zlib

    path.write_bytes(head + b',"crc":"%08x"}\n' % zlib.crc32(head))


JOURNAL_HARMS = [endless_line, line_of_text, deep_line]

READ_BY_STATUS = (
    "experiment.yaml",
    "provenance.json",
    "closed.json",
    "commands/0001.json",
    "decisions/000001.jsonl",
    "jobs/0001.json",
    "jobs/0001.submitted.json",
    "trials/0001/trial.json",
    "trials/0001/control/0001.json",
    "trials/0001/history-1.zip",
    "trials/0001/attempts/1/claim.json",
    "trials/0001/attempts/1/end.json",
    "trials/0001/attempts/1/verdict.json",
    "trials/0001/attempts/1/journal.jsonl",
    "workers/0001-0000.0/claim.json",
    "workers/0001-0000.0/beat.json",
)
OTHERS = (
    "index.sqlite",
    "site.yaml",
    "trials/0001/checkpoints/00000100.g1/MANIFEST.json",
    "trials/0001/attempts/1/logs/rank-0.log",
)


def harms(name: str) -> list[Callable[[Path], None]]:
    more = {".yaml": YAML_HARMS, ".jsonl": JOURNAL_HARMS}.get(Path(name).suffix, [])
    return [*HARMS, *more]


def harmed(good: Path, root: Path, name: str, harm: Callable[[Path], None]) -> Path:
    """A copy of an experiment with one bad file."""
    made = root / f"{harm.__name__}-{name.replace('/', '.')}"
    shutil.copytree(good, made)
    path = made / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    harm(path)
    return made


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = Builder(tmp_path_factory.mktemp("good") / "good-0000")
    built.job()
    built.worker()
    attempt = built.trial().attempt()
    attempt.metrics("validation", 100, validation_loss=0.5)
    attempt.checkpoint(100)
    attempt.log("epoch 1\n")
    attempt.end("completed")
    built.decide("state", state="RUNNING")
    built.command("tag", add=["x"])
    built.close()
    return built.paths.root


READER = """
import contextlib, io, json, resource, signal, sys, time
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
from hpcdet.cli import main
from hpcdet.read import report
from hpcdet.read.views import views
from hpcdet.read.lookup import find
from hpcdet.read.index import database  # not counted

def end(*_):
    raise SystemExit("it hangs")

signal.signal(signal.SIGALRM, end)
for line in sys.stdin:
    argv = json.loads(line)
    out, err = io.StringIO(), io.StringIO()
    read = lambda: int(open("/proc/self/io").read().split()[1])
    before = read()
    signal.alarm(120)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        rc = main.run(argv)
    signal.alarm(0)
    answer = [rc, out.getvalue(), err.getvalue(), read() - before]
    print(json.dumps(answer), flush=True)
"""


def run(root: Path, calls: list[list[str]]) -> list[tuple[int, str, str, int]]:
    """Verbs, one after the other in one process: exit code, stdout, stderr, bytes read."""
    env = {**os.environ, "HPCDET_ROOT": str(root), "XDG_CACHE_HOME": str(root.parent / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", READER, str(MEMORY)],
        input="".join(json.dumps(call) + "\n" for call in calls),
        capture_output=True,
        text=True,
        timeout=540,
        env=env,
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(calls), (calls[len(answers)], done.stderr[-3000:])
    return [(rc, out, err, read) for rc, out, err, read in answers]


def test_bad_experiments_cost_a_listing_one_line_each(good: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(good, root / "good-0000")
    bad = [
        harmed(good, root, name, harm).name
        for name in (*READ_BY_STATUS, *OTHERS)
        for harm in harms(name)
    ]
    calls = [["ls", "-o", "json"], ["status", "-o", "json"]]
    answers = run(root, calls)
    few = tmp_path / "few"
    for name in ("good-0000", *bad[::9]):
        shutil.move(root / name, few / name)
    calls += [["eff", "-o", "json"], ["ls"], ["index", "update"]]
    answers += run(few, calls[2:])
    for call, (rc, out, err, read) in zip(calls, answers, strict=True):
        assert rc == 0 and "Traceback" not in err, (call, err[-2000:])
        lines = json.loads(out)["warnings"] if "json" in call else err.splitlines()
        about = [match[1] for line in lines if (match := re.search(r"(\S+) is left out: ", line))]
        assert len(about) == len(set(about)) and set(about) <= set(bad), call
        assert all("\n" not in line and len(line) < 500 for line in lines)
        assert "good-0000" in out
        if "json" in call:
            there = {item["id"].partition("/")[0] for item in json.loads(out)["items"]}
            assert call not in calls[:2] or there | set(about) == {"good-0000", *bad}
        if call in calls[:2]:  # what such a file says is not guessed
            assert {f"{harm.__name__}-experiment.yaml" for harm in HARMS} <= set(about)
        assert read < len(bad) * (1 << 20) + 8 * READ, call
    pipes = [line for line in json.loads(answers[1][1])["warnings"] if line.startswith("fifo-")]
    assert len(pipes) >= 12  # some files a closed experiment is not asked for
    for name in ("trials/0001/trial.json", "decisions/000001.jsonl"):
        assert any(f"{name}: it is a named pipe instead of a file" in line for line in pipes)


VERBS = (
    *("status", "show", "metrics", "events", "explain", "logs", "eff", "best", "ckpt ls"),
    *("show -o json", "index update", "status -o csv", "config show"),
)


def test_a_verb_on_a_bad_experiment_ends_with_a_clear_error(good: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    chosen = {"experiment.yaml": harms("experiment.yaml"), "trials/0001/trial.json": HARMS}
    few = {each: [fifo, deep, of_other_types] for each in (*READ_BY_STATUS, *OTHERS)}
    bad = [
        (name, harmed(good, root, name, harm).name)
        for name, kinds in {**few, **chosen}.items()
        for harm in kinds
    ]
    calls = [(name, [*verb.split(), one]) for name, one in bad for verb in VERBS]
    calls += [(name, ["report", one, "--out", str(tmp_path / "report.html")]) for name, one in bad]
    refused = 0
    answers = run(root, [call for _, call in calls])
    for (name, call), (rc, _, err, read) in zip(calls, answers, strict=True):
        assert rc in (0, 3, 4, 9) and "UNEXPECTED" not in err and "bug" not in err, (call, rc, err)
        if rc in (4, 9):
            refused += 1
            assert re.search(f'{name}[:"]', err) and "hint" in err, (call, err)
        assert read < READ, call
    assert refused > len(calls) // 3


def test_a_line_that_lacks_what_its_kind_has_is_named(tmp_path: Path) -> None:
    root = tmp_path / "root"
    calls = []
    for kind in (*ATTEMPT, *DECISION):
        built = Builder(root / f"{kind.replace('_', '')}-0000")
        attempt = built.trial().attempt()
        if kind in ATTEMPT:
            attempt.line(kind)
        else:
            built.decide(kind)
        verbs = ("status", "events", "metrics", "explain", "index update", "eff", "show -o json")
        calls += [[*verb.split(), built.paths.id] for verb in verbs]
    for call, (rc, _, err, _) in zip(calls, run(root, calls), strict=True):
        assert rc == 9 or (rc == 0 and call[0] != "status"), (call, rc, err)
        assert rc == 0 or ("has no" in err and "hint" in err), (call, err)


def test_a_damaged_record_of_times_costs_a_listing_one_line(tmp_path: Path) -> None:
    root = tmp_path / "root"
    sound = {
        "rank": 0,
        "host": "a",
        "batches": 40,
        "seconds": 2.0,
        "steps": 40,
        "samples": 320,
        "slowest_s": 0.1,
        "phases": {"forward": 2.0},
        "use": {"cpu_cores": 0.5},
    }
    wrong: dict[str, Any] = {
        key: {"x": []} if isinstance(value, dict) else None for key, value in sound.items()
    }
    for key in sound:
        built = Builder(root / f"{key.replace('_', '')}-0000")
        built.trial().attempt().line("profile", **{**sound, key: wrong[key]})
    Builder(root / "good-0000").trial().attempt().line("profile", **sound)
    calls = [["eff", "-o", "json"], ["eff"]]
    calls += [["metrics", f"{key.replace('_', '')}-0000", "--group", "timing"] for key in sound]
    (rc, out, _, _), (plain, _, err, _), *one_by_one = run(root, calls)
    assert rc == plain == 0
    [row] = json.loads(out)["items"]
    assert row["id"] == "good-0000/1" and row["step_s"] == 0.05
    warnings = json.loads(out)["warnings"]
    for key in sound:
        said = f"{key.replace('_', '')}-0000 is left out: trials/0001/attempts/1/journal.jsonl: "
        assert any(said in line and f"'profile', has no valid '{key}'" in line for line in warnings)
        assert f"has no valid '{key}'" in err
    for key, (rc, _, err, _) in zip(sound, one_by_one, strict=True):
        assert rc == 9 and f"has no valid '{key}'" in err and "hint" in err, err


def test_a_file_is_opened_without_waiting_and_only_if_it_is_one(tmp_path: Path) -> None:
    for harm in (fifo, unix_socket, device, folder, looping):
        path = tmp_path / harm.__name__
        harm(path)
        for opened in (files.read, packed.open_file, files.read_json, packed.read_json):
            with pytest.raises(IntegrityError, match="instead of a file") as caught:
                opened(path)
            assert caught.value.where == str(path) and caught.value.hint
        with pytest.raises(IntegrityError):
            journal.read(path)
    path = tmp_path / "sparse"
    sparse(path)
    with pytest.raises(IntegrityError, match="it has more than"):
        files.read(path)
    assert journal.read(path) == []


WITHOUT_THE_DOOR = {
    "cli/artefacts/folders.py": "the archive that it has just made",
    "cli/govern/ledger.py": "a log that its user names, which may be a pipe",
    "cli/govern/model_layers.py": "the answer of the process that it has started",
    "cli/govern/policy.py": "policies of the installation",
    "cli/interactive/task_verbs.py": "the log that the door has opened, by its descriptor",
    "cli/run/simulate.py": "a file of nodes that its user names",
    "cli/setup/templates.py": "templates of the installation or of the site",
    "control/daemon.py": "the pipe of the process that it starts",
    "control/leader/daemon_registry.py": "the kernel's boot id",
    "read/left_row.py": "what the door has opened, by its descriptor",
    "read/exports/signed_model.py": "the file that its library has just written",
    "read/report/__init__.py": "the style of the installation",
    "read/report/embedded.py": "scripts of the installation",
    "store/folder/trust.py": "what the door has opened, by its descriptor",
    "store/fs/mounts.py": "the kernel's table of mounts",
    "store/fs/yaml12.py": "a config that its user names, which may be a pipe",
    "store/objects/object_store.py": "objects of a store, whose digests are compared",
    "store/trials/staged_data.py": "data that the door has opened, by their descriptors",
}


def test_every_other_file_is_opened_there() -> None:
    top = Path(hpcdet.__file__).parent
    found = set()
    for room in ("store", "read", "cli", "control", "config"):
        for path in (top / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and node.attr in ("read_bytes", "read_text"):
                    mine = isinstance(node.value, ast.Name) and node.value.id == "packed"
                    found |= set() if mine else {str(path.relative_to(top))}
                if isinstance(node, ast.Constant) and node.value == "rb":
                    found.add(str(path.relative_to(top)))
    assert found == {*WITHOUT_THE_DOOR, "store/fs/files.py"}


def test_every_node_of_a_document_counts_as_often_as_it_is_repeated(tmp_path: Path) -> None:
    values = "\n".join(f"k{n}: v" for n in range(yaml_bounds.NODES // 2 - 10))
    yaml_bounds.check(values)
    for harm in [*YAML_HARMS, deep, integer]:
        path = tmp_path / f"{harm.__name__}.yaml"
        harm(path)
        with pytest.raises(bounded_json.Unreasonable):
            yaml_bounds.check(path.read_text())
    with pytest.raises(bounded_json.Unreasonable, match="contains itself"):
        yaml_bounds.check("a: &a [*a]")
    for text in (b"[" * 10**6, b"[" * 400 + b"]" * 400, b"1" * 301, b"[" + b"1," * 500_000 + b"1]"):
        with pytest.raises(bounded_json.Unreasonable):
            bounded_json.json_value(text)


def test_a_record_that_no_reader_takes_is_not_written(tmp_path: Path) -> None:
    nested: list[object] = []
    for _ in range(200):
        nested = [nested]
    with journal.Writer(tmp_path / "journal.jsonl") as writer:
        for value in (nested, 10**400, "x" * journal.LONGEST):
            with pytest.raises(ValueError, match=r"deep|digits|longer"):
                writer.append("metrics", value=value)
        writer.append("metrics", value=list(range(100_000)))
    [line] = journal.read(tmp_path / "journal.jsonl")
    assert line["n"] == 1


def test_a_config_of_another_type_names_the_key(tmp_path: Path) -> None:
    built = Builder(tmp_path / "digits-1")
    text = built.paths.config.read_text()
    built.paths.config.write_text(text.replace("max_trials: 4", "max_trials: [4]"))
    with pytest.raises(IntegrityError, match=r"max_trials is list, which is no int"):
        resolved_config.load(built.paths.config)


@pytest.mark.skipif(os.getuid() != 0, reason="makes links as another user")
def test_a_strangers_link_gives_away_nothing_of_the_readers(tmp_path: Path) -> None:
    secret, theirs = tmp_path / "secret", tmp_path / "theirs"
    secret.write_text("mine alone")
    theirs.write_text("{}")
    os.chown(theirs, 4242, -1)
    for target, owner in ((secret, 0), (theirs, 4242)):
        link = tmp_path / f"to-{target.name}"
        link.symlink_to(target)
        os.chown(link, owner, -1, follow_symlinks=False)
        assert packed.read_bytes(link) == target.read_bytes()
    link = tmp_path / "to-secret"
    os.chown(link, 4242, -1, follow_symlinks=False)
    with pytest.raises(IntegrityError, match="another user's link"):
        packed.read_bytes(link)


@pytest.mark.skipif(os.getuid() != 0, reason="makes links as another user")
def test_what_a_strangers_link_leads_to_is_no_journal_to_write(tmp_path: Path) -> None:
    mine, link = tmp_path / "mine", tmp_path / "journal.jsonl"
    mine.write_text("mine alone\n")
    link.symlink_to(mine)
    os.chown(link, 4242, -1, follow_symlinks=False)
    with pytest.raises(IntegrityError, match="another user's link"):
        journal.Writer(link)
    assert mine.read_text() == "mine alone\n"


@pytest.mark.skipif(os.getuid() != 0, reason="makes links as another user")
def test_copies_of_a_strangers_experiment_hold_nothing_of_the_readers(tmp_path: Path) -> None:
    from hpcdet.interop.formats import ro_crate
    from hpcdet.interop.formats.exported import ExperimentExport
    from hpcdet.read.experiment.gather import gather
    from hpcdet.read.report import ReportOptions, write
    from hpcdet.registry.registry_place import Sharing
    from hpcdet.registry.version_files import VersionFolder

    home, built = tmp_path / "home", Builder(tmp_path / "theirs-7f3a")
    home.mkdir()
    (home / "id_rsa").write_text("PRIVATE-KEY")
    attempt = built.trial().attempt(ranks=1)
    attempt.paths.log(0).parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(built.paths.code)
    for link, target in ((attempt.paths.log(0), home / "id_rsa"), (built.paths.code, home)):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        os.chown(link, 4242, -1, follow_symlinks=False)
    with pytest.raises(IntegrityError, match="another user's link"):
        write(built.paths, tmp_path / "page.json", ReportOptions(format="json"))
    ro_crate.export(ExperimentExport(gather(built.paths)), str(tmp_path / "crate"))
    version = tmp_path / "version"
    version.mkdir()
    VersionFolder(version, Sharing(0o640, 0o750, 0o750, None)).capsule(built.paths)
    copies = [*(tmp_path / "crate").rglob("*"), *version.rglob("*")]
    assert copies and not [path for path in copies if path.name == "id_rsa"]
