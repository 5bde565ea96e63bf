"""Making an experiment: what is copied, what is recorded, what is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hpcdet.config.check.plan import plan
from hpcdet.errors import ConfigError, Unavailable
from hpcdet.jobs.checks import site_checks
from hpcdet.jobs.create import create, provenance, snapshot
from hpcdet.jobs.diagnosis import site_findings
from hpcdet.jobs.script import render, submission
from hpcdet.policy.compiled import PolicyText
from hpcdet.read.lookup import find
from hpcdet.site import Site
from hpcdet.site_files import load_site as sites
from hpcdet.store.config import numerics, resolved_config
from hpcdet.store.config.placement import Resources
from hpcdet.store.config.resolved_config import Distributed, Resolved, Worker
from hpcdet.store.config.sections.searcher_keys import Searcher as SearcherConfig
from hpcdet.store.folder import trust
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Intent
from tests.commands import Cli


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No site file of whoever runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("HPCDET_SITE", "HPCDET_SITE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@dataclass(frozen=True)
class Loaded:
    """A checked config, without the package that checks configs."""

    secrets: Mapping[str, Any] = field(default_factory=dict)
    policy: PolicyText | None = None
    images: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    sources: Sequence[str] = ()

    def resolved(self) -> dict[str, Any]:
        return {"schema": 1, "name": "My Digits!", "entrypoint": "model_def:Trial"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model folder as people have them."""
    files = {
        "model_def.py": "x = 1\n", "lib/net.py": "y = 2\n", "run.sh": "#!/bin/sh\n",
        "data/big.bin": "0" * 100, "notes.txt": "n", "keep.log": "k", "a.log": "l",
        "__pycache__/model_def.cpython-311.pyc": "c", ".git/HEAD": "ref",
    }  # fmt: skip
    folder = tmp_path / "model"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "run.sh").chmod(0o755)
    (folder / ".detignore").write_text("data/\n*.log\n")
    (folder / ".hpcdetignore").write_text("notes.txt\n!keep.log\n")
    (folder / "net.py").symlink_to(folder / "lib" / "net.py")
    return folder


def make(model: Path, root: Path, **values: Any) -> ExperimentPaths:
    return create.create(Loaded(**values), sites.load("local"), model, root)


def test_an_experiment_is_whole_private_and_says_where_it_came_from(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    monkeypatch.setenv("LOADEDMODULES", "gcc/13:cuda/12")
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    old = os.umask(0)  # modes are set, not left to the umask
    try:
        paths = make(model, tmp_path / "root", secrets={"key": "hunter3"})
    finally:
        os.umask(old)
    assert paths.id.startswith("my-digits-") and len(paths.id) == len("my-digits-") + 4
    everything = [path for path in paths.root.rglob("*") if not path.is_symlink()]
    assert not [p for p in (paths.root, *everything) if p.stat().st_mode & 0o077]

    copied = sorted(p.relative_to(paths.code).as_posix() for p in paths.code.rglob("*"))
    wanted = [".detignore", ".hpcdetignore", "keep.log", "lib", "lib/net.py", "model_def.py"]
    assert copied == [*wanted, "net.py", "run.sh"]
    assert (paths.code / "net.py").readlink() == Path("lib/net.py")
    assert (paths.code / "run.sh").stat().st_mode & stat.S_IXUSR

    assert resolved_config.load(paths.config).name == "My Digits!"
    assert sites.from_resolved(paths.site).name == "local"
    assert json.loads(paths.secrets.read_text()) == {"key": "hunter3"}
    record = json.loads(paths.provenance.read_text())
    assert record["executable"] == sys.executable
    assert record["modules"] == ["gcc/13", "cuda/12"]
    assert record["packages"]["pydantic"]
    assert record["processor"] == numerics.processor()
    assert record["cores"] == len(os.sched_getaffinity(0))
    assert record["variables"]["MKL_CBWR"] == "AVX2"
    assert "openblas" in record["blas"][0]
    assert record["model_dir"] == str(model)
    everywhere = b"".join(p.read_bytes() for p in everything if p.is_file())
    assert everywhere.count(b"hunter2") == 0 and everywhere.count(b"hunter3") == 1


def test_the_experiments_of_a_folder_are_not_copied_into_each_other(model: Path) -> None:
    root = model / "runs"
    make(model, root)
    second = make(model, root)
    assert not (second.code / "runs").exists()
    assert site_checks.code_differs(second) == []


def test_a_submission_is_a_script_with_a_folder_for_its_output(model: Path, tmp_path: Path) -> None:
    paths = make(model, tmp_path / "root")
    intent = Intent(3, f"{paths.id}-3", "tag", tasks=2, throttle=1, term=1)
    experiment, site = resolved_config.load(paths.config), sites.load("generic-slurm")
    one = submission.build(paths, intent, experiment, site)
    assert one == submission.build(paths, intent, experiment, site)
    assert one.script == paths.script(3) and one.script.stat().st_mode & stat.S_IXUSR
    assert list(one.argv) == ["sbatch", "--parsable", str(one.script)]
    assert paths.job_log(3).is_dir()
    # a worker waits for exactly this config
    assert f"--digest {resolved_config.digest(paths.config)}" in one.script.read_text()


def test_a_worker_renders_what_the_submitter_would_have(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has another folder and another environment, and gets the same script."""
    own = tmp_path / ".hpcdet" / "templates" / "slurm" / "worker.sbatch.j2"
    own.parent.mkdir(parents=True)
    own.write_text(
        '{% extends "shipped/slurm/worker.sbatch.j2" %}'
        "{% block launch %}echo mine\n{{ super() }}{% endblock %}"
    )
    monkeypatch.setenv("LD_LIBRARY_PATH", "/submitter")
    site = sites.load("generic-slurm")
    paths = create.create(Loaded(), site, model, tmp_path / "root")
    intent = Intent(1, "exp-1", "tag", tasks=2, throttle=1, term=1)
    there = render.render(resolved_config.load(paths.config), site, intent, paths)
    monkeypatch.chdir(paths.root)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/worker")
    assert render.render(resolved_config.load(paths.config), site, intent, paths) == there
    assert "echo mine" in there and "/submitter" in there


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (".env", "A=1", "its name says"),
        ("deploy/id_rsa", "x", "its name says"),
        ("conf.py", 'K = "AKIAIOSFODNN7EXAMPLE"', "an AWS access key"),
        ("k.txt", "-----BEGIN OPENSSH PRIVATE KEY-----", "a private key"),
    ],
)
def test_likely_secrets_are_refused_and_nothing_remains(
    model: Path, tmp_path: Path, name: str, text: str, said: str
) -> None:
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        make(model, tmp_path / "root")
    assert caught.value.where == str(model / name)
    assert not (tmp_path / "root").exists()
    (model / ".hpcdetignore").write_text(f"/{name}\n")  # as the hint says
    make(model, tmp_path / "root")


def test_links_that_leave_size_and_number_of_files_are_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model / "up").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="a link leaves the model folder"):
        make(model, tmp_path / "root")
    (model / "up").unlink()
    monkeypatch.setattr(snapshot, "MAX_FILES", 3)
    with pytest.raises(ConfigError, match="more than 3 files"):
        make(model, tmp_path / "root")
    monkeypatch.undo()
    with (model / "weights.pt").open("wb") as file:
        file.truncate(snapshot.MAX_BYTES + 1)
    with pytest.raises(ConfigError, match=r"the largest file is weights\.pt"):
        make(model, tmp_path / "root")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (b"a\xff.py", b"", r"odd name, 'a\\udcff.py'"),
        (b"a\nb.py", b"", "odd name"),
        (b".hpcdetignore", b"\xff\n", "hpcdetignore: invalid pattern"),
        (b".detignore", b"!\n", "detignore: invalid pattern"),
    ],
)
def test_odd_names_and_patterns_are_refused_before_anything_is_made(
    model: Path, tmp_path: Path, name: bytes, text: bytes, said: str
) -> None:
    Path(os.fsdecode(bytes(model) + b"/" + name)).write_bytes(text)
    with pytest.raises(ConfigError, match=said):
        make(model, tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_code_that_others_may_write_is_refused(model: Path, tmp_path: Path) -> None:
    (model / "lib" / "net.py").chmod(0o666)
    with pytest.raises(ConfigError, match=r"the code may be changed by everybody \(mode 0666\)"):
        make(model, tmp_path / "root")
    (model / "lib" / "net.py").chmod(0o644)
    model.chmod(0o777)
    with pytest.raises(ConfigError, match="chmod go-w"):
        make(model, tmp_path / "root")
    model.chmod(0o755)
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="the folder above the code"):
        make(model, tmp_path / "root")
    tmp_path.chmod(0o1777)  # as /tmp
    make(model, tmp_path / "root")


def test_a_group_of_ones_own_is_nobody_else(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    file.chmod(0o664)
    status = file.stat()
    private = trust._private(status.st_gid, status.st_uid)
    try:
        trust.refuse_writable_by_others(file, "code")
        assert private
    except ConfigError:
        assert not private
    os.chown(file, -1, 65534) if os.getuid() == 0 else pytest.skip("only root may change groups")
    with pytest.raises(ConfigError, match="group"):
        trust.refuse_writable_by_others(file, "code")


def test_a_root_that_cannot_be_made_says_how_to_choose_another(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="HPCDET_ROOT"):
        make(model, tmp_path / "file" / "root")


def test_experiments_are_not_made_where_others_could_exchange_them(
    model: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match="folder above the experiment may be changed by every"):
        make(model, shared)
    assert list(shared.iterdir()) == []
    shared.chmod(0o1777)
    assert make(model, shared)


def test_git_is_recorded_without_credentials(tmp_path: Path) -> None:
    assert provenance.git(tmp_path) is None
    for command in (
        ["init", "-q"],
        ["remote", "add", "origin", "https://me:hunter2@example.org/x.git"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"],
    ):
        (tmp_path / "a.py").write_text("a = 1\n")
        (tmp_path / ".env").write_text("PASSWORD=\n")
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, timeout=120)
    clean = provenance.git(tmp_path)
    assert clean is not None and not clean["dirty"]
    assert clean["remote"] == "https://example.org/x.git"
    (tmp_path / "a.py").write_text("a = 2\nu = 'https://me:hunter2@example.org'\n")
    (tmp_path / ".env").write_text("PASSWORD=hunter2\n")
    dirty = provenance.git(tmp_path)
    assert dirty is not None and dirty["dirty"] and "+a = 2" in dirty["diff"]
    assert "hunter2" not in json.dumps(dirty)
    (tmp_path / "a.py").write_text('K = "AKIAIOSFODNN7EXAMPLE"\n')
    secret = provenance.git(tmp_path)
    assert secret is not None and secret["dirty"] and not secret["diff"]
    assert "an AWS access key" in secret["diff_note"]


def test_code_that_differs_from_the_snapshot_is_named(model: Path, tmp_path: Path) -> None:
    paths = make(model, tmp_path / "root")
    assert site_checks.code_differs(paths) == []
    (model / "model_def.py").write_text("x = 3\n")
    told = paths.provenance.read_bytes()
    paths.provenance.write_text("{}")
    assert site_checks.code_differs(paths) == [], "it names no folder"
    paths.provenance.write_bytes(told)
    (model / "new.py").write_text("")
    (model / "lib" / "net.py").unlink()
    (model / "net.py").unlink()
    (model / "a.log").write_text("ignored")
    assert site_checks.code_differs(paths) == [
        "lib/net.py (removed)",
        "model_def.py (changed)",
        "net.py (removed)",
        "new.py (added)",
    ]


def test_more_files_and_folders_belong_to_the_code_and_are_checked_alike(
    model: Path, tmp_path: Path
) -> None:
    beside = tmp_path / "common"
    for name, text in {
        "common/util.py": "u", "common/skip.me": "x", "common/.hpcdetignore": "*.me\n",
        "tokens.txt": "2", "model/data/big.bin": "9", "other/model_def.py": "z", "pass/.env": "p",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True, mode=0o700)
        (tmp_path / name).write_text(text)
    plain = {entry.path for entry in snapshot.scan(model)}
    assert "data/big.bin" not in plain
    include = [beside, tmp_path / "tokens.txt", model / "data", beside]
    paths = create.create(Loaded(), sites.load("local"), model, tmp_path / "root", include=include)
    record = json.loads(paths.provenance.read_text())
    extra = {"common/util.py", "common/.hpcdetignore", "tokens.txt", "data/big.bin"}
    assert record["code"].keys() == plain | extra
    assert (paths.code / "common" / "util.py").read_text() == "u"
    assert site_checks.code_differs(paths) == []
    (beside / "util.py").write_text("v")
    (tmp_path / "tokens.txt").unlink()
    assert site_checks.code_differs(paths) == ["common/util.py (changed)", "tokens.txt (removed)"]
    for wrong, said in (
        (tmp_path / "other" / "model_def.py", "in the code already"),
        (tmp_path / "pass", "its name says that it is a secret"),
        (tmp_path / "nothing", "does not exist"),
        (tmp_path, "holds the model folder itself"),
    ):
        with pytest.raises(ConfigError, match=said):
            snapshot.scan(model, include=[wrong])
    (tmp_path / "other" / "out").symlink_to("/etc")
    (tmp_path / "other" / "model_def.py").unlink()
    with pytest.raises(ConfigError, match="leaves the model folder"):
        snapshot.scan(model, include=[tmp_path / "other"])


def test_code_that_is_in_no_commit_is_said_refused_or_meant(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    cli("init", folder, "--minimal")
    file = folder / "single.yaml"
    words = ("submit", file, "--site", "local", "--prepare", "--no-test", "-o", "json")

    def warned(*flags: str) -> list[str]:
        said: list[str] = json.loads(cli(*words, *flags).out)["warnings"]
        return [text for text in said if "in no commit" in text]

    assert warned() == []  # git knows nothing of it
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True, timeout=120)
    assert warned("--no-allow-dirty") == []
    (folder / "new.py").write_text("n = 1\n")
    file.write_text(file.read_text() + "# more\n")
    [said] = warned()
    assert said.startswith("2 files of the code are in no commit as they are (new.py, single.yaml)")
    assert "commit it first" in cli(*words, "--no-allow-dirty", code=4).err
    assert warned("--allow-dirty") == []
    newest = find.experiment("@last", cli.root)
    recorded = json.loads(newest.provenance.read_text())["git"]
    assert recorded["uncommitted"] == ["new.py", "single.yaml"] and "+# more" in recorded["diff"]


SINFO = """\
batch*|2-00:00:00|8|up|REQUEUE|1-infinite
short|30:00|4|up|OFF|1-2
tidal|30:00|2K|down|REQUEUE|1-infinite
gang|1-00:00:00|2|up|GANG,SUSPEND|1-infinite
"""


def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A fake `sinfo`, and a site that believes it."""
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "sinfo"
    fake.write_text("#!/bin/sh\ncat << E\n" + SINFO + "E\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.defpath}")
    return sites.load("generic-slurm")


@pytest.mark.parametrize(
    ("need", "where", "said"),
    [
        (
            Resources(resource_pool="gpu"),
            "resources.resource_pool",
            "partitions here: batch, gang, short, tidal",
        ),
        (
            Resources(resource_pool="short", walltime_s=1801),
            "resources.walltime_s",
            "at most 0-00:30",
        ),
        (
            Resources(resource_pool="short", nodes=3),
            "resources.nodes",
            "partition short gives a job at most 2",
        ),
        (Resources(walltime_s=200000), "resources.walltime_s", "at most 2-00:00"),
        (Resources(resource_pool="gang"), "resources.resource_pool", "suspends jobs"),
        (Resources(slots_per_node=5), "resources.slots_per_node", "more nodes"),
        (Resources(slots_per_node=3, cpus_per_slot=3), "resources.cpus_per_slot", "have 8"),
    ],
)
def test_what_can_never_run_is_refused_before_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, need: Resources, where: str, said: str
) -> None:
    site = fake_slurm(tmp_path, monkeypatch)
    own = {
        "default_partition": "batch",
        "partitions": {"batch": {"slots_per_node": 4, "cpus_per_node": 8}},
    }
    if need.walltime_s != 200000:
        site = Site.model_validate({**site.plain(), **own})
    assert (
        site_checks.preflight(Resolved(resources=Resources(walltime_s=1800)), site, tmp_path) == []
    )
    down = Resources(resource_pool="tidal", nodes=2048)
    [warning] = site_checks.preflight(Resolved(resources=down), site, tmp_path)
    assert "tidal is down" in warning
    with pytest.raises(ConfigError) as caught:
        site_checks.preflight(Resolved(resources=need), site, tmp_path)
    assert caught.value.where == where and said in str(caught.value)


def test_more_lanes_than_fit_into_a_node_are_refused(tmp_path: Path) -> None:
    narrow = {"default_partition": "day", "partitions": {"day": {"cpus_per_node": 8}}}
    site = Site.model_validate({**sites.load("local").plain(), **narrow})
    many = SearcherConfig(max_trials=16)
    need = Resources(slots_per_trial=2, slots_per_node=2, cpus_per_slot=2)
    fits, wide = (Resolved(searcher=many, resources=need, worker=Worker(lanes=n)) for n in (2, 3))
    assert site_checks.preflight(fits, site, tmp_path) == []
    with pytest.raises(ConfigError, match="12 cores on one node") as caught:
        site_checks.preflight(wide, site, tmp_path)
    assert caught.value.where == "worker.lanes"


def test_mpi_is_refused_where_the_launcher_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def site(**launcher: object) -> Site:
        return Site.model_validate({**sites.load("local").plain(), "launcher": launcher})

    two = Resources(slots_per_trial=2, slots_per_node=2)
    wanted = Resolved(resources=two, distributed=Distributed("mpi"))
    assert site_checks.preflight(wanted, site(kind="mpirun"), tmp_path) == []
    assert (
        site_checks.preflight(
            Resolved(distributed=Distributed("mpi")), sites.load("local"), tmp_path
        )
        == []
    )
    for launcher in ({"kind": "local"}, {"kind": "srun", "args": ["--mpi=none"]}):
        with pytest.raises(ConfigError) as caught:
            site_checks.preflight(wanted, site(**launcher), tmp_path)
        assert caught.value.where == "distributed.backend: mpi" and "mpi" in caught.value.hint
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    [warning] = site_checks.preflight(wanted, site(kind="mpirun"), tmp_path)
    assert "hpcdet[mpi]" in warning


def test_a_partition_that_a_local_site_does_not_name_is_refused(tmp_path: Path) -> None:
    plain = sites.load("local")
    named = Site.model_validate({**plain.plain(), "partitions": {"night": {}}})
    fits = Resolved(resources=Resources(resource_pool="night"))
    assert site_checks.preflight(fits, named, tmp_path) == []
    for site, said in ((plain, "has no partitions"), (named, "did you mean night")):
        wanted = Resolved(resources=Resources(resource_pool="nigth"))
        with pytest.raises(ConfigError, match=said):
            site_checks.preflight(wanted, site, tmp_path)


def test_a_scheduler_that_does_not_answer_is_said_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = fake_slurm(tmp_path, monkeypatch)
    (tmp_path / "bin" / "sinfo").write_text("#!/bin/sh\necho 'Unable to contact' >&2; exit 1\n")
    with pytest.raises(Unavailable, match="Unable to contact") as caught:
        site_checks.preflight(Resolved(), site, tmp_path)
    assert "--site local" in caught.value.hint
    [warning] = site_checks.preflight(Resolved(), site, tmp_path, submits=False)
    assert "Unable to contact" in warning


def test_local_on_a_login_node_is_refused_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "login03")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="use --site local"):
        site_checks.preflight(Resolved(), sites.load(), tmp_path)
    assert site_checks.preflight(Resolved(), sites.load("local"), tmp_path) == []


def test_warnings_of_purge_room_and_of_nobody_who_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: dict[str, Any] = {
        "paths": {"scratch": str(tmp_path), "purge_days": 10},
        "capabilities": {"submit_from_compute": False, "login_daemon": "forbidden"},
    }
    site = Site.model_validate({**sites.load("local").plain(), **values})
    long = Resolved(
        resources=Resources(walltime_s=86400),
        searcher=SearcherConfig(max_trials=20, max_concurrent_trials=2),
    )
    purge, crank = site_checks.preflight(long, site, tmp_path / "root")
    assert "purged after 10 days" in purge and "a sentinel job tells you" in crank
    [crank] = site_checks.preflight(long, site, Path("/"))

    full = os.statvfs_result((4096, 4096, 9, 9, 9, 100, 9, 9, 0, 255))
    monkeypatch.setattr("os.statvfs", lambda path: full)
    room = site_checks.preflight(long, sites.load("local"), tmp_path)
    inodes = plan(long)["storage"]["inodes"]
    assert room == [
        f"{tmp_path} has 9 inodes left; the run may need {inodes}",
        f"{tmp_path} has 0 MiB left; checkpoints may not fit",
    ]


def test_a_site_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = {f.check: f.level for f in site_findings.findings(sites.load("local"))}
    assert {check for check, level in levels.items() if level != "ok"} == {"history", "limits"}
    site = fake_slurm(tmp_path, monkeypatch)
    config_of = tmp_path / "bin" / "scontrol"
    config_of.write_text("#!/bin/sh\necho 'MaxArraySize = 51'\n")
    config_of.chmod(0o755)
    own = {"partitions": {"gpu": {}, "batch": {}, "gang": {}}, "setup": ["if then"]}
    findings = site_findings.findings(Site.model_validate({**site.plain(), **own}))
    said = {f.what: f.level for f in findings}
    assert said["partition gpu does not exist"] == "error"
    assert said["partition batch is there"] == "ok"
    assert any("gang suspends" in what for what, level in said.items() if level == "error")
    assert any("arrays of up to 51" in what for what in said)
    assert any(
        "script is not valid bash" in what for what, level in said.items() if level == "error"
    )
