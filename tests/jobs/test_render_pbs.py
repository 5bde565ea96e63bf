"""Batch scripts for PBS: as reviewed, in every mode, with options of sites and users."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcdet.errors import ConfigError
from hpcdet.jobs.script.render import render
from hpcdet.policy.codes import PolicyRefused
from hpcdet.schedulers.common.job_script import Translation
from hpcdet.schedulers.common.request import NodeRequest, UserOptions
from hpcdet.schedulers.pbs.pbs_script import SCRIPT
from hpcdet.site import Site
from hpcdet.site_files import load_site as sites
from hpcdet.store.config.placement import Pbs
from hpcdet.store.config.resolved_config import Environment, Resolved
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent
from tests import RECORDED
from tests.jobs.test_render import EXPERIMENT, HOSTILE

GOLDEN = RECORDED / "scripts" / "generic-pbs.sh"
JOB = {"PATH": os.defpath, "PBS_JOBID": "12.vm"}
INTENT = Intent(1, "digits-7f3a-1", "hpcdet:digits-7f3a:1-ab12", tasks=1, throttle=1, term=1)


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No site file or template of whoever runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("HPCDET_SITE_DIR", raising=False)
    monkeypatch.chdir(tmp_path)


def pbs(**values: Any) -> Site:
    """The generic PBS site with some values of its own."""
    return Site.model_validate({**sites.load("generic-pbs").plain(), "python": "py", **values})


def script(
    site: Site,
    experiment: Resolved = EXPERIMENT,
    intent: Intent = INTENT,
    root: str = "/scratch/digits-7f3a",
) -> str:
    return render(experiment, site, intent, ExperimentPaths(Path(root)), {"PATH": "/usr/bin"})


def directives(text: str) -> list[str]:
    """The words of the ``#PBS`` lines, as ``qsub`` reads them: up to the first command."""
    found: list[str] = []
    for line in text.splitlines()[1:]:
        if line and not line.startswith("#"):
            break
        if line.startswith("#PBS "):
            found += [" ".join(shlex.split(line.removeprefix("#PBS ")))]
    return found


def with_args(*arguments: str) -> Resolved:
    return replace(EXPERIMENT, pbs=Pbs(pbsbatch_args=list(arguments)))


def test_the_script_of_a_generic_pbs_site_is_as_reviewed() -> None:
    """Read the difference, then write the new text to the file if it is meant."""
    assert script(pbs(setup=["module load cuda"])) == GOLDEN.read_text()


@pytest.mark.parametrize("mode", [{}, {"rerun": "server"}, {"rerun": "server", "arrays": True}])
@pytest.mark.parametrize("root", ["/scratch/x", *(f"/s/{name}" for name in HOSTILE)])
def test_every_mode_gives_a_script_that_bash_reads(mode: dict[str, Any], root: str) -> None:
    experiment = replace(EXPERIMENT, environment=Environment({"TEXT": "\n".join(HOSTILE)}))
    for intent in (INTENT, replace(INTENT, tasks=5, throttle=2), replace(INTENT, watches="7.vm")):
        text = script(pbs(capabilities=mode), experiment, intent, root)
        done = subprocess.run(
            ["bash", "-n"], input=text, text=True, capture_output=True, timeout=60, check=False
        )
        assert done.stderr == ""


def test_a_worker_is_one_chunk_for_each_host() -> None:
    said = directives(script(pbs(chunk={"ngpus": "{{ slots_per_node }}"}, skip=["mem"])))
    assert "-l select=2:ncpus=6:mpiprocs=2:ngpus=2" in said
    assert "-l place=scatter" in said and "-l walltime=27:46:40" in said
    assert "-q gpu" in said
    assert "-l place=scatter:excl" in directives(script(pbs(place="scatter:excl")))


def test_jobs_are_never_taken_for_rerunnable_unless_the_site_says_so() -> None:
    assert "-r n" in directives(script(pbs()))
    server = pbs(capabilities={"rerun": "server"})
    assert "-r y" in directives(script(server))
    wide = directives(script(server, intent=replace(INTENT, tasks=5, throttle=2)))
    assert "-J 0-4%2" in wide
    assert not [one for one in directives(script(server)) if one.startswith("-J")]


def test_directives_of_a_site_are_options_and_resources() -> None:
    site = pbs(directives={"account": "acct", "project": "p 1", "filesystems": "home:eagle"})
    said = directives(script(site))
    assert {"-A acct", "-P p 1", "-l filesystems=home:eagle"} <= set(said)


def test_a_priority_is_that_of_the_jobs() -> None:
    """42 is neutral, as in Determined: lower ones come first."""
    for priority, asked in ((1, "-p 410"), (42, "-p 0"), (50, "-p -80")):
        need = replace(EXPERIMENT.resources, priority=priority)
        said = directives(script(pbs(), replace(EXPERIMENT, resources=need)))
        assert asked in said
    assert not [one for one in directives(script(pbs())) if one.startswith("-p")]


def test_options_of_the_user_win() -> None:
    site = pbs(directives={"account": "acct", "priority": 5})
    said = directives(script(site, with_args("-A mine", "-l place=excl,arch=x86", "-m n")))
    assert {"-A mine", "-l place=excl", "-l arch=x86", "-p 5", "-m n"} <= set(said)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["-N x"], "name is set by hpcdet itself"),
        (["-l select=1:ncpus=1"], "select is set by hpcdet itself"),
        (["-J 0-3"], "array is set by hpcdet itself"),
        (["-r y"], "rerun is set by hpcdet itself"),
        (["-v A=1"], "tag is set by hpcdet itself"),
        (["-V"], "-V is not for jobs"),
        (["-I"], "-I is not for jobs"),
        (["-S /bin/sh"], "-S is not for jobs"),
        (["-l walltime"], "write NAME=VALUE"),
        (["-A"], "-A has no value"),
        (["--account=x"], "no option of qsub"),
        (["-A 'x"], "a quote is not closed"),
    ],
)
def test_options_that_hpcdet_sets_itself_are_refused_by_name(
    arguments: list[str], what: str
) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        SCRIPT.check(UserOptions(tuple(arguments), "pbs.pbsbatch_args"))
    assert caught.value.where == "pbs.pbsbatch_args"


def test_a_control_character_ends_no_directive() -> None:
    with pytest.raises(ConfigError, match="control character"):
        script(pbs(directives={"account": "x\n#PBS -q other"}))
    with pytest.raises(ConfigError, match="no resource of a chunk"):
        script(pbs(chunk={"ngpus": "1+1:ncpus=9"}))


def test_jobs_wait_as_they_are_told() -> None:
    held = directives(script(pbs(), intent=replace(INTENT, held=True, after=["7.vm", "8.vm"])))
    assert "-h" in held and "-W depend=afterok:7.vm:8.vm" in held
    behind = replace(INTENT, after=["7.vm"], behind=["8[].vm", "9.vm"])
    assert "-W depend=afterok:7.vm,afterany:8[].vm:9.vm" in directives(script(pbs(), intent=behind))
    watching = script(pbs(), intent=replace(INTENT, watches="7.vm"))
    said = directives(watching)
    assert "-W depend=afternotok:7.vm" in said and "-l walltime=00:15:00" in said
    assert "-l select=1:ncpus=1:mpiprocs=1:mem=1024mb" in said and "-r n" in said
    assert "hpcdet.worker.sentinel" in watching and "handover" not in watching
    # the parent of an array says nothing about its tasks
    of_array = directives(script(pbs(), intent=replace(INTENT, watches="7[].vm")))
    assert "-W depend=afterany:7[].vm" in of_array


def test_a_policy_asks_for_resources_of_each_host() -> None:
    known: dict[str, dict[str, Any]]
    known = {"phi": {"select": {"gov_phi": True}, "queue": "phi"}, "net": {"select": {"net": "a"}}}
    asked = SCRIPT.node_request(["phi", "net"], known, "s")
    assert asked.features == ("gov_phi=True", "net=a")
    assert asked.settings == {"partition": "phi"}
    SCRIPT.refuse_undoing("phi", UserOptions(), asked)
    with pytest.raises(PolicyRefused, match="would undo"):
        SCRIPT.refuse_undoing("other", UserOptions(), asked)
    with pytest.raises(PolicyRefused, match="several"):
        SCRIPT.node_request(["a", "b"], {"a": {"queue": "x"}, "b": {"queue": "y"}}, "s")
    with pytest.raises(PolicyRefused, match="does not say"):
        SCRIPT.node_request(["a"], {"a": {}}, "s")
    with pytest.raises(ValueError, match="no resource of a host"):
        SCRIPT.check_capability({"select": {"a": "1:ncpus=9"}})
    assert isinstance(asked, NodeRequest)


def test_output_never_falls_into_the_home_folder(tmp_path: Path) -> None:
    """The script really runs, with a worker that tells what it was given."""
    root = tmp_path / "exp"
    (root / "jobs" / "0001.logs").mkdir(parents=True)
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\necho "$PWD" "$@"\nexit 0\n')
    python.chmod(0o755)
    experiment = replace(EXPERIMENT, environment=Environment(python=str(python)))
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        ["bash"],
        input=script(pbs(), experiment, root=str(root)),
        text=True,
        capture_output=True,
        cwd=home,
        env={
            "PATH": os.defpath,
            "HOME": str(home),
            "PBS_JOBID": "12[3].vm",
            "PBS_ARRAY_INDEX": "3",
        },
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    said = (root / "jobs" / "0001.logs" / "12[3].vm.log").read_text()
    assert said.startswith(f"{root} -Pm hpcdet.worker {root} --submission 1")
    assert "--index 3" in said and not list(home.iterdir())


@pytest.mark.parametrize(
    ("code", "rerun", "handed"),
    [(0, "none", 0), (1, "none", 1), (85, "none", 1), (85, "server", 0)],
)
def test_the_script_hands_over_after_a_worker_that_could_not(
    tmp_path: Path, code: int, rerun: str, handed: int
) -> None:
    root = tmp_path / "exp"
    (root / "jobs" / "0001.logs").mkdir(parents=True)
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/bash\necho "$$ $@"\ncase "$*" in *handover*) exit 0;; esac\nexit {code}\n'
    )
    python.chmod(0o755)
    experiment = replace(EXPERIMENT, environment=Environment(python=str(python)))
    done = subprocess.run(
        ["bash"],
        input=script(pbs(capabilities={"rerun": rerun}), experiment, root=str(root)),
        text=True,
        env=JOB,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    worker, *others = (root / "jobs" / "0001.logs" / "12.vm.log").read_text().splitlines()
    assert len(others) == handed
    if others:
        assert f"--pid {worker.split()[0]} --code {code}" in others[0]


def translated(*lines: str) -> Translation:
    return SCRIPT.translate("\n".join(["#!/bin/bash", *lines]), "mine")


def test_a_job_script_becomes_a_config() -> None:
    found = translated(
        "#PBS -N bert",
        "#PBS -l select=2:ncpus=32:mpiprocs=4:ngpus=4:mem=64gb",
        "#PBS -l walltime=02:00:00,filesystems=home:eagle",
        "#PBS -l place=scatter",
        "#PBS -q prod -A acct",
        "#PBS -j oe",
        "module load conda",
        "cd $PBS_O_WORKDIR",
        "mpiexec -n 8 -ppn 4 python train.py --fast",
    )
    assert found.config["name"] == "bert"
    assert found.config["entrypoint"] == "python train.py --fast"
    assert found.config["resources"] == {
        "slots_per_trial": 8,
        "nodes": 2,
        "cpus_per_slot": 8,
        "memory_per_slot": 16 * 2**30,
        "walltime_s": 7200,
        "resource_pool": "prod",
    }
    assert found.config["pbs"]["pbsbatch_args"] == [
        "-l filesystems=home:eagle",
        "-l place=scatter",
        "-A acct",
    ]
    assert found.setup == ["module load conda"]
    left = "\n".join(found.left)
    assert "ngpus=4: of each chunk" in left and "-j oe" in left and "snapshot" in left


def test_what_a_job_script_has_no_word_for_is_listed() -> None:
    found = translated(
        "#PBS -l nodes=2:ppn=8",
        "#PBS -J 0-9",
        "#PBS -V",
        "#PBS -W depend=afterok:12.vm",
        "python train.py $PBS_ARRAY_INDEX $PBS_JOBID",
        "#PBS -q late",
    )
    assert found.config["resources"] == {"slots_per_trial": 2, "nodes": 2, "cpus_per_slot": 8}
    left = "\n".join(found.left)
    for word in (
        "-J 0-9: a search",
        "-V: jobs get",
        "submit --after",
        "$PBS_ARRAY_INDEX",
        "so far down",
    ):
        assert word in left
    assert "$PBS_JOBID" not in left
