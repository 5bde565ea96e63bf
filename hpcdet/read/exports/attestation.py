"""In-toto statements of governed models (in-toto Attestation Framework, Statement v1).

With a key the statement is the payload of a DSSE envelope. What a verifier learns from it is who
says so; whether it is so, the experiment's ledger and the checkpoint's own verification tell.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hpcdet.policy import dsse
from hpcdet.policy.statements import PAYLOAD_TYPE, STATEMENT_TYPE
from hpcdet.read.exports.governed_model import GovernedModel
from hpcdet.read.views.items import encode
from hpcdet.store.fs import files

if TYPE_CHECKING:  # imported where something is signed only
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PREDICATE_TYPE = "urn:hpcdet:governance:1"


def statement(model: GovernedModel) -> dict[str, Any]:
    """Return the statement: its subjects are the checkpoint's files, its predicate governance."""
    policy, account = model.policy, model.account
    agreements = {one.id: one.agreement for one in policy.sources if one.agreement}
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": one.name, "digest": {"sha256": one.sha256}} for one in model.files],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "experiment": model.experiment,
            "trial": account.trial,
            "checkpoint": {
                "name": model.folder.name,
                "step": model.step,
                "stateDigest": model.digest,
                "manifestRoot": model.root,
            },
            "assurance": account.assurance,
            "statementLevel": account.statement,
            "records": account.records,
            "residualChannels": account.residual_channels,
            "policy": {
                "name": policy.name,
                "version": policy.version,
                "digest": policy.digest,
                "textDigest": policy.text_digest,
            },
            "policyChanges": encode(account.changes),
            "unverified": account.unverified,
            "sources": [
                {
                    "id": one.source.id,
                    "license": one.license,
                    "rows": one.rows,
                    "agreement": _agreement(agreements.get(one.source.id)),
                    "manifestRoot": one.source.manifest.digest if one.source.manifest else "",
                    "chainHead": one.source.chain.digest if one.source.chain else "",
                }
                for one in model.sources
            ],
            "layers": account.layers,
            "matrix": account.matrix,
            "exposure": account.exposure,
            "coverage": account.coverage,
            "admission": account.admission,
            "conformance": account.conformance,
            "violations": account.violations,
            "probes": len(account.measured),
            "entropy": account.entropy,
            "memorization": encode(account.memorization),
            "canaries": encode(account.canaries),
            "historyKnown": account.complete,
            "checks": encode(account.checks),
            "rollbacks": encode(account.rollbacks),
            "chains": encode(account.chains),
            "nodes": encode(account.nodes),
            "recorded": account.recorded,
            "period": {"begun": model.begun, "saved": model.saved},
            "software": dict(model.software),
        },
    }


def _agreement(agreed: Any) -> dict[str, str] | None:
    return {"id": agreed.id, "expires": agreed.expires} if agreed else None


def to_bytes(model: GovernedModel, key: Ed25519PrivateKey | None = None) -> bytes:
    """Return the file: the statement, or with a key an envelope that holds it."""
    found = statement(model)
    if key is None:
        text = json.dumps(found, indent=1, sort_keys=True, allow_nan=False)
        return text.encode() + b"\n"
    envelope = dsse.sign(PAYLOAD_TYPE, files.canonical(found), key)
    return json.dumps(envelope, indent=1).encode() + b"\n"
