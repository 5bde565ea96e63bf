"""CycloneDX bills of materials of governed models (ECMA-424, version 1.6: ML-BOM).

The model is the BOM's subject, with its files and a model card; sources of data are components of
type ``data``. Licences are named as the policy's labels name them, and not looked up.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hpcdet import __version__
from hpcdet.policy.memorization.canary_evidence import CanaryEvidence
from hpcdet.policy.memorization.twin_evidence import TwinEvidence
from hpcdet.read.exports.governed_model import GovernedModel, SourceAccount
from hpcdet.read.governed import recorded_words

SPEC = "1.6"
SCHEMA = f"http://cyclonedx.org/schema/bom-{SPEC}.schema.json"
_PREFIX = "hpcdet:"


def bill_of_materials(model: GovernedModel, time: str) -> dict[str, Any]:
    """Return the BOM of a model.

    Args:
        time: at which it is made, ISO 8601. Its serial number is of the model alone, so that the
            BOMs of one model have the same.
    """
    datasets = [_dataset(model, one) for one in model.sources]
    subject = _model(model)
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"urn:hpcdet:{model.root}:{model.policy.digest}")
    return {
        "$schema": SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": time,
            "tools": {
                "components": [{"type": "application", "name": "hpcdet", "version": __version__}]
            },
            "component": subject,
        },
        "components": datasets,
        "dependencies": [
            {"ref": subject["bom-ref"], "dependsOn": [one["bom-ref"] for one in datasets]},
            *({"ref": one["bom-ref"]} for one in datasets),
        ],
    }


def to_bytes(model: GovernedModel, time: str) -> bytes:
    """Return the file."""
    return json.dumps(bill_of_materials(model, time), indent=1, allow_nan=False).encode() + b"\n"


def _model(model: GovernedModel) -> dict[str, Any]:
    """The component that the BOM is about."""
    return {
        "type": "machine-learning-model",
        "bom-ref": f"model:{model.called}",
        "name": model.name or model.experiment,
        "version": model.called,
        "components": [
            {
                "type": "file",
                "bom-ref": f"file:{one.name}",
                "name": one.name,
                "hashes": [{"alg": "SHA-256", "content": one.sha256}],
            }
            for one in model.files
        ],
        "modelCard": {
            "bom-ref": f"card:{model.called}",
            "modelParameters": {"datasets": [{"ref": _ref(one)} for one in model.sources]},
            "quantitativeAnalysis": {"performanceMetrics": list(_metrics(model))},
            "considerations": {"technicalLimitations": _limitations(model)},
            "properties": _properties(_governance(model)),
        },
    }


def _metrics(model: GovernedModel) -> Iterator[dict[str, str]]:
    name, value = model.metric
    if value is not None:
        yield {"type": name, "value": f"{value!r}", "slice": "validation"}
    for source, found in sorted((model.account.memorization or {}).items()):
        if found.advantage is not None:
            yield {
                "type": "advantage in telling trained records from withheld twins",
                "value": f"{found.advantage!r}",
                "slice": f"source {source}, {_evidence(found)}",
            }
    for source, each in sorted((model.account.canaries or {}).items()):
        if each.exposure is not None:
            yield {
                "type": "mean exposure of canaries in bits",
                "value": f"{each.exposure!r}",
                "slice": f"source {source}, {_ranked(each)}",
            }


def _ranked(found: CanaryEvidence) -> str:
    named = (("canaries", found.canaries), ("p", found.exposure_p), ("most", found.exposure_most))
    return _listed(named)


def _evidence(found: TwinEvidence) -> str:
    return _listed((("pairs", found.pairs), ("p", found.p), ("power", found.power)))


def _listed(named: Iterable[tuple[str, float | None]]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in named if value is not None)


def _limitations(model: GovernedModel) -> list[str]:
    return [
        f"The account of training data is of {model.account.records}.",
        *(f"Influence that it does not exclude: {one}." for one in model.account.residual_channels),
    ]


def _governance(model: GovernedModel) -> Mapping[str, Any]:
    account, policy = model.account, model.policy
    return {
        "assurance": account.assurance,
        "statement": account.statement,
        "policy.name": policy.name,
        "policy.version": policy.version,
        "policy.digest": policy.digest,
        "checkpoint.step": model.step,
        "checkpoint.digest": model.digest,
        "checkpoint.root": model.root,
        "admission": account.admission,
        "conformance": account.conformance,
        "violations": account.violations,
        "probes": len(account.measured),
        "history-known": account.complete,
        "unverified": account.unverified or None,
        **{f"policy.change.{x.number:04d}": recorded_words.change(x) for x in account.changes},
        **{f"coverage.{x}": y for x, y in zip(account.layers, account.coverage, strict=True)},
        **{f"entropy.{x}": y for x, y in zip(account.layers, account.entropy, strict=True)},
    }


def _dataset(model: GovernedModel, one: SourceAccount) -> dict[str, Any]:
    source, place = one.source, model.account.sources.index(one.source.id)
    weights = zip(model.account.layers, model.account.matrix[place], strict=True)
    agreed = source.agreement
    facts: dict[str, Any] = {
        **{f"label.{name}": text for name, text in source.labels.items()},
        "rows": one.rows,
        "records": one.records,
        **{f"weight.{layer}": weight for layer, weight in weights},
        **{f"exposure.{layer}": units for layer, units in one.exposure.items()},
        "agreement": agreed.id if agreed else None,
        "agreement.expires": agreed.expires or None if agreed else None,
        "manifest.root": source.manifest.digest if source.manifest else None,
        "chain.head": source.chain.digest if source.chain else None,
    }
    found: dict[str, Any] = {
        "type": "data",
        "bom-ref": _ref(one),
        "name": source.id,
        "data": [{"type": "dataset", "name": source.id}],
        "properties": _properties(facts),
    }
    if one.license:
        found["licenses"] = [{"license": {"name": one.license}}]
    return found


def _ref(one: SourceAccount) -> str:
    return f"data:{one.source.id}"


def _properties(facts: Mapping[str, Any]) -> list[dict[str, str]]:
    """Facts as properties, those that are not known left out."""
    return [
        {
            "name": f"{_PREFIX}{name}",
            "value": value if isinstance(value, str) else json.dumps(value),
        }
        for name, value in facts.items()
        if value is not None
    ]
