"""Under a policy that requires nodes: nothing of the user's runs where the node is not attested."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcdet.control.requests import commands
from hpcdet.policy.ledger import records
from hpcdet.read.governed import recorded_words
from hpcdet.read.governed.governed_trials import governance
from hpcdet.read.views import views
from hpcdet.site import Site
from hpcdet.store.config import resolved_config
from hpcdet.store.decisions import chain
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import End, Intent, Verdict, WorkerEnd
from hpcdet.store.fs import files
from tests import experiments as x
from tests import governed_nodes
from tests.commands import Cli
from tests.governed_nodes import GovernedNodes

HERE = socket.gethostname()


class Lab:
    """Governed experiments on this machine, whose node is its host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes = GovernedNodes(folder)
        self.model = governed_nodes.write_model(folder / "model")
        self.touched = folder / "touched"
        self.touched.mkdir()
        self.pace = folder / "pace"
        x.set_pace(self.pace, 0.0)

    def site(self, **changes: Any) -> Site:
        return x.local_site(governance=self.nodes.site(), **changes)

    def elsewhere(self) -> str:
        """A Python whose ranks are on another node than their worker."""
        path = self.folder / "elsewhere"
        path.write_text(
            '#!/bin/bash\n[ "$2" = hpcdet.attempt ] && export SLURMD_NODENAME=other\n'
            f'exec {sys.executable} "$@"\n'
        )
        path.chmod(0o700)
        return str(path)

    def submit(self, **changes: Any) -> ExperimentPaths:
        """Submit; ``changes`` are those of the site."""
        own = {"TOUCHED": str(self.touched), "PACE": str(self.pace)}
        values = x.config(
            10,
            name="governed",
            entrypoint="model_def:Governed",
            hyperparameters={"global_batch_size": 8, "learning_rate": 0.01},
            governance={"policy": "policy.yaml"},
            environment={"environment_variables": own},
            max_restarts=0,
        )
        root = self.folder / "root"
        site = self.site(**changes)
        return x.submit(values, root, site, self.model, governed_nodes.policy())

    def paused(self, paths: ExperimentPaths) -> str:
        """Why it is paused; "" if it is not."""
        status = views.status(paths)
        return status.why if status.state == "PAUSED" else ""

    def until_paused(self, paths: ExperimentPaths) -> str:
        x.until(lambda: self.paused(paths), lambda: x.story(paths))
        return self.paused(paths)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with x.local_jobs(tmp_path / "state"):
        yield Lab(tmp_path)


def test_an_attested_node_trains(lab: Lab) -> None:
    lab.nodes.attest(HERE)
    paths = lab.submit()
    assert x.run_to_end(paths).state == "COMPLETED"
    assert list(lab.touched.iterdir())
    # what the node has stated stands in the ledger, and in what each checkpoint signs
    trial = paths.trial(1)
    ledger = records.read(1, trial.attempt(1).ledger)
    assert ledger is not None
    [stated] = [one.body["nodes"] for one in ledger.records if one.type == "site_attest"]
    assert [(one["node"], one["level"]) for one in stated] == [(HERE, "signed")]
    assert stated[0]["digest"].startswith("sha256:") and stated[0]["not_after"]
    [item] = governance(paths)
    assert (item.unverified, item.recorded["site"]) == ("", stated)
    assert dict(recorded_words.recorded(item))["statements of nodes"].startswith(f"{HERE} signed ")


def test_workers_claim_nothing_on_a_refused_node_and_a_repaired_one_goes_on(lab: Lab) -> None:
    lab.nodes.spoil("false", HERE)
    paths = lab.submit()
    why = lab.until_paused(paths)
    assert "2 workers in turn met nodes that do not attest" in why
    assert f"node {HERE} does not attest enclave_phi" in why
    ends = [WorkerEnd.read(worker.end) for worker in paths.workers()]
    assert [(end.why, list(end.refused), end.returns) for end in ends if end] == [
        ("bad_node", [HERE], False)
    ] * 2
    assert paths.trial(1).attempts() == []
    assert list(lab.touched.iterdir()) == []
    lab.nodes.attest(HERE)
    commands.ask(paths, "resume")
    x.turn(paths)
    assert x.run_to_end(paths).state == "COMPLETED"


def test_ranks_verify_their_node_before_they_import_user_code(lab: Lab) -> None:
    lab.nodes.attest(HERE)
    lab.nodes.spoil("rebooted", "other")
    paths = lab.submit(python=lab.elsewhere())
    why = lab.until_paused(paths)
    assert "the statement is of another boot of other" in why
    ended = [End.read(one.end) for one in paths.trial(1).attempts()]
    assert [(end.reason, end.nodes, end.progressed) for end in ended if end] == [
        ("refused", ["other"], False)
    ] * 2
    verdict = Verdict.read(paths.trial(1).attempt(1).verdict)
    assert verdict is not None and (verdict.verdict, verdict.cause) == ("resume", "refused")
    assert list(lab.touched.iterdir()) == []
    row = views.status(paths).trials[0]
    assert (row.failures, row.state) == (0, "PENDING")


def test_a_policy_that_is_gone_lets_nobody_in(lab: Lab) -> None:
    lab.nodes.attest(HERE)
    paths = lab.submit()
    paths.compiled_policy.unlink()
    why = lab.until_paused(paths)
    assert "G110" in why
    assert "attest" not in why and "left out" not in why, "no node is at fault"
    intents = [Intent.read(paths.intent(number)) for number in paths.submissions()]
    assert [intent.exclude for intent in intents if intent] == [[]] * len(intents)
    assert list(lab.touched.iterdir()) == []


def test_a_config_that_was_edited_since_trains_nothing(lab: Lab) -> None:
    lab.nodes.spoil("false", HERE)
    paths = lab.submit()
    lab.until_paused(paths)
    lab.nodes.attest(HERE)
    config = yaml.safe_load(paths.config.read_text())
    config["governance"], config["searcher"]["constraints"] = None, []
    paths.config.write_bytes(resolved_config.dump(config))
    commands.ask(paths, "resume")
    x.turn(paths)
    assert "G110: the config names no policy" in lab.paused(paths)
    assert paths.trial(1).attempts() == []
    assert list(lab.touched.iterdir()) == []


def test_a_change_from_anywhere_that_takes_jobs_elsewhere_is_not_obeyed(lab: Lab) -> None:
    lab.nodes.spoil("false", HERE)
    paths = lab.submit()
    lab.until_paused(paths)
    site = yaml.safe_load(paths.site.read_text())
    paths.site.write_text(yaml.safe_dump({**site, "scheduler": "slurm"}))
    change: dict[str, Any] = {"slurm.sbatch_args": ["--clusters=other"]}
    commands.ask(paths, "set", **change)
    x.turn(paths)
    (told,) = [line for line in chain.read(paths) if line["kind"] == "command"]
    assert "P17" in told["refused"] and "--clusters=other" in told["refused"]


def test_layers_of_a_model_come_from_an_attested_node(
    lab: Lab, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = lab.folder / "here.yaml"
    site = {"extends": "local", "limits": {"poll_min_s": 0.2}, "governance": lab.nodes.site()}
    files.replace(file, yaml.safe_dump(site).encode())
    monkeypatch.setenv("HPCDET_SITE", str(file))
    monkeypatch.setenv("HPCDET_ROOT", str(lab.folder / "root"))
    values = governed_nodes.config(lab.touched, lab.pace)
    config = governed_nodes.write_config(lab.model / "c.yaml", values | {"slurm": {}})
    words = ("policy", "compile", lab.model / "policy.yaml", "--model", config, "-o", "json")
    lab.nodes.spoil("false", HERE)
    assert "does not attest enclave_phi" in cli(*words, code=4).err
    assert list(lab.touched.iterdir()) == []
    lab.nodes.attest(HERE)
    assert [one["layer"] for one in cli(*words).items[0]["parameters"]]
    assert list(lab.touched.iterdir())
