"""What a rank's proof of its node and ``hpcdet policy check`` cost, each in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks import results
from hpcdet.policy import dsse, governed_metrics, statements
from hpcdet.policy.compiled import CompiledPolicy, DataSource, LayerGroup, Requires, TrustedKey
from hpcdet.policy.keys import key_files
from hpcdet.policy.statements import NodeStatement
from hpcdet.process import ranks
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths

TOP = Path(__file__).resolve().parent.parent.parent
POLICY = TOP / "examples" / "governed" / "policy.yaml"
STATEMENT_S, CHECK_S = 0.05, 0.3
LEAST_OF = 3
"""Processes in a round, of which the quickest counts: others share the caches."""
PROOF = """
import sys, time
from pathlib import Path
from hpcdet.store.config import resolved_config
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.train.attempt import node_proof
paths = ExperimentPaths(Path(sys.argv[1]))
config = resolved_config.load(paths.config)
begin = time.process_time()
node_proof.require(paths, config)
print(time.process_time() - begin)
"""
"""What a rank does before it imports the user's code; its imports for it are counted."""


def rows(rounds: int) -> Iterator[results.Row]:
    """Medians of fresh processes, beside a Python that does nothing."""
    environment = os.environ | {"PYTHONPATH": str(TOP), "OMP_NUM_THREADS": "1"}
    nothing, proofs, checks = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        paths = attested(Path(folder))
        proof = [sys.executable, "-c", PROOF, str(paths.root)]
        check = [sys.executable, "-m", "hpcdet", "policy", "check", str(POLICY)]
        for _ in range(rounds):
            nothing.append(_processor_s([sys.executable, "-c", "pass"], environment))
            proofs.append(min(_told_s(proof, environment) for _ in range(LEAST_OF)))
            checks.append(min(_processor_s(check, environment) for _ in range(LEAST_OF)))
    peer = "python -c pass"
    yield results.row("statement of a node: proof of a rank", proofs, peer, nothing, STATEMENT_S)
    yield results.row("hpcdet policy check FILE", checks, peer, nothing, CHECK_S)


def attested(folder: Path) -> ExperimentPaths:
    """An experiment whose policy requires a capability, and a statement of this node."""
    key = Ed25519PrivateKey.generate()
    public, now = key_files.public(key), time.time()
    issued, not_after = (datetime.fromtimestamp(now + s, UTC).isoformat() for s in (0, 3600))
    boot = statements.BOOT_ID.read_text().strip()
    said = NodeStatement(ranks.node_name(), boot, ("enclave",), issued, not_after)
    envelope = dsse.sign(statements.PAYLOAD_TYPE, statements.payload(said), key)
    statement = folder / "node.dsse"
    statement.write_text(json.dumps(envelope))
    statement.chmod(0o644)
    policy = CompiledPolicy(
        name="statement",
        version=1,
        text_digest="sha256:00",
        layers=(LayerGroup("all", ""),),
        sources=(DataSource("a"),),
        matrix=((1.0,),),
        trust=(TrustedKey("site", "site", public),),
        requires=Requires(("enclave",), "signed"),
    )
    paths = ExperimentPaths(folder / "EXP")
    paths.root.mkdir()
    paths.compiled_policy.write_text(policy.to_json())
    source = {"path": str(statement), "key": public}
    paths.site.write_text(json.dumps({"governance": {"statement": source}}))
    config = {
        "name": "statement",
        "entrypoint": "model_def:Model",
        "searcher": {
            **{"metric": "loss", "max_length": {"batches": 1}},
            "constraints": governed_metrics.constraints(policy),
        },
        "governance": {"policy": "statement", "digest": policy.digest},
    }
    paths.config.write_bytes(resolved_config.dump(config))
    return paths


def _told_s(argv: list[str], environment: dict[str, str]) -> float:
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _processor_s(argv: list[str], environment: dict[str, str]) -> float:
    """Seconds of processors that a process takes, its children and its start included."""
    process = subprocess.Popen(
        argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, argv)
    return used.ru_utime + used.ru_stime
