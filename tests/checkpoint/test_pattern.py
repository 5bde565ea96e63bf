"""A state that is like one before is taken apart by its pattern, with the same outcome."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hpcdet.checkpoint import StateError
from hpcdet.checkpoint.state import structure_cache, tree
from hpcdet.checkpoint.state.structure_cache import Match, Pattern
from hpcdet.checkpoint.write import leaf_plan


def pattern_of(value: Any) -> Pattern:
    return Pattern(value, "shared", tree.encode(value, "shared"))


def ordered(version: int = 1) -> OrderedDict[str, Any]:
    made = OrderedDict(a=torch.ones(2), b=torch.zeros(3))
    made._metadata = OrderedDict({"": {"version": version}})
    return made


def state() -> dict[Any, Any]:
    tied, base = torch.randn(4), torch.randn(6)
    return {
        "z": 1,
        "model": ordered(),
        "optim": {n: {"step": torch.tensor(1.0), "m": torch.randn(3), "k": n} for n in range(3)},
        "groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1, 2]}],
        "tied": [tied, tied, base[:3], base[3:]],
        "rng": (3, tuple(range(20)), None),
        "mixed": [np.arange(3), np.float32(2), b"abc", torch.empty(0), 1.5, "é/"],
        True: {"x": torch.ones(1, dtype=torch.bool)},
        "none": {},
    }


CHANGES: dict[str, tuple[bool, Callable[[Any], object]]] = {
    "nothing": (True, lambda s: None),
    "other data": (True, lambda s: s["optim"][0]["m"].fill_(7)),
    "other memory": (True, lambda s: s["optim"][0].update(m=torch.randn(3))),
    "another number": (True, lambda s: s["groups"][0].update(lr=0.0)),
    "minus zero": (True, lambda s: s["groups"][0].update(lr=-0.0)),
    "nan": (True, lambda s: s["groups"][0].update(lr=math.nan)),
    "true for one": (True, lambda s: s.update(z=True)),
    "one point for one": (True, lambda s: s.update(z=1.0)),
    "more in a list": (True, lambda s: s["groups"][0]["params"].append(3)),
    "a key among numbers": (True, lambda s: s["none"].update(k=[1])),
    "another version": (True, lambda s: s.update(model=ordered(2))),
    "another parameter": (True, lambda s: s["model"].update(a=torch.nn.Parameter(torch.ones(2)))),
    "no longer tied": (False, lambda s: s["tied"].__setitem__(1, s["tied"][0].clone())),
    "now tied": (False, lambda s: s["tied"].__setitem__(3, s["tied"][2])),
    "conjugate": (False, lambda s: s["tied"].__setitem__(1, torch._neg_view(s["tied"][0]))),
    "another shape": (False, lambda s: s["optim"][1].update(m=torch.randn(4))),
    "another type": (False, lambda s: s["optim"][1].update(m=torch.randn(3).double())),
    "an array": (False, lambda s: s["optim"][1].update(m=np.zeros(3, "f4"))),
    "a longer array": (False, lambda s: s["mixed"].__setitem__(0, np.arange(4))),
    "longer bytes": (False, lambda s: s["mixed"].__setitem__(2, b"abcd")),
    "a tensor among numbers": (False, lambda s: s["none"].update(k=torch.ones(1))),
    "another key": (False, lambda s: s["optim"].update({3: s["optim"].pop(2)})),
    "an equal key": (False, lambda s: s["optim"].update({1: s["optim"].pop(1)})),
    "a key of another type": (False, lambda s: s.update({1: s.pop(True)})),
    "no metadata": (False, lambda s: s.update(model=OrderedDict(s["model"]))),
    "a tuple for a list": (False, lambda s: s.update(tied=tuple(s["tied"]))),
    "sparse": (False, lambda s: s["optim"][1].update(m=torch.eye(3).to_sparse())),
    "a set": (False, lambda s: s.update(z={1})),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_fits_gives_what_taking_it_apart_gives(change: str) -> None:
    fits, make = CHANGES[change]
    value = state()
    known = pattern_of(value)
    make(value)
    refused = change in ("sparse", "a set")
    try:
        match: Match | None = known.match(value)
    except StateError:
        match = None
        assert refused
    assert (match is not None) == fits
    if match is not None:
        check(match, value)
    if not refused:  # and the pattern of that fits what was before, or says that it does not
        again = state()
        back = pattern_of(value).match(again)
        if back is not None:
            check(back, again)


def check(match: Match, value: Any) -> None:
    encoded = tree.encode(value, "shared")
    assert match.text == tree.to_text(encoded.skeleton)
    names = {leaf.name: f"digest of {number}" for number, leaf in enumerate(encoded.leaves)}
    assert match.content(names.__getitem__) == tree.content(encoded.skeleton, names.__getitem__)
    for leaf, source in zip(encoded.leaves, match.sources, strict=True):
        assert bytes(tree.data(source)) == bytes(leaf.data())


def test_a_state_is_known_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaf_plan, "_seen", defaultdict(leaf_plan._Seen))  # not of other tests
    value = state()
    leaf_plan.take_apart(value, {"rng": b"12"}, 0, 2)
    first = leaf_plan.take_apart(value, {"rng": b"12"}, 0, 2)
    real, asked = tree.encode, []

    def encode(value: Any, name: str) -> tree.Encoded:  # it is slow
        asked.append(name)
        return real(value, name)

    monkeypatch.setattr(tree, "encode", encode)
    again = leaf_plan.take_apart(value, {"rng": b"12"}, 0, 2)
    assert asked == []
    assert again.outline is first.outline
    assert [*map(id, again.sources[0][:5])] == [*map(id, first.sources[0][:5])]
    assert again.shared(str) == first.shared(str)
    assert again.private(str) == first.private(str)
    other = leaf_plan.take_apart(value, {"rng": b"123"}, 0, 2)
    assert asked == ["private"]  # what differs, and no more
    assert other.outline is not first.outline
    assert other.shared(str) == first.shared(str)


class Work:
    """Counts values that are encoded, and patterns and plain values that are remembered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.encoded = self.patterns = self.plain = 0
        monkeypatch.setattr(leaf_plan, "_seen", defaultdict(leaf_plan._Seen))
        for owner, method, name in (
            (tree._Encoder, "value", "encoded"),
            (structure_cache.Pattern, "__init__", "patterns"),
            (structure_cache._Plain, "__init__", "plain"),
        ):
            monkeypatch.setattr(owner, method, self._counting(getattr(owner, method), name))

    def _counting(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            setattr(self, name, getattr(self, name) + 1)
            return real(*arguments)

        return counted

    def encoded_by(self, make: Callable[[], object]) -> int:
        before = self.encoded
        make()
        return self.encoded - before


def test_plain_values_are_remembered_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    history: list[Any] = [{"step": n, "loss": [n / 3]} for n in range(200)]
    value = {"w": torch.ones(2), "trainer": {"history": history, "lr": 0.1}}
    once = work.encoded_by(lambda: tree.encode(value, "shared"))
    for _ in range(2):
        assert work.encoded_by(lambda: leaf_plan._apart(value, "shared")) == once
    assert (work.patterns, work.plain) == (1, 1)
    assert work.encoded_by(lambda: leaf_plan._apart(value, "shared")) == 0


@pytest.mark.parametrize("arrays", [False, True])
def test_a_state_that_grows_at_each_save_is_encoded_once(
    monkeypatch: pytest.MonkeyPatch, arrays: bool
) -> None:
    work = Work(monkeypatch)
    settled = {"losses": [np.zeros(1)], "history": [{"step": 0}]}
    for _ in range(3):
        leaf_plan._apart(settled, "shared")
    assert work.patterns == 1
    losses, history = [np.zeros(1)], [{"step": n} for n in range(100)]
    value = {"losses": losses, "history": history}
    for n in range(6):
        if arrays:
            losses[0] = np.zeros(n + 2)
        else:
            losses.append(np.zeros(1))
        history.append({"step": n})
        once = work.encoded_by(lambda: tree.encode(value, "shared"))
        assert work.encoded_by(lambda: leaf_plan._apart(value, "shared")) == once
    assert work.patterns == 1
    history.append({"now": torch.ones(1)})  # type: ignore[dict-item] # nor for what is plain in the pattern
    for _ in range(2):
        once = work.encoded_by(lambda: tree.encode(value, "shared"))
        assert work.encoded_by(lambda: leaf_plan._apart(value, "shared")) == once
    assert work.patterns == 2  # of what does not grow any more
    assert work.encoded_by(lambda: leaf_plan._apart(value, "shared")) == 0


def test_parts_and_strange_keys_have_none() -> None:
    part = {"w": tree.Sharded(torch.ones(2, 3), (4, 3), 0)}
    for value in (part, {(1, 2): torch.ones(1)}, {0.5: torch.ones(1)}):
        with pytest.raises(ValueError, match="no pattern"):
            pattern_of(value)
