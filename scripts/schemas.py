"""JSON Schemas of what the verbs print, and the page of them, from the views' dataclasses.

    python scripts/schemas.py    # writes hpcdet/read/schemas/*.json and docs/reference/json.md

A field's description is the text below it, a class's the first line of its docstring.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import types
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import click

from hpcdet.cli.frame.output import VIEWS
from hpcdet.cli.table_of_verbs import VERBS
from hpcdet.read.governed.governed_trials import CheckView, GovernanceView
from hpcdet.read.governed.trained_policies import TrialPolicyChangeView
from hpcdet.read.report import SCHEMA as REPORT
from hpcdet.read.sections.whole import ReportView
from hpcdet.read.views.items import OPTIONAL, ViewPart
from hpcdet.units import Length

TOP = Path(__file__).resolve().parent.parent
SCHEMAS = TOP / "hpcdet" / "read" / "schemas"
PAGE = TOP / "docs" / "reference" / "json.md"
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
LATE = {one.__name__: one for one in (CheckView, GovernanceView, TrialPolicyChangeView)}
"""Classes that others name without importing them."""
WORDS = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false"}

HEAD = """\
# JSON

This page is generated (`make schemas`) from the classes in which hpcdet holds what its verbs
print. It lists the items of `-o json`, `jsonl` and `csv`; `--fields` takes the same keys. Each of
these verbs has a JSON Schema (draft 2020-12) of its whole output: `schemas/VERB.json` in the
package `hpcdet.read`; `schemas/report.json` is that of `report --format json`. Keys are added over
time and never change their meaning.

Times are ISO 8601 in UTC, "" where there is none; steps are batches, sizes bytes, durations
seconds. A number that is not finite is the text `"NaN"`, `"Infinity"` or `"-Infinity"`. A key
with a star is not always there.
"""


def views() -> dict[str, tuple[type, ...]]:
    """The views of each verb that prints any, in the order of ``hpcdet --help``."""
    for verb in VERBS.values():
        module = importlib.import_module(f"hpcdet.cli.{verb.module}")
        _import_all(getattr(module, verb.attribute))
    order = list(VERBS)
    return dict(
        sorted(VIEWS.items(), key=lambda one: (order.index(one[0].partition(".")[0]), one[0]))
    )


def _import_all(command: click.Command) -> None:
    """Import the verbs of a group, some of which are imported only where they are used."""
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        _import_all(each)


def described(view: type) -> dict[str, str]:
    """The text below each field of a view, those of its bases included."""
    found: dict[str, str] = {}
    for kind in reversed(view.__mro__[:-1]):
        [node] = ast.parse(inspect.getsource(kind)).body
        assert isinstance(node, ast.ClassDef)
        for field, below in zip(node.body, node.body[1:], strict=False):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = " ".join(text.replace("``", "`").split())
    return found


def keys(view: type) -> Iterator[tuple[str, Any, str, bool]]:
    """Key, type, description and presence of each field of a view, those of its parts included."""
    texts, kinds = described(view), typing.get_type_hints(view, localns=LATE)
    for field in fields(view):  # type: ignore[arg-type]
        kind, always = kinds[field.name], not field.metadata.keys() & OPTIONAL.keys()
        parts = [one for one in (typing.get_args(kind) or (kind,)) if isinstance(one, type)]
        if part := next((one for one in parts if issubclass(one, ViewPart)), None):
            for key, of, text, there in keys(part):
                yield key, of, text, there and always
        else:
            text = texts[field.name] if field.name in texts else first_line(kind)
            yield field.name.rstrip("_"), kind, text, always


def first_line(kind: type) -> str:
    """The first line of a class's docstring, which says what a field is that has no text."""
    assert is_dataclass(kind), kind
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def of(kind: Any, known: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; classes go into ``known``."""
    args = typing.get_args(kind)
    if kind in PLAIN:
        return {"type": PLAIN[kind]}
    if kind is Any:
        return {}
    if kind is Length:
        one = {"type": "object", "minProperties": 1, "maxProperties": 1}
        return {**one, "additionalProperties": {"type": "integer"}}
    match typing.get_origin(kind):
        case typing.Literal:
            return {"enum": list(args)}
        case types.UnionType | typing.Union:
            found = [of(one, known) for one in args]
            names = [one["type"] for one in found if one.keys() == {"type"}]
            return {"type": names} if len(names) == len(found) else {"anyOf": found}
        case origin if origin is list:
            return {"type": "array", "items": of(args[0], known)}
        case origin if origin is tuple:
            items = [of(one, known) for one in args]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
        case origin if origin is dict:
            return {"type": "object", "additionalProperties": of(args[1], known)}
    if kind.__name__ not in known:
        known[kind.__name__] = {}
        rows = list(keys(kind))
        known[kind.__name__] = {
            "description": (inspect.getdoc(kind) or "").partition("\n")[0],
            "type": "object",
            "properties": {
                key: {**of(one, known), "description": text} for key, one, text, _ in rows
            },
            "required": [key for key, _, _, always in rows if always],
        }
    return {"$ref": f"#/$defs/{kind.__name__}"}


def schema(verb: str, kinds: tuple[type, ...]) -> dict[str, Any]:
    """The schema of a verb's envelope."""
    known: dict[str, Any] = {}
    items = [of(kind, known) for kind in kinds]
    envelope = {
        "schema": {"const": f"hpcdet.{verb}/1"},
        "generated_at": {"type": "string", "format": "date-time"},
        "items": {"type": "array", "items": items[0] if len(items) == 1 else {"anyOf": items}},
        "warnings": {"type": "array", "items": {"type": "string"}},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"hpcdet {verb.replace('.', ' ')} -o json",
        "type": "object",
        "properties": envelope,
        "required": list(envelope),
        "$defs": dict(sorted(known.items())),
    }


def report_schema() -> dict[str, Any]:
    """The schema of ``report --format json``, which is no envelope."""
    known: dict[str, Any] = {}
    of(ReportView, known)
    whole = known.pop(ReportView.__name__)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "hpcdet report --format json",
        **whole,
        "properties": {"schema": {"const": REPORT}, **whole["properties"]},
        "required": ["schema", *whole["required"]],
        "$defs": dict(sorted(known.items())),
    }


def word(kind: Any) -> str:
    """A type for people; a class as a link to its table."""
    args = typing.get_args(kind)
    if kind in PLAIN:
        return WORDS.get(PLAIN[kind], "null")
    if kind is Any:
        return "any"
    if kind is Length:
        return 'length, as `{"batches": 900}`'
    match typing.get_origin(kind):
        case typing.Literal:
            return " ".join(f"`{one or chr(34) * 2}`" for one in args)
        case types.UnionType | typing.Union:
            return " or ".join(word(one) for one in args)
        case origin if origin is list:
            return f"list of {word(args[0])}"
        case origin if origin is dict:
            return "object" if args[1] is Any else f"object of {word(args[1])}"
    return f"[{name(kind)}](#{name(kind)})"


def name(kind: type) -> str:
    """A class's name in the page: ``LastCheckpointView`` is ``last-checkpoint``."""
    text = kind.__name__.removesuffix("View")
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in text).lstrip("-")


def inside(kind: Any) -> Iterator[type]:
    """The classes in a type that have a table of their own."""
    if typing.get_args(kind):
        for one in typing.get_args(kind):
            yield from inside(one)
    elif is_dataclass(kind) and kind is not Length:
        yield kind


def page(known: dict[str, tuple[type, ...]]) -> str:
    """The whole page: the items of each verb, then each class once."""
    lines, order = [HEAD, "| verb | items |", "|---|---|"], []
    for verb, kinds in known.items():
        lines.append(f"| `{verb.replace('.', ' ')}` | {', '.join(word(one) for one in kinds)} |")
        order += kinds
    for kind in order:
        for _, one, _, _ in keys(kind):
            order += [each for each in inside(one) if each not in order]
    for kind in dict.fromkeys(order):
        lines += ["", f"## {name(kind)}", "", (inspect.getdoc(kind) or "").partition("\n")[0]]
        base = kind.__base__ if kind.__base__ in order else None
        known_keys = {key for key, *_ in keys(base)} if base else set()
        lines += [f"All keys of {word(base)}, and:"] if base else []
        lines += ["", "| key | type | |", "|---|---|---|"]
        for key, one, text, always in keys(kind):
            if key not in known_keys:
                star = "" if always else " *"
                lines.append(
                    f"| `{key}`{star} | {word(one)} | {text.replace('|', chr(92) + '|')} |"
                )
    return "\n".join(lines) + "\n"


def generated() -> dict[Path, str]:
    """Every generated file and its text."""
    known = views()
    made = {verb: schema(verb, kinds) for verb, kinds in known.items()}
    found = {
        SCHEMAS / f"{name}.json": json.dumps(one, indent=1, ensure_ascii=False) + "\n"
        for name, one in {**made, "report": report_schema()}.items()
    }
    return {**found, PAGE: page(known)}


def main() -> None:
    """Write what is generated, and remove what no verb has any more."""
    SCHEMAS.mkdir(exist_ok=True)
    texts = generated()
    for path in set(SCHEMAS.glob("*.json")) - texts.keys():
        path.unlink()
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
