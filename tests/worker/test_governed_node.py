"""A worker's node by what the scheduler shows of it, beside its statement."""

from __future__ import annotations

import dataclasses
import json
import socket
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hpcdet.jobs.script import requirements
from hpcdet.policy.changes import known_changes
from hpcdet.policy.changes.change_writer import ChangeWriter
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.policy.compiled import PolicyText, TrustedKey
from hpcdet.policy.keys import key_files
from hpcdet.schedulers.common.allocation import Allocation
from hpcdet.schedulers.slurm import slurm_inside
from hpcdet.schedulers.slurm.answers import slurm_features
from hpcdet.site_files import load_site
from hpcdet.store.config import resolved_config
from hpcdet.store.config.resolved_config import Governance
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.train.attempt import node_proof
from hpcdet.worker.allocation.governed_node import GovernedNode
from tests import experiments as x
from tests import governed_nodes
from tests.governed_nodes import GovernedNodes

HOST = socket.gethostname().partition(".")[0]
SHOWN = "NodeName=n1 Arch=x86_64 AvailableFeatures={0} ActiveFeatures={0} NodeHostName={1} Port=0"


class Place:
    """A governed experiment's files, and a worker on node n1."""

    def __init__(self, folder: Path, environ: pytest.MonkeyPatch) -> None:
        self.nodes = GovernedNodes(folder)
        self.paths = ExperimentPaths(folder)
        self.policy = governed_nodes.policy().compiled
        self.paths.compiled_policy.write_text(self.policy.to_json())
        self.site = x.local_site(scheduler="slurm", governance=self.nodes.site())
        self.paths.site.write_bytes(load_site.dump(self.site))
        self.environ = environ
        environ.setenv("SLURMD_NODENAME", "n1")

    def refusal(self, shown: str | None, nodes: tuple[str, ...] = ("n1",)) -> str:
        """What speaks against the node, where ``scontrol`` answers so; None: not at all."""
        self.environ.setattr(slurm_inside, "ask", lambda *_: shown)
        plain = resolved_config.resolve(x.config())
        config = governed_nodes.under(plain, self.policy)
        there = Allocation("7_0", nodes, steps_hear=True)
        return GovernedNode(self.paths, config, self.site, there).refusal()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def test_statement_and_scheduler_must_agree(place: Place) -> None:
    good = SHOWN.format("a100,gov_phi", HOST)
    assert "no statement can be read" in place.refusal(good)
    place.nodes.attest("n1")
    assert place.refusal(good) == ""
    assert place.refusal(None) == ""  # who does not answer is no evidence
    assert place.refusal("slurm_load_node error") == ""
    without = SHOWN.format("(null)", HOST)
    assert "shows node n1 without gov_phi" in place.refusal(without)
    assert "shows node n1 without gov_phi" in place.refusal(SHOWN.format("gov_phi2", HOST))
    other = SHOWN.format("gov_phi", "other.example.org")
    assert f"host other.example.org to the scheduler, and this is {HOST}" in place.refusal(other)
    assert place.refusal(SHOWN.format("gov_phi", f"{HOST}.example.org")) == ""
    assert "is none of this job's" in place.refusal(good, ("n2",))
    place.nodes.spoil("expired", "n1")
    assert "the statement ended at" in place.refusal(good)


def test_it_hears_of_a_statement_that_ends_while_it_works(place: Place) -> None:
    place.nodes.attest("n1")
    place.environ.setattr(slurm_inside, "ask", lambda *_: None)
    plain = resolved_config.resolve(x.config())
    config = governed_nodes.under(plain, place.policy)
    node = GovernedNode(place.paths, config, place.site, Allocation("", ("n1",)))
    assert node.refusal() == ""
    place.nodes.spoil("copied", "n1")
    assert "is of node elsewhere, and this is n1" in node.refusal()


def test_a_site_key_that_the_policy_trusts_no_more_attests_nothing(place: Place) -> None:
    """Neither to a worker that works already, nor to a rank, nor to a job that is asked for."""
    other = key_files.public(Ed25519PrivateKey.generate())
    keys = [TrustedKey("old", "site", place.nodes.public), TrustedKey("new", "site", other)]
    trusting = dataclasses.replace(place.policy, trust=tuple(keys))
    place.paths.compiled_policy.write_text(trusting.to_json())
    place.nodes.attest("n1")
    place.environ.setattr(slurm_inside, "ask", lambda *_: None)
    run_key = {"stored": "governance.run_key"}
    place.paths.secrets.write_text(json.dumps({run_key["stored"]: "5a" * 32}))
    place.paths.secrets.chmod(0o600)
    plain = governed_nodes.under(resolved_config.resolve(x.config()), trusting)
    signer = key_files.public(Ed25519PrivateKey.from_private_bytes(bytes([0x5A]) * 32))
    governance = Governance("policy.yaml", run_key, digest=trusting.digest, signer=signer)
    config = dataclasses.replace(plain, governance=governance)
    node = GovernedNode(place.paths, config, place.site, Allocation("", ("n1",)))
    looks, by_ledgers = list[ExperimentPaths](), known_changes.by_ledgers

    def counted(paths: ExperimentPaths) -> list[known_changes.KnownChanges]:
        looks.append(paths)
        return by_ledgers(paths)

    with place.environ.context() as counting:
        counting.setattr(known_changes, "by_ledgers", counted)
        assert [node.refusal() for _ in range(3)] == [""] * 3
    assert len(looks) == 1, "the ledgers of all trials are not opened at each look"
    node_proof.require(place.paths, config)
    assert requirements.of_experiment(config, place.paths, place.site) is not None
    fewer = dataclasses.replace(trusting, version=2, trust=(keys[1],))
    change = ChangeWriter(place.paths, governance).change(PolicyText("", fewer), "it was lost")
    assert change.change.kind == "tighten"
    assert "P17" in node.refusal() and "does not trust" in node.refusal()
    with pytest.raises(PolicyRefused, match=r"P17.*does not trust"):
        requirements.of_experiment(config, place.paths, place.site)
    with pytest.raises(GovernanceBroken, match=r"G121.*no trusted key has signed"):
        node_proof.require(place.paths, config)


def test_features_are_read_from_scontrol() -> None:
    found = slurm_features.node(SHOWN.format("a,b", "h"))
    assert found is not None and found.features == {"a", "b"} and found.host == "h"
    assert slurm_features.node("") is None
