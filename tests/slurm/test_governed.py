"""Policies that require nodes, on a private Slurm: fake ranks, real workers, the submit filter.

``make governed-scheduling`` shows the whole of it with real ranks; a dose of it is run here.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdet import shipped
from hpcdet.read.views import views
from hpcdet.store.folder.records import Intent, WorkerEnd
from tests import TOP, experiments, governed_nodes
from tests.experiments import config, until
from tests.governed_nodes import FEATURE, GovernedNodes
from tests.slurm_runs import Lab, Run, hpcdet
from tests.slurm_sites import write_site

sys.path.insert(0, str(TOP / "benchmarks"))

import governed_scheduling  # type: ignore[import-not-found]

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-b")]


@pytest.fixture
def nodes(lab_b: Lab, tmp_path: Path) -> Iterator[GovernedNodes]:
    """n1 and n2 have the feature; no node has a statement yet."""
    found = GovernedNodes(tmp_path, lab_b.cluster)
    found.advertise("n1", "n2")
    yield found
    found.advertise()


def submit(lab: Lab, nodes: GovernedNodes, **changes: Any) -> Run:
    values = config(
        20,
        governance={"policy": "policy.yaml"},
        slurm={"sbatch_args": ["--exclusive"]},
        **changes,
    )
    site = lab.site(python=lab.fake, governance=nodes.site())
    made = experiments.submit(values, lab.root, site, lab.model, governed_nodes.policy())
    run = Run(lab.cluster, made, lab.folder / "pace")
    lab.runs.append(run)
    return run


def test_a_node_without_its_statement_is_left_out_and_another_one_trains(
    lab_b: Lab, nodes: GovernedNodes
) -> None:
    nodes.attest("n2")
    nodes.spoil("copied", "n1")
    run = submit(lab_b, nodes)
    run.wait()
    assert run.reasons() == ["completed"] and run.claim().nodes == ["n2"]
    intents = [Intent.read(run.paths.intent(number)) for number in run.paths.submissions()]
    assert [intent.exclude for intent in intents if intent] in ([[]], [[], ["n1"]])
    ends = [WorkerEnd.read(worker.end) for worker in run.paths.workers()]
    assert [list(end.refused) for end in ends if end and end.refused] in ([], [["n1"]])


def test_no_later_change_takes_jobs_elsewhere(lab_b: Lab, nodes: GovernedNodes) -> None:
    nodes.spoil("false", "n1", "n2")
    run = submit(lab_b, nodes)
    until(lambda: views.status(run.paths).state == "PAUSED", run.story)
    for changes in (
        ["slurm.sbatch_args=['--clusters=other']"],
        [f"slurm.sbatch_args=['--constraint={FEATURE}*1']"],
        ["resources.nodes=3", "resources.slots_per_trial=3"],
    ):
        flags = [word for change in changes for word in ("--set", change)]
        for words in (["set", run.paths.id, *changes], ["resume", run.paths.id, *flags]):
            done = hpcdet(*words)
            assert (done.returncode, "P17" in done.stderr) == (4, True), done.stderr
    assert views.status(run.paths).state == "PAUSED"


def test_a_check_of_the_site_counts_the_nodes_of_each_capability(
    lab_b: Lab, nodes: GovernedNodes
) -> None:
    governance = nodes.site()
    governance["capabilities"]["nowhere"] = {"slurm": {"constraint": "gov_none"}}
    site = write_site(lab_b.folder, lab_b.cluster, governance=governance)
    done = hpcdet("site", "check", str(site), "-o", "json")
    assert "capability enclave_phi: nodes: 2 in batch" in done.stdout, done
    assert done.returncode == 4 and "capability nowhere: no node has gov_none" in done.stderr


def _filter() -> str:
    """The shipped filter, for the partition ``batch``."""
    text = (shipped.folder("governance") / "site" / "job_submit.lua").read_text()
    ours = 'phi = {accounts = {lab_phi = true}, features = {"gov_phi"}},'
    assert ours in text
    return text.replace(ours, 'batch = {accounts = {root = true}, features = {"gov_phi"}},')


def test_the_submit_filter_keeps_out_what_gets_around_the_policy(
    lab_b: Lab, nodes: GovernedNodes
) -> None:
    cluster = lab_b.cluster
    cluster.reconfigure(dataclasses.replace(cluster.options, submit_filter=_filter()))
    nodes.advertise("n1", "n2")  # a controller that starts anew knows its configuration only

    def ask(*words: str) -> str:
        job = ("sbatch", "--parsable", "-H", "-o", "/dev/null", *words, "--wrap", "true")
        done = cluster.call(*job)
        return "" if done.returncode == 0 else done.stderr

    good = ("-p", "batch", "-A", "root")
    for constraint in ("gov_phi", "(gov_phi|other)&gov_phi", "gov_phi&gov_phi"):
        assert "gov_phi" not in ask(*good, "-C", constraint), constraint
    for words in (
        (*good,),
        (*good, "-C", "gov_phi2"),
        (*good, "-C", "gov_phi|other"),
        (*good, "-C", "(gov_phi|other)"),
        (*good, "-C", "gov_phi*1"),
        (*good, "-C", "[gov_phi|other]&gov_phi"),
    ):
        assert "constraint" in ask(*words), words
    assert "takes no jobs of account other" in ask("-p", "batch", "-A", "other", "-C", "gov_phi")
    assert ask("-p", "patient", "-A", "other") == ""
    job = cluster.check(
        *("sbatch", "--parsable", "-H", "-o", "/dev/null", *good, "-C", "gov_phi"),
        *("--wrap", "true"),
    ).strip()
    for change in ("Features=", "Features=other", "Account=other"):
        assert cluster.call("scontrol", "update", f"JobId={job}", change).returncode != 0, change
    assert "Features=gov_phi " in cluster.check("scontrol", "show", "job", job)


def test_a_dose_of_the_campaign_on_real_ranks(
    lab_b: Lab, nodes: GovernedNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused at submission, and a statement that ends under a trial."""
    for name in (*lab_b.cluster.environment(), "HPCDET_ROOT", "HPCDET_CACHE"):
        monkeypatch.setenv(name, "")  # which are put back at the end
    folder = tmp_path / "campaign"
    folder.mkdir(mode=0o700)
    bench = governed_scheduling.Bench(lab_b.cluster, folder)
    bench.nodes.attest(*governed_scheduling.GOOD)
    found = [
        *governed_scheduling.refused_at_submit(bench),
        *governed_scheduling.after_a_requeue(bench, "expired"),
    ]
    assert len(found) == 14 and not [one for one in found if not one.met]
