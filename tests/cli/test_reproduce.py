"""``reproduce``: each factor alone, all of them, nothing else; what is gone; what is refused."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcdet.errors import ConfigError, IntegrityError
from hpcdet.jobs.create import provenance
from hpcdet.jobs.repeat import repetition, restored_data, restored_packages
from hpcdet.read.capsule import factors
from hpcdet.read.capsule.factors import FACTORS
from hpcdet.read.capsule.recorded import Capsule
from hpcdet.read.lookup import find
from hpcdet.store.config import numerics
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Claim
from hpcdet.store.fs import files, journal
from tests.commands import Cli

CONFIG = """\
name: leslie
entrypoint: model_def:Model
data: {{paths: {data}, scale: 2}}
hyperparameters: {{global_batch_size: 32, lr: 1.0}}
searcher: {{name: single, metric: error, max_length: 10}}
resources: {{cpus_per_slot: 1}}
reproducibility: {{experiment_seed: 7}}
environment: {{environment_variables: {{MKL_CBWR: AVX2}}}}
"""


class Past:
    """A run as it was submitted, with the environment that its attempt recorded."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self.cli, self.folder = cli, folder
        self.model, self.data = folder / "model", folder / "data"
        for place in (self.model, self.data / "more"):
            place.mkdir(parents=True, mode=0o700)
        (self.model / "model_def.py").write_text("class Model: ...\n")
        (self.data / "a.bin").write_text("one")
        (self.data / "more" / "b.bin").write_text("two")
        self.config = self.model / "c.yaml"
        self.config.write_text(CONFIG.format(data=self.data))

    def submit(self, *flags: str, recorded: bool = True, **parts: str) -> str:
        """Submit it and record an attempt as a rank does; the id."""
        asked = ("submit", self.config, "--site", "local", "--no-test", "--prepare", "-o", "id")
        id = self.cli(*asked, *flags).out.strip()
        if recorded:
            self.record(self.paths(id), **parts)
        return id

    def paths(self, id: str) -> ExperimentPaths:
        return find.experiment(id, self.cli.root)

    def record(self, paths: ExperimentPaths, **parts: str) -> None:
        """One attempt and its environment, as of this machine but for ``parts``."""
        whole = {
            "schema": 1,
            "parts": {
                "processor": numerics.processor(),
                "machine": platform.machine(),
                "python": platform.python_version(),
                **parts,
            },
            "threads": {"cores": numerics.cores()},
            "packages": provenance.packages(),
        }
        files.write_once(paths.fingerprint("ab12"), files.canonical(whole))
        attempt = paths.trial(1).attempt(1)
        attempt.root.mkdir(parents=True)
        Claim("0001-0000.0", "here").write_once(attempt.claim)
        writer = journal.Writer(attempt.journal)
        writer.append(
            "start", world=1, host="here", pid=1, checkpoint="", batches=0, fingerprint="ab12"
        )

    def named(self, id: str, *flags: str) -> dict[str, list[str]]:
        """The names by factor, of the factors that are not the same."""
        rows = self.cli("reproduce", id, *flags, "-o", "json").items
        assert [row["factor"] for row in rows] == list(FACTORS)
        for row in rows:
            assert (row["same"] is False) == bool(row["names"])
        return {row["factor"]: row["names"] for row in rows if row["same"] is not True}


@pytest.fixture
def past(cli: Cli, tmp_path: Path) -> Past:
    return Past(cli, tmp_path)


def test_nothing_is_named_where_nothing_has_changed(past: Past) -> None:
    assert past.named(past.submit()) == {}


def grown(past: Past) -> None:
    (past.data / "new.bin").write_text("three")


def rewritten(past: Past) -> None:
    (past.data / "a.bin").write_text("ONE")


def edited(old: str, new: str) -> Callable[[Past], None]:
    def edit(past: Past) -> None:
        text = past.config.read_text()
        assert old in text
        past.config.write_text(text.replace(old, new))

    return edit


def recoded(past: Past) -> None:
    (past.model / "model_def.py").write_text("class Model: x = 1\n")
    (past.model / "helper.py").write_text("")


ALONE: list[tuple[str, Callable[[Past], None], list[str]]] = [
    ("data", grown, ["new.bin"]),
    ("data", rewritten, ["a.bin"]),
    ("data", edited("scale: 2", "scale: 3"), ["data.scale"]),
    ("hyperparameters", edited("lr: 1.0", "lr: 2.0"), ["hyperparameters.lr"]),
    ("hyperparameters", edited("max_length: 10", "max_length: 11"), ["searcher.max_length"]),
    ("seeds", edited("experiment_seed: 7", "experiment_seed: 8"), [factors.SEED]),
    ("seeds", edited("experiment_seed: 7", "deterministic: false"), [factors.SEED]),
    ("threads", edited("cpus_per_slot: 1", "cpus_per_slot: 2"), ["resources.cpus_per_slot"]),
    (
        "determinism",
        edited("experiment_seed: 7", "experiment_seed: 7, deterministic: true"),
        ["reproducibility.deterministic"],
    ),
    (
        "threads",
        edited("AVX2", "AVX2, OMP_NUM_THREADS: '2'"),
        ["environment.environment_variables.OMP_NUM_THREADS"],
    ),
    (
        "threads",
        edited("experiment_seed: 7", "experiment_seed: 7, threads: 1"),
        ["reproducibility.threads"],
    ),
    (
        "determinism",
        edited("experiment_seed: 7", "experiment_seed: 7, device: cpu"),
        ["reproducibility.device"],
    ),
    (
        "determinism",
        edited("AVX2", "COMPATIBLE"),
        ["environment.environment_variables.MKL_CBWR"],
    ),
    ("code", recoded, ["helper.py", "model_def.py"]),
]


@pytest.mark.parametrize(("factor", "change", "names"), ALONE)
def test_each_factor_alone_is_named_and_nothing_else(
    past: Past, factor: str, change: Callable[[Past], None], names: list[str]
) -> None:
    id = past.submit()
    change(past)
    found = past.named(id)
    found["code"] = [name for name in found.get("code", []) if name != "c.yaml"]
    if not found["code"]:
        del found["code"]  # the config is a file of the code, and was edited
    assert found == {factor: names}


def test_cores_are_a_cause_only_where_no_number_of_threads_is_set(
    past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = past.submit()
    edited("experiment_seed: 7", "experiment_seed: 7, threads: 1")(past)
    bound = past.submit()
    monkeypatch.setattr(numerics, "cores", lambda: 77)
    assert past.named(bound) == {}
    assert past.named(free) == {
        "code": ["c.yaml"],
        "threads": ["cores", "reproducibility.threads"],  # more cores would count again
    }
    edited(", threads: 1", "")(past)
    assert past.named(free) == {"threads": ["cores"]}


def test_packages_and_machine_are_those_that_the_attempt_recorded(past: Past) -> None:
    id = past.submit(processor="CPU of old", python="3.1.0")
    assert past.named(id) == {"libraries": ["python"], "hardware": ["processor"]}
    paths = past.paths(id)
    whole = json.loads(paths.fingerprint("ab12").read_text())
    whole["packages"] |= {"numpy": "0.1", "gone": "3"}
    paths.fingerprint("ab12").unlink()
    files.write_once(paths.fingerprint("ab12"), files.canonical(whole))
    rows = past.cli("reproduce", id, "-o", "json").items
    [row] = [row for row in rows if row["factor"] == "libraries"]
    assert row["names"] == ["gone", "numpy", "python"]
    assert "numpy=0.1" in row["then"] and f"numpy={provenance.packages()['numpy']}" in row["now"]


def test_packages_that_are_taken_as_they_are_now_are_said_to_be_others(
    past: Past, tmp_path: Path
) -> None:
    capsule = Capsule.of(find.reference(past.submit(), past.cli.root))
    made = repetition.restore(capsule, (), tmp_path, lock=False).packages
    assert made is not None and not made.unrestored, "nothing has changed"
    then = {**provenance.packages(), "numpy": "0.1", **{f"gone-{n}": "3" for n in range(9)}}
    made = restored_packages.as_now(then, "3.1.0")
    [python, packages] = made.unrestored
    assert made.python == "" and python.startswith("python 3.1.0: ")
    assert packages.startswith("packages: gone-0 3 (now not there), gone-1 3")
    assert packages.endswith(", 4 more")


def test_all_of_them_at_once_and_what_a_command_line_said(past: Past) -> None:
    id = past.submit("--set", "hyperparameters.lr=0.5", "--set", "resources.cpus_per_slot=2")
    grown(past)
    edited("experiment_seed: 7", "deterministic: true")(past)
    assert past.named(id) == {
        "data": ["new.bin"],
        "hyperparameters": ["hyperparameters.lr"],
        "code": ["c.yaml"],
        "seeds": [factors.SEED],
        "threads": ["resources.cpus_per_slot"],
        "determinism": ["reproducibility.deterministic"],
    }
    sets = ("hyperparameters.lr=0.5", "resources.cpus_per_slot=2", f"{factors.SEED}=7",
            "reproducibility.deterministic=false")  # fmt: skip
    again = [word for one in sets for word in ("--set", one)]
    assert past.named(id, *again) == {"data": ["new.bin"], "code": ["c.yaml"]}
    rows = past.cli("reproduce", id, "-o", "json").items
    hyper = next(row for row in rows if row["factor"] == "hyperparameters")
    assert (hyper["then"], hyper["now"]) == (
        "hyperparameters.lr=0.5 (--set)",
        "hyperparameters.lr=1",
    )


def test_another_folder_is_looked_at_where_it_is_named(past: Past, tmp_path: Path) -> None:
    id = past.submit()
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    for name in ("model_def.py", "c.yaml"):
        (other / name).write_text((past.model / name).read_text())
    assert past.named(id, "--model-dir", str(other)) == {}
    recoded(past)  # of the former folder
    assert past.named(id, "--model-dir", str(other)) == {}
    (other / "c.yaml").unlink()
    ran = past.cli("reproduce", id, "--model-dir", other)
    assert "the recorded config stands for it" in ran.err and "code: c.yaml" in ran.err
    past.cli("reproduce", id, "--model-dir", tmp_path / "nowhere", code=4)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_of_somebody_elses_run_nothing_that_it_names_is_read_or_run(past: Past) -> None:
    id = past.submit()
    os.chown(past.paths(id).root, 4242, -1)
    rows = {row["factor"]: row for row in past.cli("reproduce", id, "-o", "json").items}
    for factor in ("code", "data"):
        assert rows[factor]["same"] is None and "somebody else's" in rows[factor]["now"]
    recoded(past)
    assert past.named(id, "--model-dir", str(past.model)) == {"code": ["helper.py", "model_def.py"]}
    assert "belongs to" in past.cli("reproduce", id, "--run", code=4).err


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_the_interpreter_that_somebody_elses_run_names_is_not_asked(past: Past) -> None:
    mark, program = past.folder / "mark", past.folder / "program"
    program.write_text(f'#!/bin/sh\ntouch {mark}\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    edited("environment: {", f"environment: {{python: {program}, ")(past)
    id = past.submit()
    past.named(id)
    assert mark.exists(), "one's own is asked"
    mark.unlink()
    os.chown(past.paths(id).root, 4242, -1)
    for flags in ([], ["--model-dir", str(past.folder)]):  # there is no config in that folder
        past.named(id, *flags)
        assert not mark.exists()


def test_code_that_others_may_change_is_not_run_again(past: Past) -> None:
    id = past.submit()
    past.paths(id).code.chmod(0o777)
    said = past.cli("reproduce", id, "--run", "--env", "current", code=4).err
    assert "the code may be changed by everybody" in said


@pytest.mark.parametrize(
    ("name", "version"),
    [("--index-url=http://127.0.0.1:9", "1"), ("x @ http://127.0.0.1:9/x.whl ;", "1"),
     ("./here", "1"), ("x", "1 --pre"), ("x", "")],
)  # fmt: skip
def test_pip_is_given_packages_and_nothing_else(tmp_path: Path, name: str, version: str) -> None:
    with pytest.raises(IntegrityError, match="no package and version"):
        restored_packages.restore({name: version}, platform.python_version(), tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_an_environment_that_somebody_else_has_put_there_is_not_used(tmp_path: Path) -> None:
    there = tmp_path / restored_packages.FOLDER / restored_packages._name({"gone": "1"})
    (there / "bin").mkdir(parents=True)
    (there / "bin" / "python").symlink_to("/bin/true")
    for folder in (there, there.parent, there.parent.parent):
        os.chown(folder, 4242, -1)
        with pytest.raises(ConfigError, match="the environment belongs to"):
            restored_packages.restore({"gone": "1"}, platform.python_version(), tmp_path)
        os.chown(folder, 0, -1)


def test_what_is_not_known_is_said_and_not_guessed(past: Past) -> None:
    edited("paths:", "where:")(past)
    id = past.submit(recorded=False)
    rows = {row["factor"]: row for row in past.cli("reproduce", id, "-o", "json").items}
    assert rows["data"]["same"] is None and "no data.paths" in rows["data"]["then"]
    assert rows["hardware"]["same"] is None and "no attempt" in rows["hardware"]["then"]
    past.model.rename(past.folder / "away")
    rows = {row["factor"]: row for row in past.cli("reproduce", id, "-o", "json").items}
    assert rows["code"]["same"] is None and "is gone" in rows["code"]["now"]
    table = past.cli("reproduce", id).out
    assert "unknown" in table


def test_comparing_imports_no_torch(past: Past) -> None:
    argv = ["reproduce", past.submit()]
    code = (
        f"import sys; from hpcdet.cli import main; print(main.run({argv}), 'torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.endswith("0 False\n"), ran.stderr


def test_recorded_files_that_are_gone_or_changed_end_with_9(past: Past) -> None:
    id = past.submit()
    rewritten(past)
    (past.data / "more" / "b.bin").unlink()
    before = set(past.cli.root.iterdir())
    said = past.cli("reproduce", id, "--run", code=9).err
    assert "a.bin has changed" in said and "b.bin is missing" in said
    (past.paths(id).code / "model_def.py").write_text("other")
    assert "model_def.py has changed" in past.cli("reproduce", id, "--run", code=9).err
    manifest = past.paths(id).data_manifest(1)
    manifest.write_text(manifest.read_text().replace("a.bin", "c.bin"))
    past.cli("reproduce", id, code=9)
    assert set(past.cli.root.iterdir()) == before, "nothing was made"


def test_only_the_recorded_files_are_seen_where_others_were_added(
    past: Past, tmp_path: Path
) -> None:
    capsule = Capsule.of(find.reference(past.submit(), past.cli.root))
    assert capsule.data is not None
    [same] = restored_data.restore(capsule.data, (), tmp_path)
    assert same.place.path == past.data, "nothing was added, so nothing is linked"
    grown(past)
    for _ in range(2):
        [alone] = restored_data.restore(capsule.data, (), tmp_path)
        seen = {str(path.relative_to(alone.place.path)) for path in alone.place.path.rglob("*")}
        assert seen == {"a.bin", "more", "more/b.bin"}
        assert (alone.place.path / "more" / "b.bin").read_text() == "two"
    moved = tmp_path / "moved"
    past.data.rename(moved)
    [elsewhere] = restored_data.restore(capsule.data, [moved], tmp_path)
    assert (elsewhere.place.path / "a.bin").read_text() == "one"


def test_packages_of_another_version_are_installed_and_the_others_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scripts import leslie

    leslie.wheel(tmp_path / "wheels", "1.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    here = provenance.packages()
    this = platform.python_version()
    assert restored_packages.restore(here, this, tmp_path).python == "", "this one has them"
    kept = {name: version for name, version in here.items() if name in ("numpy", "hpcdet")}
    made = restored_packages.restore({**kept, "leslie-scaling": "1.0"}, this, tmp_path)
    assert made.installed == ["leslie-scaling==1.0"] and not made.unrestored
    code = (
        "import json, numpy, hpcdet, leslie_scaling; from importlib import metadata; "
        "print(json.dumps({one.name: one.version for one in metadata.distributions()}))"
    )
    ran = subprocess.run([made.python, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == {**kept, "leslie-scaling": "1.0"}
    own: Any = SimpleNamespace(
        packages=json.loads(ran.stdout),
        python=this,
        config=SimpleNamespace(environment=SimpleNamespace(python=made.python)),
        record={"executable": sys.executable},
    )
    assert repetition._packages(own, tmp_path / "unused").python == made.python
    assert not (tmp_path / "unused").exists(), "the interpreter of the run has them still"
    stamp = os.stat(made.python).st_ctime_ns
    restored_packages.restore({**kept, "leslie-scaling": "1.0"}, this, tmp_path)
    assert os.stat(made.python).st_ctime_ns == stamp, "it is made once"
    with pytest.raises(Exception, match=r"leslie-scaling==9") as told:
        restored_packages.restore({**kept, "leslie-scaling": "9"}, this, tmp_path)
    assert getattr(told.value, "exit_code", 0) == 9
    lacking = restored_packages.restore({**kept, "leslie-scaling": "1.0"}, "3.1.0", tmp_path)
    assert any("python 3.1.0" in one for one in lacking.unrestored)
    folder = tmp_path / restored_packages.FOLDER
    assert len(list(folder.iterdir())) == 1, "what failed has left nothing"


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["nobody-0000"], 3, "nobody"),
        (["{id}", "--run", "--ablate"], 2, "two things"),
        (["{id}", "--env", "lock"], 2, "--run"),
        (["{id}", "--run", "--set", "a=1"], 2, "no say"),
        (["{id}", "--env", "other", "--run"], 2, "other"),
        (["{id}", "--set", "nothing"], 2, "sets nothing"),
        (["{id}", "--set", "resources.cpus_per_slot=many"], 4, "cpus_per_slot"),
        (["{id}/7"], 3, "no trial 7"),
        (["{id}", "--site", "nowhere"], 4, "nowhere"),
        (["{id}", "--run"], 4, "never started"),
    ],
)
def test_what_makes_no_sense_is_refused(past: Past, flags: list[str], code: int, said: str) -> None:
    id = past.submit(recorded=False)
    assert said in past.cli("reproduce", *(one.format(id=id) for one in flags), code=code).err


@pytest.mark.parametrize("flag", ["--run", "--ablate"])
def test_what_began_from_another_trial_is_not_repeated_from_nothing(past: Past, flag: str) -> None:
    """As in a fork: other bits would say nothing about what has changed."""
    id = past.submit()
    record = past.cli.root / id / "trials" / "0001" / "trial.json"
    value = json.loads(record.read_text())
    record.write_text(json.dumps({**value, "parent": "../digits-7f3a/1@400 batches"}))
    said = past.cli("reproduce", id, flag, code=4).err
    assert "it began from trial ../digits-7f3a/1 at 400 batches" in said
    past.cli("reproduce", id)


def test_every_key_of_the_config_has_a_factor_or_none_by_decision() -> None:
    from hpcdet.config.check import problems

    without = {key.partition(".")[0] for key in problems.all_keys() if not factors.factor_of(key)}
    of_bits = {"hyperparameters", "optimizations", "reproducibility", "distributed", "entrypoint"}
    assert not without & of_bits
    assert factors.factor_of("searcher.max_length") == "hyperparameters"
    assert factors.factor_of("resources.walltime_s") is None


def outcome_of(**more: Any) -> Any:
    from hpcdet.read.capsule.training_outcome import Outcome

    given = {"values": {10: 0.5}, "saved": {10: "aa"}, "kept": {10: "aa"}, **more}
    return Outcome("error", **given)


def test_bits_are_the_same_only_if_checkpoints_say_so() -> None:
    from hpcdet.read.capsule.training_outcome import compared, same_bits

    then = outcome_of()
    assert same_bits(then, outcome_of())
    assert not same_bits(then, outcome_of(saved={10: "bb"}))
    assert not same_bits(then, outcome_of(values={10: 0.6}))
    assert not same_bits(then, outcome_of(saved={11: "aa"})), "values alone prove nothing"
    assert same_bits(then, outcome_of(values={10: 0.5, 20: 0.4})), "it may have gone further"
    assert not same_bits(then, outcome_of(values={20: 0.5}))
    [row] = compared(then, outcome_of(saved={11: "aa"}))
    assert (row.step, row.now, row.same) == (10, "", None)
