"""Batch scripts: every shipped site, hostile names, options, templates that are wrong."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import pytest

from hpcdet.errors import ConfigError, HpcdetError
from hpcdet.jobs.script import environment
from hpcdet.jobs.script.render import OtherCommand, render
from hpcdet.schedulers.common import variables
from hpcdet.schedulers.slurm import slurm_names
from hpcdet.schedulers.slurm.script import slurm_options
from hpcdet.site import Site
from hpcdet.site_files import load_site as sites
from hpcdet.store.config.placement import Resources, UserOptions
from hpcdet.store.config.resolved_config import Environment, Resolved, Slurm
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent
from tests import RECORDED

GOLDEN = RECORDED / "scripts" / "generic-slurm.sh"
INTENT = Intent(1, "digits-7f3a-1", "hpcdet:digits-7f3a:1-ab12", tasks=4, throttle=2, term=1)
EXPERIMENT = Resolved(
    name="digits",
    resources=Resources(
        slots_per_trial=4,
        nodes=2,
        slots_per_node=2,
        cpus_per_slot=3,
        memory_per_slot=3 * 1024**3,
        walltime_s=100_000,
        resource_pool="gpu",
    ),
)
HOSTILE = ["a b", "it's", 'say "x"', "$(touch gotcha)", "`id`", "a;b&c|d", "100%j", "-rf", "é\\n"]


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No site file or template of whoever runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("HPCDET_SITE_DIR", raising=False)
    monkeypatch.chdir(tmp_path)


def slurm(**values: Any) -> Site:
    """The generic Slurm site with some values of its own."""
    return Site.model_validate({**sites.load("generic-slurm").plain(), "python": "py", **values})


def script(
    site: Site, experiment: Resolved = EXPERIMENT, root: str = "/scratch/digits-7f3a"
) -> str:
    return render(experiment, site, INTENT, ExperimentPaths(Path(root)), {"PATH": "/usr/bin"})


def directives(text: str) -> dict[str, str]:
    """The ``#SBATCH`` lines as Slurm reads them: up to the first command, quotes removed."""
    found = {}
    for line in text.splitlines()[1:]:
        if line and not line.startswith("#"):
            break
        if line.startswith("#SBATCH "):
            name, _, value = line.removeprefix("#SBATCH --").partition("=")
            found[name] = shlex.split(value)[0] if value else ""
    return found


def bash(text: str, *flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", *flags],
        input=text,
        text=True,
        capture_output=True,
        env={"PATH": os.defpath, **environ},
        timeout=120,
        check=False,
    )


def test_the_script_of_a_generic_slurm_site_is_as_reviewed() -> None:
    """Read the difference, then write the new text to the file if it is meant."""
    text = script(slurm(capabilities={"requeue": "user"}, setup=["module load cuda"]))
    assert text == GOLDEN.read_text()


@pytest.mark.parametrize("name", ["generic-slurm", "local"])
@pytest.mark.parametrize("root", ["/scratch/x", *(f"/s/{name}" for name in HOSTILE)])
def test_every_site_gives_a_script_that_bash_reads(name: str, root: str) -> None:
    experiment = replace(EXPERIMENT, environment=Environment({"TEXT": "\n".join(HOSTILE)}))
    text = script(sites.load(name), experiment, root)
    assert bash(text, "-n").stderr == ""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_words_and_never_commands(tmp_path: Path, name: str) -> None:
    """The script really runs, with a worker and scontrol that tell what they were given."""
    root = tmp_path / name
    root.mkdir()
    told = tmp_path / "told"
    python = tmp_path / "py thon"
    python.write_text(
        f'#!/bin/bash\nprintf "%s\\n" "$@" "$TEXT" >> {shlex.quote(str(told))}\nexit 0\n'
    )
    python.chmod(0o755)
    experiment = replace(EXPERIMENT, environment=Environment({"TEXT": name}, python=str(python)))
    text = script(slurm(), experiment, str(root))
    said = directives(text)
    assert said["chdir"] == str(root)
    assert said["output"] == str(root).replace("\\", "\\\\").replace("%", "%%") + (
        "/jobs/0001.logs/%A_%a.log"
    )
    done = bash(text, SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="3", SLURM_JOB_ID="9")
    assert (done.returncode, done.stderr) == (0, "")
    words = ["-Pm", "hpcdet.worker", str(root), "--submission", "1", "--digest", "", "--index", "3"]
    assert told.read_text().splitlines() == [*words, name]
    assert not (tmp_path / "gotcha").exists()


def test_a_line_break_cannot_end_a_directive() -> None:
    with pytest.raises(ConfigError, match="control character"):
        script(slurm(), root="/scratch/x\n#SBATCH --uid=0")
    with pytest.raises(ConfigError, match="control character"):
        script(slurm(directives={"account": "a\nrm -rf ~"}))


def test_a_task_requeues_itself_only_if_told_to_and_never_the_whole_array(tmp_path: Path) -> None:
    """``again`` says yes after code 85; the wrapper then requeues A_T, once, with TERM ignored."""
    told, python, scontrol = tmp_path / "told", tmp_path / "python", tmp_path / "scontrol"
    python.write_text(
        "#!/bin/bash\n"
        'case "$*" in\n'
        f'*worker.again*) echo "$*" >> {told}; [ "${{@: -1}}" = 85 ] ;;\n'
        f'*worker.handover*) echo "$*" >> {told} ;;\n'
        "*) exit $CODE ;;\nesac\n"
    )
    # kill the script as Slurm does at a requeue: it has to go on to its end all the same
    scontrol.write_text(f'#!/bin/bash\nkill -TERM $PPID; echo "scontrol $*" >> {told}\n')
    for file in (python, scontrol):
        file.chmod(0o755)
    experiment = replace(EXPERIMENT, environment=Environment({}, python=str(python)))
    paths = ExperimentPaths(tmp_path / "exp")
    site = slurm(capabilities={"requeue": "user"})
    text = render(experiment, site, INTENT, paths, {"PATH": f"{tmp_path}:{os.defpath}"})
    job = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_ID": "7"}

    assert bash(text, CODE="85", SLURM_RESTART_COUNT="2", **job).returncode == 85
    allowed, taken_back = (f"scontrol update JobId=7_3 Requeue={on}" for on in (1, 0))
    assert told.read_text().splitlines() == [
        allowed,
        f"-Pm hpcdet.worker.again {paths.root} --submission 1 --index 3 --restart 2 --code 85",
        "scontrol requeue Incomplete 7_3",
        taken_back,
    ]
    told.unlink()
    assert bash(text, CODE="1", **job).returncode == 1
    assert "Incomplete" not in told.read_text() and "handover" in told.read_text()
    told.unlink()
    assert bash(text, CODE="0", **job).returncode == 0  # it has seen to that itself
    assert "handover" not in told.read_text()
    told.unlink()
    scontrol.write_text(f'#!/bin/bash\necho "scontrol $*" >> {told}; exit 1\n')
    assert bash(text, CODE="85", **job).returncode == 85
    assert told.read_text().splitlines()[2:] == [
        "scontrol requeue Incomplete 7_3",
        f"-Pm hpcdet.worker.handover {paths.root} --submission 1 --index 3 --restart 0 --code 85",
    ]
    told.unlink()
    paths.root.mkdir()
    paths.closed.write_text("{}")
    assert bash(text, CODE="85", **job).returncode == 0  # over: nothing is started
    assert not told.exists()

    assert {"no-requeue"} == directives(text).keys() & {"requeue", "no-requeue"}
    text = render(experiment, slurm(), INTENT, paths, {"PATH": f"{tmp_path}:{os.defpath}"})
    assert {"no-requeue"} == directives(text).keys() & {"requeue", "no-requeue"}
    assert "scontrol" not in text


def test_a_job_gets_no_more_of_the_shell_than_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    paths = ExperimentPaths(Path("/nowhere/exp"))
    text = render(EXPERIMENT, slurm(env={"A": "site", "B": "site"}), INTENT, paths)
    assert directives(text)["export"] == "NIL"
    assert "hunter2" not in text and "AWS" not in text
    assert "export LD_LIBRARY_PATH=/opt/lib\n" in text
    both = replace(EXPERIMENT, environment=Environment({"B": "experiment"}))
    text = render(both, slurm(env={"A": "site", "B": "site"}), INTENT, paths)
    assert "export A=site\nexport B=experiment\n" in text


def test_options_of_site_and_user_go_over_ours() -> None:
    site = slurm(
        skip=["mem"],
        directives={"account": "acct", "gpus-per-node": "{{ slots_per_node }}", "exclusive": True},
        partitions={"gpu": {"directives": {"partition": "gpuA100", "exclusive": False}}},
    )
    asked = Slurm(sbatch_args=["--gres=gpu:1 -C a100", "--nodes 3", "--hint", "nomultithread"])
    said = directives(script(site, replace(EXPERIMENT, slurm=asked)))
    assert (
        said.items()
        >= {
            "account": "acct",
            "partition": "gpuA100",
            "gpus-per-node": "2",
            "gres": "gpu:1",
            "constraint": "a100",
            "nodes": "3",
            "hint": "nomultithread",
            "time": "1-03:46:40",
            "cpus-per-task": "3",
            "array": "0-3%2",
            "signal": "USR2@120",
        }.items()
    )
    assert not said.keys() & {"mem", "exclusive"}
    assert directives(script(slurm()))["mem"] == "6144M"
    fewer = replace(EXPERIMENT.resources, min_slots_per_trial=2)
    said = directives(script(slurm(), replace(EXPERIMENT, resources=fewer)))
    assert (said["nodes"], said["mincpus"], "ntasks-per-node" in said) == ("1-2", "6", False)


def test_who_takes_the_place_of_smaller_jobs_waits_for_their_end() -> None:
    paths = ExperimentPaths(Path("/scratch/digits-7f3a"))
    after = replace(INTENT, behind=["812_0", "812_3"])
    found = directives(render(EXPERIMENT, slurm(), after, paths, {}))
    assert found["dependency"] == "afterany:812_0:812_3"
    single = {"dependency": "singleton"}
    for given, directive, both in (
        (["--dependency=afterok:7"], {}, "afterany:812_0:812_3,afterok:7"),
        (["--dependency", "afterok:7?afterok:8"], {}, "afterok:7?afterok:8"),
        ([], single, "afterany:812_0:812_3,singleton"),
        (["--dependency=afterok:7"], single, "afterany:812_0:812_3,afterok:7"),
    ):
        experiment = replace(EXPERIMENT, slurm=Slurm(sbatch_args=given))
        text = render(experiment, slurm(directives=directive), after, paths, {})
        assert directives(text)["dependency"] == both
    found = directives(render(EXPERIMENT, slurm(), replace(after, after=["7"]), paths, {}))
    assert found["dependency"] == "afterok:7,afterany:812_0:812_3", "one is none for the other"
    # the job behind such an array is no delay to them in the scheduler's eyes
    watching = replace(INTENT, tasks=1, throttle=1, watches="812")
    for least, nice in ((None, None), (2, "10000")):
        need = replace(EXPERIMENT.resources, min_slots_per_trial=least)
        text = render(replace(EXPERIMENT, resources=need), slurm(), watching, paths, {})
        assert directives(text).get("nice") == nice


@pytest.mark.parametrize(
    ("asked", "skip", "nice"),
    [("--nice", [], "10100"), ("--nice=7", [], "10007"), ("--nice=7", ["nice"], "7"),
     ("--nice=1", [], "10001"), ("--nice=-7", [], "9993"), ("--nice=abc", [], "abc"),
     ("--qos=low", ["nice"], None)],
)  # fmt: skip
def test_the_job_behind_workers_that_may_grow_waits_in_the_users_way(
    asked: str, skip: list[str], nice: str | None
) -> None:
    need = replace(EXPERIMENT.resources, min_slots_per_trial=2)
    experiment = replace(EXPERIMENT, resources=need, slurm=Slurm(sbatch_args=[asked]))
    intent = replace(INTENT, tasks=1, throttle=1, watches="812")
    folder = ExperimentPaths(Path("/scratch/digits-7f3a"))
    text = render(experiment, slurm(skip=skip), intent, folder, {})
    assert directives(text).get("nice") == nice


@pytest.mark.parametrize(
    ("argument", "said"),
    [("--array=0-9", "set by hpcdet"), ("-J x", "set by hpcdet"), ("gpu", "no option"),
     ("-Z", "long form"), ("--export=ALL", "set by hpcdet"),
     ("--ntasks=1 : --ntasks=2", "hetjobs"), ("hetjob", "hetjobs"), ("--gres='a", "quote")],
)  # fmt: skip
def test_arguments_that_would_break_the_worker_are_refused(argument: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        slurm_options.parse(UserOptions((argument,), "slurm.sbatch_args"))


def test_a_template_of_a_site_changes_one_block(tmp_path: Path) -> None:
    folder = tmp_path / "templates"
    (folder / "slurm").mkdir(parents=True)
    own = folder / "slurm" / "worker.sbatch.j2"
    own.write_text(
        '{% extends "shipped/slurm/worker.sbatch.j2" %}\n'
        "{% block prologue %}\nsource /apps/init.sh\n{{ super() }}\n{% endblock %}\n"
    )
    text = script(slurm(templates=str(folder)))
    assert "source /apps/init.sh\n" in text
    assert "export PATH=/usr/bin\n" in text
    assert bash(text, "-n").stderr == ""

    own.chmod(0o666)
    with pytest.raises(ConfigError, match="changed by everybody"):
        script(slurm(templates=str(folder)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{# one #}\n\n{{ job.nmae }}\n", "has no attribute 'nmae'"),
        ("\n\n{{ wallclock }}\n", "'wallclock' is undefined"),
        ("\n\n{% if %}\n", "Expected an expression"),
        ("\n\n#SBATCH hetjob\n", "hetjobs"),
        ("\n\n{{ job.__class__.__mro__ }}\n", "unsafe"),
        ("\n\n{{ env.clear() }}\n", "unsafe|not safely callable"),
    ],
)
def test_a_wrong_template_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "slurm" / "worker.sbatch.j2"
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        script(slurm(templates=str(tmp_path)))
    assert caught.value.where in (f"{file}:3", "template slurm/worker.sbatch.j2")


def test_a_template_is_compiled_once_for_many_scripts_and_again_once_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "slurm" / "worker.sbatch.j2"
    file.parent.mkdir()
    compiled: list[object] = []
    real = jinja2.Environment._generate

    def generate(self: jinja2.Environment, *args: Any, **named: Any) -> str:
        compiled.append(args)
        return real(self, *args, **named)

    monkeypatch.setattr(jinja2.Environment, "_generate", generate)
    site = slurm(templates=str(tmp_path), directives={})
    for text in ("{{ job.name }}", "of {{ job.name }}", "{{ job.name }}"):
        file.write_text(text)
        told = text.replace("{{ job.name }}", INTENT.name)
        assert [script(site) for _ in range(3)] == [told] * 3
    assert len(compiled) == 2
    # one that comes to lie before it is taken, and one that others may write is none
    nearer = tmp_path / "nearer" / "slurm" / "worker.sbatch.j2"
    nearer.parent.mkdir(parents=True)
    nearer.write_text("nearer")
    assert script(slurm(templates=str(tmp_path / "nearer"), directives={})) == "nearer"
    file.chmod(0o666)
    with pytest.raises(HpcdetError, match="may be changed by everybody"):
        script(site)


def test_variables_of_another_job_are_scrubbed_but_not_the_clusters() -> None:
    shown = (
        "PATH HOME MY_RANK SLURM_CONF SLURM_JOB_ID SLURM_CPU_BIND SBATCH_PARTITION SQUEUE_FORMAT "
        "PMIX_RANK PMI_SIZE RANK MASTER_PORT OMPI_COMM_WORLD_RANK HPCDET_DEADLINE "
        "CUDA_VISIBLE_DEVICES"
    )
    shell = dict.fromkeys(shown.split(), "x")
    left = variables.scrubbed(shell, slurm_names).keys()
    assert left == {"PATH", "HOME", "MY_RANK", "SLURM_CONF"}
    step = variables.for_step(shell, slurm_names).keys()
    assert step >= {"SLURM_JOB_ID", "SLURM_CONF", "CUDA_VISIBLE_DEVICES", "HPCDET_DEADLINE"}
    assert not step & {"RANK", "MASTER_PORT", "PMIX_RANK", "PMI_SIZE", "SLURM_CPU_BIND"}


def test_a_users_defaults_become_directives_with_their_origin() -> None:
    shell = {"SBATCH_ACCOUNT": "mine", "SBATCH_PARTITION": "long", "SBATCH_DEBUG": "1"}
    site = environment.fold_defaults(slurm(directives={"account": "all"}), shell)
    assert site.view().directives == {"account": "mine", "partition": "long"}
    assert site.origins["directives.account"] == "$SBATCH_ACCOUNT"
    assert site.view("gpu").directives["partition"] == "gpu"


def test_a_command_in_the_place_of_a_worker_is_handed_over_to_nobody() -> None:
    paths = ExperimentPaths(Path("/scratch/digits-7f3a"))
    for site in (slurm(), sites.load("local")):
        text = render(EXPERIMENT, site, INTENT, paths, {}, command=OtherCommand(["echo", "done"]))
        assert "echo done --index" in text and "worker.handover" not in text


def test_a_sentinel_is_small_and_where_its_workers_are(tmp_path: Path) -> None:
    own = tmp_path / ".hpcdet" / "templates" / "slurm" / "worker.sbatch.j2"
    own.parent.mkdir(parents=True, mode=0o700)
    own.write_text(
        '{% extends "shipped/slurm/worker.sbatch.j2" %}\n'
        "{% block prologue %}\nsource /apps/init\n{{ super() }}{% endblock %}\n"
    )
    asked = ["--gres=gpu:4", "--exclusive", "-A project-7", "--constraint=a100"]
    experiment = replace(EXPERIMENT, slurm=Slurm(sbatch_args=asked))
    site = slurm(directives={"gpus-per-node": "{{ slots_per_node }}", "qos": "long"})
    intent = replace(INTENT, name="digits-7f3a-1-sentinel", tasks=1, throttle=1, watches="812")
    text = render(experiment, site, intent, ExperimentPaths(Path("/scratch/digits-7f3a")), {})
    found = directives(text)
    assert found.pop("comment") == INTENT.tag
    assert found.pop("output") == "/scratch/digits-7f3a/jobs/0001.logs/%j.log"
    assert found == {
        "job-name": "digits-7f3a-1-sentinel",
        "chdir": "/scratch/digits-7f3a",
        "dependency": "afternotok:812",
        "kill-on-invalid-dep": "yes",
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": "1",
        "mem": "1G",
        "time": "0-00:15:00",
        "partition": "gpu",
        "account": "project-7",
        "qos": "long",
        "constraint": "a100",
        "open-mode": "append",
        "export": "NIL",
    }
    assert "source /apps/init" in text
    assert "hpcdet.worker.sentinel /scratch/digits-7f3a --submission 1" in text
    assert bash(text, "-n").returncode == 0


@pytest.mark.parametrize(("priority", "nice"), [(None, None), (1, None), (42, None), (50, "800")])
def test_a_low_priority_gives_way(priority: int | None, nice: str | None) -> None:
    """Nobody may raise the priority of jobs."""
    asked = replace(EXPERIMENT, resources=replace(EXPERIMENT.resources, priority=priority))
    assert directives(script(slurm(), asked)).get("nice") == nice
