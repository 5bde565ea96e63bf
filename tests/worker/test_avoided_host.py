"""Workers on hosts that are to be avoided, under a scheduler that cannot leave hosts out."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcdet.read.experiment import gather
from hpcdet.read.explanation import findings
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Claim, Closed, Intent, WorkerClaim, WorkerEnd
from hpcdet.worker import avoided_host
from tests import experiments as x
from tests.local.test_experiments import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with x.local_jobs(tmp_path / "state"):
        yield Lab(tmp_path)


def test_it_stays_until_its_replacement_runs_elsewhere(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    me, bad = paths.worker(1, 0, 0), ["pb1"]
    WorkerClaim("1.vm", "pb1", 1, nodes=bad).write_once(me.claim)
    WorkerClaim("2.vm", "pb1", 1, nodes=["pb1", "pb2"]).write_once(paths.worker(2, 0, 0).claim)
    waits: list[int] = []

    def wait() -> bool:
        waits.append(len(waits))
        if len(waits) == 3:
            WorkerClaim("3.vm", "pb2", 1, nodes=["pb2"]).write_once(paths.worker(3, 0, 0).claim)
        return len(waits) < 9

    avoided_host.stay(paths, me, bad, wait)
    assert len(waits) == 3
    Closed("COMPLETED").write_once(paths.closed)
    avoided_host.stay(paths, paths.worker(9, 0, 0), bad, wait)
    assert len(waits) == 3


def test_it_leaves_at_a_notice(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    avoided_host.stay(paths, paths.worker(1, 0, 0), ["pb1"], lambda: False)
    avoided_host.stay(paths, paths.worker(1, 0, 0), ["pb1"], lambda: True, longest_s=0)


def test_hosts_are_avoided_that_the_submission_names(tmp_path: Path) -> None:
    paths = ExperimentPaths(tmp_path)
    assert avoided_host.avoided(paths, 1, ["pb1"]) == []
    intent = Intent(1, "e-1", "t", tasks=1, throttle=1, term=1, exclude=["pb3", "pb1"])
    intent.write_once(paths.intent(1))
    assert avoided_host.avoided(paths, 1, ["pb1", "pb2"]) == ["pb1"]


def test_a_worker_that_wakes_on_one_takes_nothing_and_is_replaced(lab: Lab) -> None:
    """This machine is the only one here: the worker that must not be here ends, as does each."""
    here = socket.gethostname()
    config = x.config(20, resources={"exclude_nodes": [here]})
    paths = lab.submit(config, lab.site(capabilities={"requeue": "none"}, lease_ttl_s=1))
    first = paths.worker(1, 0, 0)
    x.until(lambda: first.end.exists(), lambda: x.story(paths))
    end = WorkerEnd.read(first.end)
    assert end is not None and end.why == "avoided"
    x.until(lambda: len(paths.submissions()) > 1, lambda: x.story(paths))
    assert not any(Claim.read(one.claim) for one in paths.trial(1).attempts())
    [found] = findings._avoided(gather.gather(paths))
    assert f"worker {first.name} on {here}" in found.evidence
    Closed("CANCELED").write_once(paths.closed)
