"""``openapi.json``: the API described by OpenAPI 3.1, with the schemas of the command line."""

from __future__ import annotations

import functools
import importlib.resources
import json
import re
from typing import Any

from hpcdet import __version__
from hpcdet.serve.endpoints import ADDRESSES, Address

_ERRORS = {
    "400": "A parameter is wrong.",
    "403": "The token is missing.",
    "404": "There is no such experiment, trial or model.",
    "405": "The server only reads.",
    "421": "The request is for another host.",
    "500": "Files of the experiment are damaged.",
    "503": "The file system does not answer.",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "where", "hint"],
            "properties": {
                name: {"type": "string"} for name in ("code", "message", "where", "hint")
            },
        }
    },
}


@functools.cache
def description() -> str:
    """Return the document as JSON."""
    paths = {f"/api/v1{one.path}": {"get": _operation(one)} for one in ADDRESSES}
    known = {
        "openapi": "3.1.0",
        "info": {
            "title": "hpcdet serve",
            "version": __version__,
            "description": "Experiments below one root, read-only. Bodies are those of -o json.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return json.dumps(known, ensure_ascii=False)


def _operation(address: Address) -> dict[str, Any]:
    id = {"type": "string", "maxLength": 100, "pattern": "^[A-Za-z0-9@][A-Za-z0-9._@-]*$"}
    inside = re.findall(r"\{(\w+)\}", address.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": id} for name in inside]
    parameters += [
        {"name": name, "in": "query", "required": "minItems" in schema, "schema": dict(schema)}
        for name, schema in address.parameters.items()
    ]
    body = {"application/json": {"schema": _schema(address.verb)}}
    answers: dict[str, Any] = {"200": {"description": f"Items of {address.verb}.", "content": body}}
    answers["304"] = {"description": "The client has them."}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for status, what in _ERRORS.items():
        answers[status] = {"description": what, "content": error}
    return {"operationId": address.name, "parameters": parameters, "responses": answers}


def _schema(verb: str) -> dict[str, Any]:
    """Return the schema of a verb's output, its definitions where references find them."""
    file = importlib.resources.files("hpcdet.read") / "schemas" / f"{verb}.json"
    found: dict[str, Any] = json.loads(file.read_text())
    definitions = found.pop("$defs", {})
    found.pop("$schema", None)
    whole: dict[str, Any] = _inlined(found, definitions)
    return whole


def _inlined(value: Any, definitions: dict[str, Any], depth: int = 0) -> Any:
    if isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/$defs/"):
            if depth > 8:  # a view that holds itself
                return {}
            return _inlined(definitions[reference.rpartition("/")[2]], definitions, depth + 1)
        return {key: _inlined(each, definitions, depth) for key, each in value.items()}
    if isinstance(value, list):
        return [_inlined(each, definitions, depth) for each in value]
    return value
