"""One field of a section is a key: checked, with a default, explained, and read by the nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import ValidationError

from hpcdet.config.check.section_models import model
from hpcdet.store.fs import typed_fields
from hpcdet.store.fs.typed_fields import Key, Seconds
from hpcdet.units import Length


@dataclass(frozen=True)
class Inner:
    share: Annotated[float, Key(gt=0, le=1)] = 0.5
    """A share."""


@dataclass(frozen=True)
class Outer:
    name: Annotated[str, Key(required=True, min_length=1)] = ""
    """Its name, which
    may be long."""
    wait_s: Annotated[Seconds | None, Key(ge=10)] = None
    count: Annotated[int, Key(kind=int | None, new=None, ge=1)] = 1
    rule: Annotated[Literal[1, 2], Key(new=2)] = 1
    until: Length | None = None
    sizes: list[Annotated[int, Key(le=9)]] = field(default_factory=list)
    parts: Annotated[list[dict[str, Any]], Key(kind=list[Inner])] = field(default_factory=list)
    inner: Inner = Inner()
    raw: Annotated[int, Key(own=True)] = 7


def test_a_new_config_has_the_defaults_of_new_ones_and_readers_get_their_types() -> None:
    values = {"name": "a", "wait_s": "1m", "until": {"epochs": 2}, "parts": [{}]}
    plain = model(Outer).model_validate(values).model_dump()
    assert plain == {
        "name": "a",
        "wait_s": 60,
        "count": None,
        "rule": 2,
        "until": {"epochs": 2},
        "sizes": [],
        "parts": [{"share": 0.5}],
        "inner": {"share": 0.5},
    }
    assert list(plain) == [key for key in Outer.__dataclass_fields__ if key != "raw"]
    read = typed_fields.build(Outer, plain)
    assert (read.until, read.wait_s, read.raw) == (Length("epochs", 2), 60, 7)
    assert typed_fields.build(Outer, {"name": "a"}) == Outer("a")  # a file without the keys


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({}, ("name",)),
        ({"name": ""}, ("name",)),
        ({"name": "a", "wait_s": 9}, ("wait_s",)),
        ({"name": "a", "count": 0}, ("count",)),
        ({"name": "a", "sizes": [1, 10]}, ("sizes", 1)),
        ({"name": "a", "parts": [{"share": 2}]}, ("parts", 0, "share")),
        ({"name": "a", "inner": {"share": 0}}, ("inner", "share")),
        ({"name": "a", "inner": {"part": 1}}, ("inner", "part")),
        ({"name": "a", "raw": 1}, ("raw",)),
    ],
)
def test_what_a_field_does_not_allow_is_refused_at_its_key(
    wrong: dict[str, Any], where: tuple[str | int, ...]
) -> None:
    with pytest.raises(ValidationError) as caught:
        model(Outer).model_validate(wrong)
    assert [error["loc"] for error in caught.value.errors()] == [where]


def test_the_meaning_is_the_text_below_the_field() -> None:
    fields = model(Outer).model_fields
    assert fields["name"].description == "Its name, which\nmay be long."
    assert fields["count"].description is None
    assert model(Inner).model_fields["share"].description == "A share."
