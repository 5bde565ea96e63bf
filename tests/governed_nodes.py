"""Nodes of a private Slurm that enforce a policy: features, statements, and a model to train.

All nodes are this machine, so they share its boot id: a statement with another one is made with
the same key.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from hpcdet import shipped
from hpcdet.config.policy.compile_policy import compile_policy
from hpcdet.policy import dsse, governed_metrics, statements
from hpcdet.policy.compiled import CompiledPolicy, PolicyText
from hpcdet.policy.statements import NodeStatement
from hpcdet.store.config.resolved_config import Governance, Resolved
from tests.cluster.configuration import NODES
from tests.cluster.slurm import SlurmCluster

MAKER = shipped.folder("governance") / "site" / "node_statement.py"
FEATURE, CAPABILITY = "gov_phi", "enclave_phi"

POLICY = """\
apiVersion: hpcdet/governance-v1
name: enclave
version: 1
layers:
  - {id: low, match: '^low\\.', depth: [0.0, 0.5]}
  - {id: head, match: '^head\\.', depth: 1.0}
sources:
  - {id: open, labels: {class: open}}
  - {id: phi, labels: {class: phi}}
rules:
  - {id: open, match: {label.class: open}, layers: ['*'], weight: 1.0}
  - {id: phi, match: {label.class: phi}, layers: [head], weight: 1.0}
coverage: {min: 0.0}
requires: {capabilities: [enclave_phi], statement: signed}
"""

MODEL = '''\
"""Two sources; importing this leaves a file of the node's name in $TOUCHED."""
import os
import socket
import time
from pathlib import Path

import torch

NODE = os.environ.get("SLURMD_NODENAME") or "login." + socket.gethostname()
Path(os.environ["TOUCHED"], f"{NODE}.{time.time_ns()}").touch()

from hpcdet import pytorch


class Numbers(torch.utils.data.Dataset):
    def __init__(self, first):
        self.first = first

    def __len__(self):
        return 60

    def __getitem__(self, index):
        x = torch.randn(8, generator=torch.Generator().manual_seed(self.first + index))
        return x, x.square().sum().reshape(1)


class Governed(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        network = torch.nn.Sequential()
        network.add_module("low", torch.nn.Linear(8, 16))
        network.add_module("relu", torch.nn.ReLU())
        network.add_module("head", torch.nn.Linear(16, 1))
        self.net = context.wrap_model(network)
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.net.parameters(), lr=context.get_hparam("learning_rate"))
        )

    def build_training_data_loader(self):
        data = pytorch.Sourced({"open": Numbers(0), "phi": Numbers(1000)})
        size = self.context.get_per_slot_batch_size()
        return pytorch.DataLoader(data, batch_size=size, shuffle=True)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(Numbers(2000), batch_size=30)

    def train_batch(self, batch, epoch_idx, batch_idx):
        time.sleep(float(Path(os.environ["PACE"]).read_text()))
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch, batch_idx):
        x, y = batch
        return {"validation_loss": torch.nn.functional.mse_loss(self.net(x), y)}
'''


def under(config: Resolved, policy: CompiledPolicy) -> Resolved:
    """A config that names a policy, with its gates, as submission makes it."""
    gates = governed_metrics.constraints(policy)
    searcher = dataclasses.replace(config.searcher, constraints=gates)
    governance = Governance("policy.yaml", digest=policy.digest)
    return dataclasses.replace(config, searcher=searcher, governance=governance)


def policy(text: str = POLICY) -> PolicyText:
    """The policy as a submission would find it."""
    return PolicyText(text, compile_policy(text, "policy.yaml", datetime.now(UTC).date()))


class GovernedNodes:
    """Statements of nodes, and features of those of a cluster.

    Attributes:
        public: the signer's public key, hex.
        statements: folder of the statements, one of each node.
    """

    def __init__(self, folder: Path, cluster: SlurmCluster | None = None) -> None:
        self.cluster = cluster
        self.statements = folder / "statements"
        self.statements.mkdir()
        self._key = folder / "node.key"
        self.public = _made("keygen", self._key).strip()

    def site(self) -> dict[str, Any]:
        """``governance`` of the site file."""
        return {
            "capabilities": {CAPABILITY: {"slurm": {"constraint": FEATURE}}},
            "statement": {"path": str(self.statements / "{node}.dsse"), "key": self.public},
        }

    def advertise(self, *nodes: str) -> None:
        """Give these nodes the feature, and take it from all others."""
        assert self.cluster is not None
        for node in NODES:
            feature = FEATURE if node in nodes else ""
            both = (f"ActiveFeatures={feature}", f"AvailableFeatures={feature}")
            self.cluster.check("scontrol", "update", f"NodeName={node}", *both)

    def path(self, node: str) -> Path:
        return self.statements / f"{node}.dsse"

    def attest(self, *nodes: str, capability: str = CAPABILITY, valid_s: int = 3600) -> None:
        """Make the nodes' statements as their administrator does."""
        for node in nodes:
            options = ("--node", node, "--capability", capability, "--valid", str(valid_s))
            _made("make", "--key", self._key, "--out", self.path(node), *options)

    def spoil(self, kind: str, *nodes: str) -> None:
        """Replace the statements of nodes by ones that do not hold."""
        for node in nodes:
            if kind == "false":
                self.attest(node, capability="something_else")
            elif kind == "expired":
                self.attest(node, valid_s=-1)
            elif kind == "copied":
                self.attest("elsewhere")
                self.path("elsewhere").rename(self.path(node))
            elif kind == "rebooted":
                self._of_another_boot(node)
            else:
                self.path(node).unlink()

    def _of_another_boot(self, node: str) -> None:
        key = load_pem_private_key(self._key.read_bytes(), password=None)
        assert isinstance(key, Ed25519PrivateKey)
        now = time.time()
        said = NodeStatement(
            node,
            "00000000-0000-0000-0000-000000000000",
            (CAPABILITY,),
            datetime.fromtimestamp(now, UTC).isoformat(),
            datetime.fromtimestamp(now + 3600, UTC).isoformat(),
        )
        envelope = dsse.sign(statements.PAYLOAD_TYPE, statements.payload(said), key)
        self.path(node).write_text(json.dumps(envelope))

    def touched(self, folder: Path) -> dict[str, int]:
        """How often the model was imported, by node."""
        found: dict[str, int] = {}
        for name in folder.iterdir():
            node = name.name.rpartition(".")[0]
            found[node] = found.get(node, 0) + 1
        return found


def _made(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-I", str(MAKER), *map(str, words)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def write_model(folder: Path) -> Path:
    """The folder of a governed model and its policy."""
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "model_def.py").write_text(MODEL)
    (folder / "policy.yaml").write_text(POLICY)
    return folder


def config(touched: Path, pace: Path, *, trials: int = 1, governed: bool = True) -> dict[str, Any]:
    """A config as a user writes it."""
    values: dict[str, Any] = {
        "name": "governed" if governed else "control",
        "entrypoint": "model_def:Governed",
        "hyperparameters": {
            "global_batch_size": 8,
            "learning_rate": {"type": "log", "base": 10, "minval": -3, "maxval": -2},
        },
        "searcher": {
            "name": "random",
            "metric": "validation_loss",
            "max_length": {"batches": 40},
            "max_trials": trials,
            "max_concurrent_trials": trials,
        },
        "reproducibility": {"experiment_seed": 7},
        "min_validation_period": {"batches": 20},
        "scheduling_unit": 5,
        "max_restarts": 0,
        "checkpoint_every_s": 1,
        "resources": {"slots_per_trial": 1, "cpus_per_slot": 1, "walltime_s": 3600},
        "slurm": {"sbatch_args": ["--exclusive"]},
        "worker": {"min_segment_s": 1, "idle_s": 5},
        "environment": {"environment_variables": [f"TOUCHED={touched}", f"PACE={pace}"]},
    }
    if governed:
        values["governance"] = {"policy": "policy.yaml"}
    return values


def write_config(path: Path, values: Mapping[str, Any]) -> Path:
    """Write a config where its user alone may change it."""
    path.write_text(yaml.safe_dump(dict(values), sort_keys=False))
    path.chmod(0o600)
    return path
