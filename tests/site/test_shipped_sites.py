"""Shipped site files: each is valid, says where it comes from, and gives readable scripts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from hpcdet import shipped
from hpcdet.errors import ConfigError
from hpcdet.jobs.checks import site_lint
from hpcdet.schedulers import opening
from hpcdet.site.value_types import Duration
from hpcdet.site_files import load_site
from hpcdet.site_files.detection import Host
from hpcdet.site_files.site_schema import schema
from hpcdet.store.fs import yaml12

ALL = sorted(shipped.folder("site_configs").glob("*.yaml"))
NAMES = [path.stem for path in ALL]
GENERAL = {"local", "generic-slurm", "generic-pbs", "generic-torque"}
SYSTEMS = [path for path in ALL if path.stem not in GENERAL]


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No site file of whoever runs the tests."""
    for name in ("HPCDET_SITE", "HPCDET_SITE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def test_there_are_public_systems_and_a_cloud() -> None:
    assert len(SYSTEMS) >= 6 and {"aws-parallelcluster"} <= set(NAMES)
    assert {"polaris", "derecho"} <= {
        path.stem for path in SYSTEMS if load_site.load(path.stem).scheduler == "pbs"
    }


@pytest.mark.parametrize("path", SYSTEMS, ids=lambda path: str(path.stem))
def test_a_public_system_says_where_it_comes_from(path: Path) -> None:
    head = path.read_text().partition("schema:")[0]
    assert "Not run there" in head
    assert re.search(r"^# Source: \S", head, re.MULTILINE)
    assert re.search(r"\b(as of|read on) 20\d\d-\d\d-\d\d", head)
    one = load_site.load(path.stem)
    assert one.contact.name and one.contact.url.startswith("https://")
    assert one.detect and one.extends
    assert not set(one.partitions) - {None} or one.default_partition in one.partitions


@pytest.mark.parametrize("name", NAMES)
def test_every_script_of_every_site_is_read(name: str) -> None:
    results = site_lint.lint(load_site.load(name))
    assert {result.bash for result in results} == {"ok"}, results
    assert {result.shellcheck for result in results} == {"ok"}, results
    jobs = {result.job for result in results}
    assert jobs == ({"worker"} if name == "local" else {"worker", "sentinel", "searcher"})


def test_a_walltime_that_jobs_must_name_fits_into_each_queue() -> None:
    given = {}
    for name in NAMES:
        site = load_site.load(name)
        if asked := site.config.get("resources", {}).get("walltime_s"):
            given[name] = wanted = TypeAdapter(Duration).validate_python(asked)
            for queue in site.partitions:
                view = site.view(queue)
                part = view.bounds
                sizes = {part.min_nodes or 1, *part.walltime_by_nodes, part.max_nodes or 1}
                assert {view.nearest_s(wanted, nodes) for nodes in sizes} == {wanted}
    assert given == {"polaris": 3600, "frontier": 7200}


def test_detection_takes_the_system_before_the_generic_file(tmp_path: Path) -> None:
    path = tmp_path / "bin"
    path.mkdir()
    for command in ("sbatch", "qsub"):
        (path / command).write_text("#!/bin/sh\n")
        (path / command).chmod(0o755)

    def found(name: str = "elsewhere", **environ: str) -> str:
        return load_site.load(host=Host(name, {"PATH": str(path), **environ})).name

    assert found() == "generic-slurm"  # qsub may be a wrapper for it
    assert found(NERSC_HOST="perlmutter") == "perlmutter"
    assert found("login07.frontier.olcf.ornl.gov") == "frontier"
    assert found("login1.vista.tacc.utexas.edu") == "vista"
    assert found("polaris-login-02.hsn.cm.polaris.alcf.anl.gov") == "polaris"
    assert found(NCAR_HOST="derecho") == "derecho"
    (path / "scontrol").write_text("#!/bin/sh\necho 'ClusterName = parallelcluster-x'\n")
    (path / "scontrol").chmod(0o755)
    assert found() == "aws-parallelcluster"


# -- the schema ---------------------------------------------------------------------------


def judged(values: object) -> list[str]:
    """Complaints of the schema, as an editor shows them."""
    plain = json.loads(json.dumps(values))  # keys are text there
    return [error.message for error in Draft202012Validator(schema()).iter_errors(plain)]


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.stem))
def test_the_schema_accepts_what_is_shipped(path: Path) -> None:
    assert judged(yaml12.read(path).values) == []


def test_the_schema_takes_every_asked_key_as_null() -> None:
    for key in {key for one in opening.every() for key in one.facts.asked}:
        section, _, name = key.partition(".")
        assert judged({section: {name: None}}) == [], key
        assert judged({section: {name: ["x"]}}), key


@pytest.mark.parametrize(
    "text",
    [
        "limits: {max_aray: 3}",
        "partitions: {gpu: {slot: 1}}",
        "launcher: {kind: ssh}",
        "limits: {max_array: many}",
        "partitions: {gpu: {min_nodes: 0}}",
        "container: {kind: docker}",
        "capabilities: {rerun: user}",
        "tunnel: vpn",
        "detect: [{comand: x}]",
    ],
)
def test_the_schema_and_hpcdet_refuse_the_same(tmp_path: Path, text: str) -> None:
    assert judged(yaml.safe_load(text))
    (tmp_path / "wrong.yaml").write_text(text)
    with pytest.raises(ConfigError):
        load_site.load(str(tmp_path / "wrong.yaml"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("partitions:\n  gpu:\n    min_node: 2\n", "did you mean 'min_nodes'?"),
        ("launcher:\n  comand: ibrun\n", "did you mean 'command'?"),
        ("container:\n  kind: apptainer\n  bind: [/a]\n", "did you mean 'binds'?"),
        ("capabilities:\n  rerum: none\n", "did you mean 'rerun'?"),
        ("\n\nchunks: {a: 1}\n", "did you mean 'chunk'?"),
        ("container: {kind: option}\n", "option: NAME"),
        ("partitions:\n  a: {walltime_by_nodes: {one: 2h}}\n", "valid integer"),
    ],
)
def test_a_typo_has_its_line_and_the_nearest_key(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_site.load(str(path))
    line = max(number for number, row in enumerate(text.splitlines(), 1) if row)
    assert said in str(caught.value)
    assert re.match(rf"{re.escape(str(path))}:({line}|{max(1, line - 1)}):", str(caught.value))


def test_a_resolved_site_reads_back_equal_with_every_new_key(tmp_path: Path) -> None:
    text = (
        "extends: generic-slurm\n"
        "detect: [{scontrol: ClusterName, match: '^x$'}, {command: sbatch}]\n"
        "capabilities: {rerun: server, arrays: true, history: false, query_from_compute: true}\n"
        "limits: {submit_per_min: 6, max_running: 4, max_running_project: 10, name_max: 15}\n"
        "paths: {images: /apps/images}\n"
        "chunk: {system: polaris}\nplace: scatter\ntunnel: node\n"
        "container: {kind: apptainer, binds: [/apps], args: [--nv]}\n"
        "launcher: {kind: mpiexec, command: ibrun}\n"
        "partitions:\n"
        "  prod:\n"
        "    {min_nodes: 10, max_nodes: 496, min_walltime_s: 5m, max_walltime_s: 24h,\n"
        "     walltime_by_nodes: {24: 3h, 99: 6h}, whole_nodes: true, preemptible: true,\n"
        "     chain: false, chunk: {ngpus: 4}}\n"
    )
    (tmp_path / "x.yaml").write_text(text)
    one = load_site.load(str(tmp_path / "x.yaml"))
    view = one.view("prod")
    assert view.chunk == {"system": "polaris", "ngpus": 4}
    limits = [view.longest_s(nodes) for nodes in (10, 24, 25, 99, 100, 496)]
    assert limits == [10800, 10800, 21600, 21600, 86400, 86400]
    kept = tmp_path / "site.yaml"
    kept.write_bytes(load_site.dump(one))
    assert load_site.from_resolved(kept).plain() == one.plain()
