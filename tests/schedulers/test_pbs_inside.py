"""What a PBS server says of itself, and to a worker inside a job."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcdet.errors import ConfigError
from hpcdet.jobs.checks import site_checks
from hpcdet.launchers import pbsdsh
from hpcdet.launchers.common import StepRequest
from hpcdet.launchers.mpirun import LAUNCHER
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.schedulers.common.backend import RemoteDaemons
from hpcdet.schedulers.common.base import TaskState
from hpcdet.schedulers.pbs import pbs_facts, pbs_inside, remote_shell, server_survey
from hpcdet.schedulers.pbs_family import pbs_queues
from hpcdet.schedulers.pbs_family.pbs_names import NAMES
from hpcdet.site_files import load_site as sites
from hpcdet.store.config.placement import Resources
from hpcdet.store.config.resolved_config import Resolved
from tests.schedulers.pbs_fakes import (
    Fake,
    calls,
    printed,
    recorded,
    says,
)

PENDING, RUNNING = TaskState.PENDING, TaskState.RUNNING


# -- what the server says of itself -------------------------------------------------------


def attributes(more: str = "") -> dict[str, dict[str, str]]:
    return pbs_queues.attributes(recorded("server.txt"), recorded("queues.txt") + more)


ROUTES = """
Queue: prod
    queue_type = Route
    route_destinations = small,large
    enabled = True
    started = True

Queue: small
    queue_type = Execution
    kill_delay = 60
    max_array_size = 50
    resources_min.nodect = 10
    resources_min.walltime = 00:05:00
    resources_max.nodect = 24
    resources_max.walltime = 03:00:00
    from_route_only = True
    enabled = True
    started = True

Queue: large
    queue_type = Execution
    kill_delay = 45
    max_array_size = 20
    resources_min.nodect = 25
    resources_min.walltime = 00:30:00
    resources_max.nodect = 496
    resources_max.walltime = 24:00:00
    from_route_only = True
    enabled = True
    started = False
"""


def test_queues_and_what_they_lead_to() -> None:
    found = {one.name: one for one in pbs_queues.partitions(attributes(ROUTES), 4)}
    assert found.keys() == {"workq", "express", "prod"}
    assert [name for name, one in found.items() if one.default] == ["workq"]
    assert (found["workq"].max_walltime_s, found["workq"].widest) == (None, 4)
    # a routing queue gives what the widest of those behind it gives
    assert (found["prod"].max_walltime_s, found["prod"].max_nodes) == (86400, 496)
    # and takes what the easiest of them takes, unless it asks for more itself
    assert (found["prod"].min_walltime_s, found["prod"].min_nodes) == (300, 10)
    assert (found["workq"].min_walltime_s, found["workq"].min_nodes) == (None, 1)
    strict = ROUTES.replace("= Route\n", "= Route\n    resources_min.nodect = 12\n")
    [prod] = [one for one in pbs_queues.partitions(attributes(strict), 4) if one.name == "prod"]
    assert prod.min_nodes == 12
    strict = ROUTES.replace("= Route\n", "= Route\n    resources_max.nodect = 100\n")
    [prod] = [one for one in pbs_queues.partitions(attributes(strict), 4) if one.name == "prod"]
    assert prod.max_nodes == 100, "it takes no wider jobs, wherever they might go"


@pytest.mark.parametrize(
    ("need", "where", "said"),
    [
        (Resources(nodes=9), "resources.nodes", "prod takes jobs of 10 nodes and more"),
        (Resources(nodes=10, walltime_s=299), "resources.walltime_s", "at least 5 min"),
        (Resources(nodes=497), "resources.nodes", "at most 496"),
    ],
)
def test_what_no_queue_behind_a_routing_queue_takes_is_refused(
    tmp_path: Path, fake_pbs: Fake, need: Resources, where: str, said: str
) -> None:
    _of_server(tmp_path, fake_pbs, recorded("queues.txt") + ROUTES)
    fake_pbs("pbsnodes", "exit 0")
    asked = Resolved(resources=replace(need, resource_pool="prod", slots_per_trial=need.nodes))
    with pytest.raises(ConfigError, match=said) as caught:
        site_checks.refuse_impossible(asked, sites.load("generic-pbs"))
    assert caught.value.where == where
    fits = replace(asked, resources=replace(asked.resources, nodes=10, walltime_s=300))
    assert site_checks.refuse_impossible(fits, sites.load("generic-pbs")) == []


def test_of_a_routing_queue_the_limits_are_asked_of_those_behind_it(
    tmp_path: Path, fake_pbs: Fake
) -> None:
    _of_server(tmp_path, fake_pbs, recorded("queues.txt") + ROUTES)
    found, said = pbs_facts.resolved(sites.load("generic-pbs"), "prod")
    assert not said and (found.limits.max_array, found.limits.kill_wait_s) == (50, 45)
    assert found.origins["limits.kill_wait_s"].endswith("kill_delay=60, 45 of prod")


def _of_server(tmp_path: Path, fake_pbs: Fake, queues: str) -> None:
    (tmp_path / "server").write_text(recorded("server.txt"))
    (tmp_path / "queues").write_text(queues)
    fake_pbs("qstat", f'case "$1" in -Bf) cat {tmp_path}/server;; *) cat {tmp_path}/queues;; esac')


def test_hosts_by_what_they_have() -> None:
    shown = pbs_queues.hosts(recorded("nodes.json"))
    assert [one.host for one in shown] == ["pb1", "pb2", "pb3", "pb4"]
    assert shown[0].features == frozenset()  # how much it has is no feature
    marked = recorded("nodes.json").replace(
        '"vnode":	"pb2"', '"vnode":	"pb2", "gov_phi":	"True"'
    )
    groups = pbs_queues.groups(attributes(), pbs_queues.hosts(marked))
    assert {(g.partition, g.nodes) for g in groups if g.features == {"gov_phi=True"}} == {
        ("workq", 1),
        ("express", 1),
    }
    assert pbs_queues.hosts("{") == []


def test_a_survey_is_what_a_site_file_can_begin_with() -> None:
    found = server_survey.surveyed(attributes(ROUTES), recorded("nodes.json"))
    assert (found.name, found.parent, found.scheduler) == ("vm", "generic-pbs", "PBS 23.06.06")
    assert found.detect == {"pbs_conf": "PBS_SERVER", "match": "^vm(\\.|$)"}
    [workq] = [queue for queue in found.queues if queue.name == "workq"]
    assert (workq.default, workq.nodes, workq.cpus_per_node, workq.memory_mib) == (
        True,
        4,
        4,
        24105,
    )
    bare = server_survey.surveyed({"": {}}, "{")
    assert bare.queues == () and "job_history_enable" in bare.remarks[0]


def test_what_a_site_file_leaves_open_is_asked_once(tmp_path: Path, fake_pbs: Fake) -> None:
    limited = recorded("server.txt") + "    max_queued = [u:PBS_GENERIC=7]\n"
    queues = recorded("queues.txt").replace("Queue: workq", "Queue: workq\n    kill_delay = 30")
    (tmp_path / "server").write_text(limited)
    (tmp_path / "queues").write_text(queues)
    fake_pbs("qstat", f'case "$1" in -Bf) cat {tmp_path}/server;; *) cat {tmp_path}/queues;; esac')
    site = sites.load("generic-pbs")
    assert "limits.max_submit" in site.open
    for _ in range(2):
        found, said = pbs_facts.resolved(site)
    assert not said and not found.open and len(calls(tmp_path, "qstat")) == 2
    assert (found.limits.max_array, found.limits.max_submit) == (10000, 7)
    assert found.limits.kill_wait_s == 30 and found.capabilities.history is True
    assert found.origins["limits.max_submit"].endswith("max_queued=7 of the server")
    assert found.capabilities.arrays is False, "the shipped file says so"
    by_answer = (("server", "10000", True), ("server", "1", False), ("none", "9", False))
    for rerun, most, arrays in by_answer:
        (tmp_path / "server").write_text(limited.replace("size = 10000", f"size = {most}"))
        own = tmp_path / "own.yaml"
        own.write_text(f"extends: generic-pbs\ncapabilities: {{rerun: {rerun}, arrays: null}}\n")
        asked, _ = pbs_facts.resolved(sites.load(str(own)), fresh=True)
        assert asked.capabilities.arrays is arrays, (rerun, most)
    (tmp_path / "server").write_text(limited)
    fake_pbs("qstat", "exit 255")
    again, said = pbs_facts.resolved(site, fresh=True)
    assert "did not answer" in said and again.limits.max_submit == 7
    unasked, said = pbs_facts.resolved(site, ask=False)
    assert "careful values" in said and unasked.limits.max_submit is None


# -- inside a job -------------------------------------------------------------------------


def inside_of(tmp_path: Path, fake_pbs: Fake, **job: Any) -> dict[str, str]:
    """The environment of a job on two hosts, of which the server says this."""
    shown = {"id": "12.vm", "job_state": "R", "substate": 42, "run_count": 2, **job}
    fake_pbs("qstat", says(printed(shown)))
    (tmp_path / "nodes").write_text("pb1\npb1\npb2\npb2\n")
    return {"PBS_JOBID": "12.vm", "PBS_NODEFILE": str(tmp_path / "nodes")}


def test_a_worker_asks_for_its_start_and_its_end(tmp_path: Path, fake_pbs: Fake) -> None:
    environ = inside_of(
        tmp_path,
        fake_pbs,
        stime="Sat Nov 21 06:02:09 2026",
        Resource_List={"walltime": "00:10:00"},
    )
    found = pbs_inside.allocation(environ, 99)
    assert (found.job, found.nodes, found.restart, found.counted) == (
        "12.vm",
        ("pb1", "pb2"),
        1,
        True,
    )
    assert found.end_at == 1795240929 + 600
    fake_pbs("qstat", "exit 255")
    blind = pbs_inside.allocation(environ, 99)
    assert not blind.counted and blind.end_at is not None and blind.end_at > time.time()
    assert pbs_inside.allocation({"HPCDET_JOB": "by-hand_0"}, None).job == "by-hand_0"


@pytest.mark.parametrize(
    ("job", "stands", "returns"),
    [
        ({}, True, False),
        ({"job_state": "S"}, True, False),
        ({"comment": "Job run at … and terminated by bob@vm"}, True, False),  # a successor may come
        ({"substate": 60}, False, True),  # preempted, or rerun
        ({"job_state": "E", "substate": 60, "Exit_status": -11}, False, True),
        ({"job_state": "Q", "substate": 10}, False, True),
        ({"run_count": 3}, False, True),  # its copy runs elsewhere
        ({"job_state": "F", "substate": 93}, False, False),
    ],
)
def test_the_server_says_whether_an_allocation_stands_and_returns(
    tmp_path: Path,
    fake_pbs: Fake,
    job: dict[str, Any],
    stands: bool,
    returns: bool,
) -> None:
    inside_of(tmp_path, fake_pbs, **job)
    allocation = Allocation("12.vm", ("pb1",), 1)
    assert (pbs_inside.stands(allocation), pbs_inside.returns(allocation)) == (stands, returns)
    fake_pbs("qstat", "exit 255")
    assert pbs_inside.stands(allocation) and not pbs_inside.returns(allocation)


def step_request(folder: Path, environ: dict[str, str], daemons: RemoteDaemons) -> StepRequest:
    """Two ranks on each of two hosts."""
    return StepRequest(
        rank=("rank",),
        environ=environ,
        nodes=2,
        ranks=4,
        ranks_per_node=2,
        cpus_per_rank=1,
        memory_per_node=None,
        name="1-1",
        lanes=1,
        hosts=(),
        gpus=0,
        mpi=False,
        args=(),
        command="",
        daemons=daemons,
        python="py",
        folder=folder,
    )


def test_mpirun_reaches_the_hosts_of_a_job_and_sends_its_ranks_what_they_need(
    tmp_path: Path, fake_pbs: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = inside_of(tmp_path, fake_pbs)
    monkeypatch.setenv("PBS_NODEFILE", environ["PBS_NODEFILE"])
    daemons = pbs_inside.daemons("py", Allocation("12.vm", ("pb1", "pb2")))
    assert daemons.arguments == ("-host", "pb1:2,pb2:2")
    agent = daemons.environment["OMPI_MCA_plm_rsh_agent"]
    assert agent == "py -Pm hpcdet.schedulers.pbs.remote_shell"
    environ = {"A": "1", "PBS_JOBID": "12.vm", "BASH_FUNC_x%%": "() {}", "OMPI_MCA_btl": "tcp"}
    request = step_request(tmp_path, environ, daemons)
    argv = LAUNCHER.step(request).argv
    assert [argv[i + 1] for i, word in enumerate(argv) if word == "-x"] == ["A"]
    group = pbs_inside.daemons("py", Allocation("12.vm", ("pb2",)))
    assert group.arguments == ("-host", "pb2:2"), "the other host has another trial"
    on_it = replace(request, nodes=1, ranks=2, hosts=("pb2",), daemons=group)
    argv = LAUNCHER.step(on_it).argv
    assert argv[argv.index("-host") + 1] == "pb2:2" and "-x" in argv, "it may be another host"
    monkeypatch.delenv("PBS_NODEFILE")
    assert pbs_inside.daemons("py", Allocation("", ("here",))).arguments == ()


def test_ranks_without_mpi_start_on_the_hosts_of_their_group(
    tmp_path: Path, fake_pbs: Fake
) -> None:
    """Of a job's hosts, ``pbsdsh`` takes the number of a line in the file that lists them."""
    environ = inside_of(tmp_path, fake_pbs)
    assert Path(environ["PBS_NODEFILE"]).read_text().split() == ["pb1", "pb1", "pb2", "pb2"]
    fake_pbs("pbsdsh", 'echo "$1 $2" >> "$0.said"; shift 3; exec "$@"')
    out = tmp_path / "ranks"
    given = {**os.environ, "PBS_NODEFILE": environ["PBS_NODEFILE"]}
    group = pbs_inside.daemons("py", Allocation("12.vm", ("pb2",)))
    request = replace(
        step_request(tmp_path, given, group),
        rank=("sh", "-c", f'echo "$RANK of $WORLD_SIZE" >> {out}'),
        nodes=1,
        ranks=2,
        hosts=("pb2",),
        python=sys.executable,
    )
    plan = pbsdsh.LAUNCHER.step(request)
    for extra in plan.processes:
        subprocess.run(plan.argv, env={**plan.environment, **extra}, check=True)
    assert out.read_text().splitlines() == ["0 of 2", "1 of 2"]
    [said] = (file for file in tmp_path.rglob("pbsdsh.said"))
    assert said.read_text().splitlines() == ["-n 2", "-n 3"]


def test_the_remote_shell_starts_what_ssh_would(fake_pbs: Fake) -> None:
    fake_pbs("pbs_tmrsh", "true")
    words = ["-x", "-l", "alice", "pb2", "orted", "-mca", "ess", '"env"']
    program, *rest = remote_shell.command(words)
    assert program.endswith("/pbs_tmrsh")
    assert rest == ["pb2", "/bin/sh", "-c", 'orted -mca ess "env"']


@pytest.mark.parametrize(
    ("text", "job", "means"),
    [
        ("12", "12.vm", True),
        ("12", "12[].vm", True),
        ("pbs:12.vm", "12.vm", True),
        ("12[3].vm", "12[].vm", True),
        ("12[3]", "12[].vm", True),
        ("12.other", "12.vm", False),
        ("112", "12.vm", False),
        ("slurm:12", "12.vm", False),
    ],
)
def test_ids_as_people_write_them(text: str, job: str, means: bool) -> None:
    assert NAMES.means(text, job) is means
    assert NAMES.task_id("12[].vm", 3) == "12[3].vm" and NAMES.job_of("12[3].vm") == "12[].vm"
    assert NAMES.waited_for("pbs:12.vm") == "12.vm" and NAMES.waited_for("12[3].vm") is None
