"""The structure that successive saves share, kept apart from their data.

To take a tree apart (``tree.encode``) takes a while for thousands of tensors, and training waits
for it. A *pattern* remembers what came of a tree: where there are leaves, of which types and
shapes, and the text around them. Another tree that fits gives its leaves at once.

Values that are no leaves (learning rates, counters, lists of numbers) may be different ones: they
are taken apart anew, if they have changed. That takes as long as for the whole tree, if they are
most of it; so it is done only once all else is known to fit.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from hpcdet.checkpoint.state import tree
from hpcdet.checkpoint.state.tree import TENSORS, Encoded, component

_LEAVES = ("tensor", "array", "scalar", "bytes")
_KEYS = (str, int, bool, type(None))
_VALUES = frozenset({*_KEYS, float})
_EXACT = 2
"""A version of ``marshal`` in which equal values give equal bytes, and others never do."""


class _Slot(NamedTuple):
    """A place in a text: of the digest of a leaf by its name, else of a plain value by number."""

    name: str
    number: int


_Text = list[str | _Slot]


@dataclass(frozen=True)
class Content:
    """The content of a tree (``tree.content``) without its digests. It keeps no leaf alive."""

    _parts: Sequence[str | _Slot]
    _plain: Sequence[_Said]

    def __call__(self, digest: Callable[[str], str]) -> bytes:
        made = []
        for part in self._parts:
            if isinstance(part, str):
                made.append(part)
            else:
                made.append(
                    f'"{digest(part.name)}"' if part.name else self._plain[part.number].content()
                )
        return "".join(made).encode()


@dataclass(frozen=True)
class Match:
    """The leaves and the text of a tree that fits a pattern.

    Attributes:
        sources: of the leaves, in the order that ``tree.encode`` gives them.
        text: of the skeleton (``tree.to_text``).
    """

    sources: Sequence[Any]
    text: bytes
    content: Content


class _Differs(Exception):
    """The tree does not fit."""


@dataclass
class _Found:
    """The nodes met on the way through a tree."""

    sources: list[Any]
    plain: list[tuple[_Plain, Any]]


class Pattern:
    """The structure of a tree and the result of encoding it.

    Raises:
        ValueError: there can be none: it has parts of tensors, or keys that are not known by
            being equal.

    Attributes:
        leaves: without their data.
    """

    def __init__(self, value: Any, name: str, encoded: Encoded) -> None:
        if any(leaf.part is not None for leaf in encoded.leaves):
            raise ValueError("no pattern for parts of tensors")
        self.leaves = tuple(leaf.plain() for leaf in encoded.leaves)
        maker = _Maker(encoded.skeleton)
        self._root, text, content = maker.node(value, encoded.skeleton, name)
        self._text = _joined(text)
        self._slots = [at for at, part in enumerate(self._text) if isinstance(part, _Slot)]
        self._content = _joined(content)
        first: dict[str, int] = {}
        for number, met in enumerate(maker.names):
            first.setdefault(met, number)
        self._unique = [first[leaf.name] for leaf in encoded.leaves]
        sources = self._collect(value).sources
        self._tensors = [n for n, one in enumerate(sources) if type(one) in TENSORS]
        self._others = [n for n, one in enumerate(sources) if type(one) not in TENSORS]
        self._known = _of_tensors([sources[n] for n in self._tensors])
        self._known_others = [_of_other(sources[n]) for n in self._others]

    def match(self, value: Any) -> Match | None:
        """Return the leaves and the text of a tree; None if it does not fit."""
        try:
            found = self._collect(value)
        except _Differs:
            return None
        sources = found.sources
        tensors = [sources[n] for n in self._tensors] if self._others else sources
        if not set(map(type, tensors)) <= TENSORS or _of_tensors(tensors) != self._known:
            return None
        if [_of_other(sources[n]) for n in self._others] != self._known_others:
            return None
        try:
            said = [node.said(one) for node, one in found.plain]
        except _Differs:
            return None
        text: list[Any] = list(self._text)
        for at, one in zip(self._slots, said, strict=True):
            text[at] = one.text
        content = Content(self._content, said)
        return Match([sources[n] for n in self._unique], "".join(text).encode(), content)

    def _collect(self, value: Any) -> _Found:
        found = _Found([], [])
        self._root.match(value, found)
        return found


def _of_tensors(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """All that decides what leaves there are, and which tensors are the same leaf."""
    known: list[Any] = [
        [one.layout for one in tensors],
        [one.dtype for one in tensors],
        [one.shape for one in tensors],
        [one.device for one in tensors],
    ]
    if any(one is not torch.strided for one in known[0]):
        return known
    places = [one.data_ptr() or id(one) for one in tensors]
    if len(set(places)) < len(places):
        first: dict[int, int] = {}
        known += [
            [first.setdefault(place, number) for number, place in enumerate(places)],
            [(one.stride(), one.is_conj(), one.is_neg()) for one in tensors],
        ]
    return known


def _of_other(source: Any) -> tuple[Any, ...]:
    """The same of a leaf that is no tensor."""
    if type(source) is bytes:
        return bytes, len(source)
    if isinstance(source, np.generic):
        return np.generic, source.dtype.str
    if type(source) is np.ndarray:
        return np.ndarray, source.dtype.str, source.shape, source.dtype.fields is None
    return (type(source),)


# -- nodes: each takes one value, of the same place in every tree ---------------------------------


class _Node(Protocol):
    def match(self, value: Any, found: _Found) -> None: ...


class _Leaf:
    def match(self, value: Any, found: _Found) -> None:
        found.sources.append(value)


class _Plain:
    """Values without leaves."""

    def __init__(self, path: str, value: Any, skeleton: Any) -> None:
        self._path = path
        self._last = _exactly(value), _Said(skeleton)  # changed at once: threads share it

    def match(self, value: Any, found: _Found) -> None:
        found.plain.append((self, value))

    def said(self, value: Any) -> _Said:
        """Return the content of a value, which may differ from the one before."""
        last, said = self._last
        now = _exactly(value)
        if now is None or now != last:
            if not _is_plain(value):
                raise _Differs
            encoded = tree.encode(value, self._path)
            if encoded.leaves:
                raise _Differs
            said = _Said(encoded.skeleton)
            self._last = now, said
        return said


class _Said:
    """The content of a value without leaves; ``text`` is that of its skeleton."""

    def __init__(self, skeleton: Any) -> None:
        self.text = tree.to_text(skeleton).decode()
        self._content: str | Callable[[], bytes] = partial(tree.content, skeleton, str)

    def content(self) -> str:
        """``tree.content`` of it, which is made once it is asked for: training waits no more."""
        made = self._content
        if not isinstance(made, str):
            made = self._content = made().decode()
        return made


def _is_plain(value: Any) -> bool:
    """Whether there is nothing in a value that may be a leaf; far sooner than it is encoded."""
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            rest.extend(inner for inner in one.values() if type(inner) not in _VALUES)
        elif isinstance(one, list | tuple):
            rest.extend(inner for inner in one if type(inner) not in _VALUES)
        elif type(one) not in _VALUES:
            return False
    return True


def _exactly(value: Any) -> bytes | None:
    """Bytes that only this very value has; None if there are no such."""
    try:
        return marshal.dumps(value, _EXACT)
    except ValueError:
        return None


class _Items:
    """A list or a tuple."""

    def __init__(self, kind: Any, nodes: Sequence[_Node]) -> None:
        self._kind = kind
        self._nodes = nodes

    def match(self, value: Any, found: _Found) -> None:
        if type(value) is not self._kind or len(value) != len(self._nodes):
            raise _Differs
        for node, item in zip(self._nodes, value, strict=True):
            node.match(item, found)


class _Pairs:
    """A dictionary; ``metadata``: of an ordered one."""

    def __init__(self, value: Any, nodes: Sequence[_Node], metadata: _Node | None) -> None:
        self._kind = type(value)
        self._keys = list(value)
        self._types = list(map(type, value))
        self._nodes = nodes
        self._flat = all(isinstance(node, _Leaf) for node in nodes)
        self._metadata = metadata

    def match(self, value: Any, found: _Found) -> None:
        if type(value) is not self._kind or list(value) != self._keys:
            raise _Differs
        if list(map(type, value)) != self._types:  # 1, 1.0 and True are equal keys
            raise _Differs
        if self._flat:
            found.sources.extend(value.values())
        else:
            for node, item in zip(self._nodes, value.values(), strict=True):
                node.match(item, found)
        metadata = None if self._kind is dict else getattr(value, "_metadata", None)
        if metadata is not None and self._metadata is not None:
            self._metadata.match(dict(metadata), found)
        elif metadata is not self._metadata:
            raise _Differs


class _Made(NamedTuple):
    """A node, the text of its skeleton, and its content."""

    node: _Node
    text: _Text
    content: _Text


class _Maker:
    """Makes nodes of values and their skeletons, and the texts of both.

    Attributes:
        names: of all leaves met, in order; a tied one is met more than once.
    """

    def __init__(self, skeleton: Any) -> None:
        self.names: list[str] = []
        self._plain = 0
        self._holding: set[int] = set()  # ids of the parts of the skeleton that hold leaves
        self._look([skeleton])

    def _look(self, skeleton: Any) -> bool:
        """Return True if a skeleton contains leaves; record all its parts in ``_holding``."""
        inner = skeleton
        if isinstance(skeleton, dict):
            inner = () if next(iter(skeleton)) in _LEAVES else skeleton.values()
        found = [self._look(each) for each in inner if isinstance(each, dict | list)]
        holds = any(found) or inner == ()
        if holds:
            self._holding.add(id(skeleton))
        return holds

    def node(self, value: Any, skeleton: Any, path: str) -> _Made:
        """Return the node of a value, the text of its skeleton, and its content."""
        if id(skeleton) not in self._holding:
            slot: _Text = [_Slot("", self._plain)]
            self._plain += 1
            return _Made(_Plain(path, value, skeleton), slot, slot)
        if isinstance(skeleton, list):
            return self._items(value, skeleton, path)
        kind = next(iter(skeleton))
        if kind in ("dict", "ordered"):
            return self._pairs(value, skeleton, path)
        if kind == "tuple":
            return self._items(value, skeleton["tuple"], path)
        name = skeleton[kind]
        self.names.append(name)
        return _Made(_Leaf(), [_json(skeleton)], [f'{{"{kind}":', _Slot(name, 0), "}"])

    def _items(self, value: Any, skeletons: Any, path: str) -> _Made:
        items = [
            self.node(one, skeleton, f"{path}/#{number}")
            for number, (one, skeleton) in enumerate(zip(value, skeletons, strict=True))
        ]
        text, content = _listed(one.text for one in items), _listed(one.content for one in items)
        if type(value) is tuple:
            text, content = (['{"tuple":', *each, "}"] for each in (text, content))
        return _Made(_Items(type(value), [one.node for one in items]), text, content)

    def _pairs(self, value: Any, skeleton: Any, path: str) -> _Made:
        (kind, pairs), *more = skeleton.items()
        nodes: list[_Node] = []
        texts: list[_Text] = []
        contents: list[tuple[bytes, _Text]] = []
        for (key, one), (coded, inner) in zip(value.items(), pairs, strict=True):
            if type(key) not in _KEYS:
                raise ValueError("no pattern for such keys")
            made = self.node(one, inner, f"{path}/{component(key)}")
            key_text = _json(coded)
            begin = f"[{key_text},"
            nodes.append(made.node)
            texts.append([begin, *made.text, "]"])
            contents.append((key_text.encode(), [begin, *made.content, "]"]))
        whole = [f'{{"{kind}":', *_listed(texts)]
        metadata: _Node | None = None
        for _, skeletons in more:
            found = [
                self.node(dict(value._metadata), inner, f"{path}/#metadata") for inner in skeletons
            ]
            metadata = found[0].node if found else None
            whole += [',"metadata":', *_listed(each.text for each in found)]
        ascending = sorted(contents, key=lambda pair: pair[0])
        says: _Text = ['{"dict":', *_listed(content for _, content in ascending), "}"]
        return _Made(_Pairs(value, nodes, metadata), [*whole, "}"], says)


def _json(value: Any) -> str:
    return tree.to_text(value).decode()


def _listed(texts: Iterable[_Text]) -> _Text:
    made: _Text = ["["]
    for number, text in enumerate(texts):
        made += [",", *text] if number else text
    return [*made, "]"]


def _joined(text: _Text) -> _Text:
    """The same with as few parts as possible."""
    made: _Text = []
    for is_slot, parts in groupby(text, lambda part: isinstance(part, _Slot)):
        same = list(parts)
        made += same if is_slot else ["".join(map(str, same))]
    return made
