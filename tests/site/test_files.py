"""Site files: inheritance with origins, detection, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdet.errors import ConfigError
from hpcdet.site import shell_variables
from hpcdet.site_files import load_site
from hpcdet.site_files.detection import Host


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Project, user and site folders of this test alone."""
    for name in ("HPCDET_SITE", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HPCDET_SITE_DIR", str(tmp_path / "admin"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    places = {
        "project": tmp_path / "work" / ".hpcdet" / "sites",
        "user": tmp_path / "config" / "hpcdet" / "sites",
        "site": tmp_path / "admin" / "sites",
    }
    for place in places.values():
        place.mkdir(parents=True)
    return places


def host(path: Path, name: str = "elsewhere", **environ: str) -> Host:
    """A host that has nothing on PATH but what lies in a folder."""
    path.mkdir(exist_ok=True)
    return Host(name, {"PATH": str(path), **environ})


def command(folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)


def test_a_chain_of_files_merges_and_every_value_has_its_origin(folders: dict[str, Path]) -> None:
    (folders["site"] / "delta.yaml").write_text(
        "extends: generic-slurm\n"
        "limits:\n  max_array: 500\n  poll_min_s: 90\n"
        "directives: {account: all, qos: normal}\n"
        "setup: [module load python]\n"
        "partitions:\n"
        "  gpu:\n"
        "    directives: {partition: gpuA100, qos: null}\n"
        "    setup: [module load cuda]\n"
        "    env: {OMP_NUM_THREADS: 4}\n"
        "    slots_per_node: 4\n"
    )
    (folders["user"] / "mine.yaml").write_text(
        "extends: delta\nlimits: {max_array: 50}\n"
        "directives: {account: me}\ndefault_partition: gpu\n"
    )
    mine = load_site.load("mine")
    assert (mine.name, mine.scheduler) == ("mine", "slurm")
    assert (mine.limits.max_array, mine.limits.poll_min_s) == (50, 90)
    assert mine.origins["limits.max_array"] == f"{folders['user'] / 'mine.yaml'}:2"
    assert mine.origins["limits.poll_min_s"] == f"{folders['site'] / 'delta.yaml'}:4"
    assert mine.origins["scheduler"].endswith("generic-slurm.yaml:15")
    assert "limits.signal_lead_s" not in mine.origins  # the built-in default

    view = mine.view()
    assert view.directives == {"account": "me", "qos": None, "partition": "gpuA100"}
    assert view.setup == ("module load python", "module load cuda")
    assert view.env == {"OMP_NUM_THREADS": "4"}
    assert view.slots_per_node == 4
    assert mine.view("cpu").directives == {"account": "me", "qos": "normal", "partition": "cpu"}


def test_a_user_changes_a_shipped_site_by_a_file_of_its_name(folders: dict[str, Path]) -> None:
    (folders["project"] / "generic-slurm.yaml").write_text(
        "extends: generic-slurm\ncapabilities: {requeue: user}\n"
    )
    changed = load_site.load("generic-slurm")
    assert changed.capabilities.requeue == "user"
    assert changed.launcher.kind == "srun"
    assert changed.source == str(folders["project"] / "generic-slurm.yaml")


def test_files_that_extend_each_other_are_refused(folders: dict[str, Path]) -> None:
    (folders["user"] / "a.yaml").write_text("extends: b\n")
    (folders["user"] / "b.yaml").write_text("extends: a\n")
    with pytest.raises(ConfigError, match="extends itself"):
        load_site.load("a")


@pytest.mark.parametrize(
    ("text", "line", "key", "said"),
    [
        ("limits:\n  max_aray: 3\n", 2, "limits.max_aray", "did you mean 'max_array'?"),
        ("partitons: {}\n", 1, "partitons", "did you mean 'partitions'?"),
        ("\n\npartitions:\n  gpu:\n    slot: 1\n", 5, "partitions.gpu.slot", "known keys"),
        (
            "detect:\n- {comand: x}\nscheduler: local\n",
            2,
            "detect.0.comand",
            "did you mean 'command'?",
        ),
        ("launcher: {kind: teleport}\nscheduler: local\n", 1, "launcher.kind", "those there are: "),
        ("limits: {}\n", 0, "", "there is no scheduler"),
        ("scheduler: slrum\n", 1, "scheduler", "did you mean slurm?"),
        ("limits: {max_array: many}\n", 1, "limits.max_array", "it is 'many'"),
        ("detect: [{env: A, command: b}]\n", 1, "detect.0", "use one of env, hostname"),
        ("- a\n", 0, "", "not a mapping"),
        ("# nothing\n", 0, "", "empty"),
        ("a: [\n", 2, "", "not YAML"),
        ("setup: []\nsetup: [x]\n", 2, "", "stands here twice"),
    ],
)
def test_a_wrong_file_is_named_with_line_and_key(
    folders: dict[str, Path], text: str, line: int, key: str, said: str
) -> None:
    path = folders["user"] / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_site.load("wrong")
    message = str(caught.value)
    assert said in message
    assert message.startswith(f"{path}:{line}: {key}".rstrip() if line else f"{path}: ")
    assert caught.value.exit_code == 4


def test_a_file_that_others_may_write_is_not_read(folders: dict[str, Path]) -> None:
    """Its setup lines would run in the user's name."""
    path = folders["project"] / "theirs.yaml"
    path.write_text("extends: generic-slurm\n")
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="the site file may be changed by everybody"):
        load_site.load("theirs")


def test_a_path_under_extends_is_relative_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("extends: generic-slurm\nlease_ttl_s: 7\n")
    (tmp_path / "mine.yaml").write_text("extends: ./base.yaml\n")
    assert load_site.load(str(tmp_path / "mine.yaml")).lease_ttl_s == 7


def test_a_site_that_is_not_there_is_an_error_that_lists_those_that_are() -> None:
    with pytest.raises(ConfigError, match="generic-pbs, generic-slurm, generic-torque, local"):
        load_site.load("delta")
    with pytest.raises(ConfigError, match="no site file"):
        load_site.load("./delta.yaml")


def test_a_file_that_extends_one_that_is_not_there_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("scheduler: slurm\nextends: polarsi\n")
    with pytest.raises(ConfigError, match="did you mean 'polaris'") as caught:
        load_site.load(str(tmp_path / "mine.yaml"))
    assert caught.value.where == f"{tmp_path}/mine.yaml:2: extends"


def test_detection_goes_by_search_path_and_says_why(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = host(tmp_path / "bare")
    nothing = load_site.load(host=bare)
    assert (nothing.name, nothing.fallback) == ("local", True)

    command(tmp_path / "slurm", "sbatch")
    slurm = load_site.load(host=host(tmp_path / "slurm"))
    assert (slurm.name, slurm.fallback) == ("generic-slurm", False)
    assert slurm.reason == f"sbatch is on PATH ({tmp_path / 'slurm' / 'sbatch'})"
    command(tmp_path / "pbs", "qsub")
    monkeypatch.setenv("PBS_CONF_FILE", str(tmp_path / "pbs.conf"))
    assert load_site.load(host=host(tmp_path / "pbs")).fallback  # its commands ask no server
    (tmp_path / "pbs.conf").write_text("PBS_SERVER=pbs-1\n")
    assert load_site.load(host=host(tmp_path / "pbs")).name == "generic-pbs"

    (folders["site"] / "delta.yaml").write_text(
        "extends: generic-slurm\n"
        "detect:\n- {env: LMOD_SYSTEM_NAME, match: '^delta$'}\n- {hostname: '^dt-login[0-9]+'}\n"
    )
    there = host(tmp_path / "slurm", "dt-login03.delta")
    assert load_site.load(host=there).reason == (
        "the host's name dt-login03.delta matches '^dt-login[0-9]+'"
    )
    # a file that extends it for another cluster is not taken for this one
    (folders["project"] / "other.yaml").write_text("extends: generic-slurm\n")
    by_env = host(tmp_path / "slurm", LMOD_SYSTEM_NAME="delta")
    assert load_site.load(host=by_env).reason == "$LMOD_SYSTEM_NAME is 'delta'"
    assert load_site.load(host=host(tmp_path / "slurm", LMOD_SYSTEM_NAME="delta2")).name != "delta"

    monkeypatch.setenv("HPCDET_SITE", "generic-pbs")
    assert load_site.load(host=there).name == "generic-pbs"
    assert load_site.load("local", host=there).reason == "asked for by name"


def test_torque_is_known_by_its_server_and_not_by_commands_that_others_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PBS_CONF_FILE", str(tmp_path / "none.conf"))
    monkeypatch.delenv("PBS_DEFAULT", raising=False)
    monkeypatch.setenv("TORQUE_HOME", str(tmp_path / "torque"))
    command(tmp_path / "bin", "qsub")
    assert load_site.load(host=host(tmp_path / "bin")).name == "local"
    command(tmp_path / "bin", "sbatch")  # Slurm's wrappers have the names of Torque's commands
    assert load_site.load(host=host(tmp_path / "bin")).name == "generic-slurm"
    (tmp_path / "bin" / "sbatch").unlink()

    (tmp_path / "torque").mkdir()
    (tmp_path / "torque" / "server_name").write_text("head.cluster.edu\n")
    found = load_site.load(host=host(tmp_path / "bin"))
    assert (found.name, found.scheduler) == ("generic-torque", "torque")
    assert found.reason == "server_name of the cluster is 'head.cluster.edu'"


def test_the_clusters_name_is_asked_of_scontrol(tmp_path: Path, folders: dict[str, Path]) -> None:
    command(tmp_path / "bin", "scontrol")
    says = "#!/bin/sh\necho 'ClusterName             = delta'\n"
    (tmp_path / "bin" / "scontrol").write_text(says)
    rule = "extends: generic-slurm\ndetect: [{scontrol: ClusterName, match: ^delta$}]\n"
    (folders["user"] / "delta.yaml").write_text(rule)
    there = host(tmp_path / "bin")
    assert load_site.load(host=there).reason == "ClusterName of the cluster is 'delta'"


def test_commands_of_slurm_without_a_cluster_are_no_scheduler(tmp_path: Path) -> None:
    """As on a machine where somebody installed the package, and no more."""
    for name in ("sbatch", "scontrol"):
        command(tmp_path / "bin", name)
    said = "scontrol: fatal: Could not establish a configuration source"
    (tmp_path / "bin" / "scontrol").write_text(f"#!/bin/sh\necho '{said}' >&2; exit 1\n")
    assert load_site.load(host=host(tmp_path / "bin")).name == "local"
    for name in ("sbatch", "scontrol"):
        command(tmp_path / "down", name)
    (tmp_path / "down" / "scontrol").write_text(
        "#!/bin/sh\necho 'Unable to contact slurm controller (connect failure)' >&2; exit 1\n"
    )
    assert load_site.load(host=host(tmp_path / "down")).name == "generic-slurm"


def test_the_resolved_file_reads_back_equal_also_from_another_version(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    (folders["user"] / "x.yaml").write_text(
        "extends: generic-slurm\npartitions: {gpu: {launcher: {kind: mpirun}, env: {A: 1}}}\n"
        "detect: [{command: sbatch}]\nconfig: {resources: {slots_per_trial: 2}}\n"
        "directives: {time: 12:00:00, hint: off, comment: '1e3'}\n"
    )
    one = load_site.load("x")
    assert one.directives == {"time": "12:00:00", "hint": "off", "comment": "1e3"}
    path = tmp_path / "site.yaml"
    path.write_bytes(load_site.dump(one))
    assert load_site.from_resolved(path).plain() == one.plain()
    for place, mode in ((path, 0o666), (tmp_path, 0o777)):
        before = place.stat().st_mode
        place.chmod(mode)
        with pytest.raises(ConfigError, match="the experiment may be changed by everybody"):
            load_site.from_resolved(path)
        place.chmod(before)
    text = path.read_text().replace("limits:\n", "limits:\n  burst: 3\n")
    text = text.replace("      kind: mpirun\n", "      kind: mpirun\n      speed: high\n")
    path.write_text(text + "future: {a: 1}\n")
    assert "burst" in text and "speed" in text
    assert load_site.from_resolved(path).plain() == one.plain()


def test_values_of_the_environment_are_expanded_as_paths_are(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "ada")
    monkeypatch.setenv("HOME", "/users/ada")
    monkeypatch.delenv("JOB_DISK", raising=False)
    (folders["site"] / "delta.yaml").write_text(
        "extends: generic-slurm\npaths: {scratch: '/scratch/$USER'}\n"
        "env: {CACHE: '/scratch/$USER/cache', PLACE: '${HOME}/x', OWN: '~/y', COST: '5 $'}\n"
        "partitions: {gpu: {env: {CACHE: '$HOME/gpu', DISK: '$JOB_DISK/z'}}}\n"
    )
    site = load_site.load("delta")
    here = {"PLACE": "/users/ada/x", "OWN": "/users/ada/y", "COST": "5 $"}
    assert site.view("cpu").env == {"CACHE": "/scratch/ada/cache", **here}
    assert site.view("gpu").env == {"CACHE": "/users/ada/gpu", "DISK": "$JOB_DISK/z", **here}
    assert site.origins["env.CACHE"].endswith("delta.yaml:3")
    [said] = shell_variables.unset(site)
    assert said.startswith("partitions.gpu.env.DISK: $JOB_DISK is not set here")
    assert 'export DISK="$JOB_DISK/z"' in said

    resolved = folders["project"] / "site.yaml"
    resolved.write_bytes(load_site.dump(site))
    monkeypatch.setenv("USER", "somebody")
    monkeypatch.setenv("JOB_DISK", "/late")
    kept = load_site.from_resolved(resolved)
    assert kept.view("gpu").env == site.view("gpu").env, "jobs have what was so at submission"
