"""Experiments under a policy made of records alone: signed ledgers, and manifests that name them.

ruled = Ruled(tmp_path / "ruled-7f3a", POLICY)
folder = ruled.attempt(POLICY, {"a": 4, "b": 2})
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hpcdet.policy.admission import exposure
from hpcdet.policy.changes.change_writer import ChangeWriter
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.policy.keys import key_files
from hpcdet.policy.ledger import records, seals
from hpcdet.policy.ledger.attested import digest_of
from hpcdet.policy.ledger.records import LedgerOwner
from hpcdet.policy.ledger.writer import LedgerWriter
from hpcdet.store.config.resolved_config import Governance
from hpcdet.store.fs import sealed_json
from hpcdet.store.trials.standing import MANIFEST
from tests.builders import Builder

STORED = {"stored": "governance.run_key"}
STEPS = 10
"""Batches of an attempt."""


class Ruled:
    """An experiment under a policy, with one trial; no process runs."""

    def __init__(self, root: Path, policy: CompiledPolicy) -> None:
        key = Ed25519PrivateKey.generate()
        signer = key_files.public(key)
        section = {"policy": "p", "digest": policy.digest, "run_key": STORED, "signer": signer}
        self.built = Builder(root, governance=section)
        self.paths = self.built.paths
        self.paths.compiled_policy.write_text(policy.to_json())
        secret = key.private_bytes_raw().hex()
        self.key: Ed25519PrivateKey | None = key
        self.paths.secrets.write_text(json.dumps({STORED["stored"]: secret}))
        self.paths.secrets.chmod(0o600)
        self.governance = Governance("p", STORED, digest=policy.digest, signer=signer)
        self.trial = self.built.trial()
        self._rows = Counter[str]()
        self._units: dict[str, list[float]] = {}

    @property
    def writer(self) -> ChangeWriter:
        return ChangeWriter(self.paths, self.governance)

    def attempt(
        self,
        policy: CompiledPolicy,
        rows: Mapping[str, int],
        *acts: Mapping[str, Any],
        norms: list[list[float]] | None = None,
    ) -> Path:
        """An attempt that trained ``STEPS`` batches, saved a checkpoint and ended well.

        Args:
            rows: trained, by source.
            acts: changes that it was the first to obey.
            norms: of the gradients that a probe measured with routing, by source and layer.
        """
        of, paths = self.trial, self.trial.paths
        before = [
            one for each in paths.attempts() if (one := records.read(each.number, each.ledger))
        ]
        begin = STEPS * len(before)
        built = of.attempt(start=begin)
        number, end = built.paths.number, begin + STEPS
        sources, layers = ([one.id for one in each] for each in (policy.sources, policy.layers))
        owner = LedgerOwner(self.paths.id, 1, number)
        self._rows.update(rows)
        for source, row in zip(sources, exposure(policy, rows).tolist(), strict=True):
            sums = self._units.setdefault(source, [0.0] * len(row))
            self._units[source] = [x + y for x, y in zip(sums, row, strict=True)]
        name = f"{end:08}.g{number}"
        root = f"sha256:{number:064}"
        with LedgerWriter(
            built.paths.ledger,
            owner,
            step=begin,
            earlier=before,
            accepts=before[-1].head if before else None,
            key=self.key,
        ) as ledger:
            ledger.policy(begin, policy)
            for act in acts:
                ledger.append("policy_change", begin, **act)
            counts = dict(sorted(rows.items()))
            ledger.append("step_batch", end, policy_digest=policy.digest, counts=counts, dropped=0)
            ledger.append("checkpoint", end, name=name, root=root)
            head = ledger.seal(end)
            ledger.close(end)
        said = {
            "policy_digest": policy.digest,
            "assurance": policy.assurance,
            "sources": sources,
            "layers": layers,
            "exposure": [self._units[source] for source in sources],
            "rows": dict(self._rows),
            "dropped": 0,
            "complete": True,
            "root": root,
            "ledger": dataclasses.asdict(head),
        }
        digest = f"{number:064}"
        made = seals.SealedCheckpoint(owner, name, digest, root, digest_of(said), head)
        if self.key is not None:
            said["seal"] = seals.sign(made, self.key)
        folder = built.checkpoint(end, digest)
        put(folder, digest, {"batches": end, "trial": 1, "governance": said})
        if norms is not None:
            probe = {"step": begin, "sources": sources, "layers": layers, "on": norms}
            built.line("governance", event="probe", off=[[1.0] * len(layers)] * len(norms), **probe)
        built.end("completed")
        return folder


def put(folder: Path, digest: str, meta: Mapping[str, Any]) -> None:
    """Write a checkpoint's manifest as it is written everywhere; its files are not whole."""
    shard = {"file": "rank-00000-of-00001.h5", "bytes": 100, "table": [0, 1], "root": "e" * 64}
    plain = {
        **{"format": "hpcdet-checkpoint", "schema": 1, "name": folder.name, "writer": "hpcdet"},
        **{"world": 1, "digest": digest, "shared": "d" * 64, "private": [""]},
        **{"shards": [shard], "meta": dict(meta), "prev_root": ""},
    }
    (folder / MANIFEST).write_bytes(sealed_json.text(sealed_json.sealed(plain)))


def forge(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change what a checkpoint's manifest says of governance, and give it the root of that."""
    raw = json.loads((folder / MANIFEST).read_text())
    change(raw["meta"]["governance"])
    (folder / MANIFEST).write_bytes(sealed_json.text(sealed_json.sealed(raw)))
