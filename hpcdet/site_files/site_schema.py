"""JSON Schema of a site file, for editors and for tests that no cluster is near of."""

from __future__ import annotations

from typing import Any

from hpcdet.launchers import opening as launchers
from hpcdet.schedulers import opening as schedulers
from hpcdet.site.models import Site

_ADDRESS = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a site file, which may leave out every key.

    Names of schedulers and launchers are those that are installed here.
    """
    made = Site.model_json_schema()
    made |= {"$schema": _ADDRESS, "title": "hpcdet site file"}
    made["description"] = "A site: what is particular to one cluster. Left out: of what it extends."
    made.pop("required", None)  # what a file does not say is said by those that it extends
    backends, parts = schedulers.every(), made["$defs"]
    made["properties"]["scheduler"]["enum"] = schedulers.names()
    kind = parts["Launcher"]["properties"]["kind"]
    kind["anyOf"] = [{"enum": launchers.names()}, {"type": "null"}]
    ways = {key: {"type": "string"} for backend in backends for key in backend.facts.keys}
    parts["Detection"]["properties"] |= ways
    parts["Detection"]["additionalProperties"] = False
    for key in {key for backend in backends for key in backend.facts.asked}:
        section, _, name = key.partition(".")
        definition = made["properties"][section]["$ref"].rpartition("/")[2]
        values = parts[definition]["properties"]
        values[name] = _or_null(values[name])
    return made


def _or_null(value: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a key that may be null: the cluster is asked then."""
    if {"type": "null"} in value.get("anyOf", []):
        return value
    about = {"title", "description", "default"} & value.keys()
    kind = {name: part for name, part in value.items() if name not in about}
    return {"anyOf": [kind, {"type": "null"}], **{name: value[name] for name in about}}
