"""Policies that require nodes, on a real PBS some of whose hosts have the resource ``gov_phi``.

A manager sets that up: ``create resource gov_phi type=boolean,flag=h``, ``set node HOST
resources_available.gov_phi=True`` on two of four hosts, and the resource in the scheduler's list.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcdet.read.views import views
from hpcdet.store.folder.records import WorkerEnd
from tests import experiments, governed_nodes
from tests.experiments import config, until
from tests.governed_nodes import CAPABILITY, FEATURE, GovernedNodes
from tests.pbs_runs import PbsLab
from tests.slurm_runs import Run

pytestmark = [pytest.mark.pbs, pytest.mark.xdist_group("pbs")]


@pytest.fixture
def nodes(lab: PbsLab, tmp_path: Path) -> GovernedNodes:
    """Hosts of which some have the resource, and none a statement yet."""
    if not having(lab):
        pytest.skip(f"no host of this PBS has the resource {FEATURE}")
    return GovernedNodes(tmp_path)


def having(lab: PbsLab) -> list[str]:
    """The hosts that have the resource."""
    shown = lab.cluster.check("pbsnodes", "-a").split("\n\n")
    marked = [text for text in shown if f"resources_available.{FEATURE} = True" in text]
    return [text.strip().splitlines()[0].strip() for text in marked]


def submit(lab: PbsLab, nodes: GovernedNodes, **changes: Any) -> Run:
    values = config(20, governance={"policy": "policy.yaml"}, **changes)
    governance = nodes.site()
    governance["capabilities"] = {CAPABILITY: {"pbs": {"select": {FEATURE: True}}}}
    site = lab.site(python=lab.fake, governance=governance)
    made = experiments.submit(values, lab.root, site, lab.model, governed_nodes.policy())
    run = Run(lab.cluster, made, lab.folder / "pace")  # type: ignore[arg-type]
    lab.runs.append(run)
    return run


def test_a_job_runs_where_the_policy_is_enforced(lab: PbsLab, nodes: GovernedNodes) -> None:
    enforcing = having(lab)
    nodes.attest(*enforcing)
    run = submit(lab, nodes)
    run.wait()
    assert run.reasons() == ["completed"] and set(run.claim().nodes) <= set(enforcing)
    [job] = run.submissions()
    select = lab.cluster.attributes(job)[job]["Resource_List"]["select"]
    assert select.endswith(f":{FEATURE}=True")


def test_a_host_without_its_statement_is_refused_and_another_one_trains(
    lab: PbsLab, nodes: GovernedNodes
) -> None:
    first, second = having(lab)[:2]
    nodes.attest(second)
    nodes.spoil("copied", first)
    run = submit(lab, nodes)
    run.wait()
    assert run.reasons() == ["completed"] and run.claim().nodes == [second]
    ends = [WorkerEnd.read(worker.end) for worker in run.paths.workers()]
    assert {node for end in ends if end for node in end.refused} <= {first}


def test_where_no_host_attests_it_the_experiment_waits_for_a_person(
    lab: PbsLab, nodes: GovernedNodes
) -> None:
    nodes.spoil("false", *having(lab))
    run = submit(lab, nodes)
    until(lambda: views.status(run.paths).state == "PAUSED", run.story)
    assert not run.paths.trial(1).attempts()
