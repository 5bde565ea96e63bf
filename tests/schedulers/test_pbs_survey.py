"""The survey of a cluster with PBS: its queues and hosts as a draft of a site file has them."""

from __future__ import annotations

from pathlib import Path

from hpcdet.jobs.site_draft import draft
from hpcdet.schedulers.pbs import server_survey
from hpcdet.schedulers.pbs_family import pbs_queues
from hpcdet.site_files import load_site
from tests import RECORDED

SERVER = """\
Server: vm
    server_state = Active
    server_host = vm
    default_queue = workq
    max_run = [u:PBS_GENERIC=40]
    pbs_version = 23.06.06
"""
QUEUES = """\
Queue: workq
    queue_type = Execution
    enabled = True
    started = True

Queue: prod
    queue_type = Route
    route_destinations = small,large
    resources_min.nodect = 10
    enabled = True
    started = True

Queue: small
    queue_type = Execution
    from_route_only = True
    resources_max.nodect = 24
    resources_max.walltime = 03:00:00
    enabled = True
    started = True

Queue: large
    queue_type = Execution
    from_route_only = True
    resources_max.nodect = 496
    resources_max.walltime = 24:00:00
    enabled = True
    started = True

Queue: debug
    queue_type = Execution
    resources_max.nodect = 2
    resources_max.walltime = 01:00:00
    resources_min.walltime = 00:05:00
    enabled = True
    started = True

Queue: closed
    queue_type = Execution
    enabled = False
    started = True
"""


def test_queues_and_hosts_are_in_the_draft(tmp_path: Path) -> None:
    shown = (RECORDED / "pbs" / "nodes.json").read_text()
    known = pbs_queues.attributes(SERVER, QUEUES)
    survey = server_survey.surveyed(known, shown)
    path = tmp_path / "vm.yaml"
    path.write_text(draft(survey.name, "vm.yaml", survey, "2026-11-24", {}))
    site = load_site.load(str(path))
    assert (site.name, site.scheduler, site.default_partition) == ("vm", "pbs", "workq")
    assert site.detect[0].of_cluster == ("pbs_conf", "PBS_SERVER")
    assert site.limits.max_running == 40
    assert site.partitions.keys() == {"workq", "prod", "debug"}
    prod, debug = site.view("prod"), site.view("debug")
    assert (prod.bounds.min_nodes, prod.bounds.max_nodes, prod.max_walltime_s) == (10, 496, 86400)
    assert (debug.bounds.min_walltime_s, debug.max_walltime_s) == (300, 3600)
    assert debug.cpus_per_node == 4 and not debug.chunk
    assert "4 nodes, 4 cores, 24105 MiB" in path.read_text()


def test_accelerators_are_asked_for_in_chunks(tmp_path: Path) -> None:
    shown = (
        (RECORDED / "pbs" / "nodes.json")
        .read_text()
        .replace('"ncpus":\t4,', '"ncpus":\t4, "ngpus": 8,')
    )
    survey = server_survey.surveyed(pbs_queues.attributes(SERVER, QUEUES), shown)
    path = tmp_path / "vm.yaml"
    path.write_text(draft("vm", "vm.yaml", survey, "2026-11-24", {}))
    site = load_site.load(str(path))
    assert site.view().slots_per_node == 8
    assert site.view().chunk == {"ngpus": "{{ slots_per_node }}"}
