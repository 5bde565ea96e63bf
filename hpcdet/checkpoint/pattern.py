"""What trees have in common that differ in their data only, as those of one save and the next.

To take a tree apart (``tree.encode``) takes a while for thousands of tensors, and training waits
for it. A *pattern* remembers what came of a tree: where there are leaves, of which types and
shapes, and the text around them. Another tree that fits gives its leaves at once.

Values that are no leaves (learning rates, counters, lists of numbers) may be different ones: they
are taken apart anew, if they have changed.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from hpcdet.checkpoint import tree
from hpcdet.checkpoint.tree import TENSORS, Encoded, component

_LEAVES = ("tensor", "array", "scalar", "bytes")
_KEYS = (str, int, bool, type(None))
_EXACT = 2
"""A version of ``marshal`` in which equal values give equal bytes, and others never do."""


class _Slot(NamedTuple):
    """A place in a text: of the digest of a leaf by its name, else of a plain value by number."""

    name: str
    number: int


_Text = list[str | _Slot]


@dataclass(frozen=True)
class Content:
    """What a tree says (``tree.content``), but for the digests. It keeps no leaf alive."""

    _parts: Sequence[str | _Slot]
    _plain: Sequence[str]

    def __call__(self, digest: Callable[[str], str]) -> bytes:
        made = []
        for part in self._parts:
            if isinstance(part, str):
                made.append(part)
            else:
                made.append(f'"{digest(part.name)}"' if part.name else self._plain[part.number])
        return "".join(made).encode()


@dataclass(frozen=True)
class Match:
    """What a tree that fits a pattern holds.

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
    """What has been met on the way through a tree."""

    sources: list[Any]
    texts: list[str]
    contents: list[str]


class Pattern:
    """Of a tree and what came of it.

    Raises:
        ValueError: there can be none: it has parts of tensors, whose digests are others each time,
            or keys that are not known by being equal.

    Attributes:
        leaves: without their data.
    """

    def __init__(self, value: Any, name: str, encoded: Encoded) -> None:
        if any(leaf.part is not None for leaf in encoded.leaves):
            raise ValueError("no pattern for parts of tensors")
        self.leaves = tuple(leaf.plain() for leaf in encoded.leaves)
        maker = _Maker()
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
        """What is in a tree, if it fits."""
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
        text: list[Any] = list(self._text)
        for at, plain in zip(self._slots, found.texts, strict=True):
            text[at] = plain
        content = Content(self._content, found.contents)
        return Match([sources[n] for n in self._unique], "".join(text).encode(), content)

    def _collect(self, value: Any) -> _Found:
        found = _Found([], [], [])
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
        self._last = _exactly(value), _texts(skeleton)  # changed at once: threads share it

    def match(self, value: Any, found: _Found) -> None:
        last, texts = self._last
        now = _exactly(value)
        if now is None or now != last:
            encoded = tree.encode(value, self._path)
            if encoded.leaves:
                raise _Differs
            texts = _texts(encoded.skeleton)
            self._last = now, texts
        found.texts.append(texts[0])
        found.contents.append(texts[1])


def _exactly(value: Any) -> bytes | None:
    """Bytes that only this very value has; None if there are no such."""
    try:
        return marshal.dumps(value, _EXACT)
    except ValueError:
        return None


def _texts(skeleton: Any) -> tuple[str, str]:
    """The text of a skeleton without leaves, and what it says."""
    return tree.to_text(skeleton).decode(), tree.content(skeleton, str).decode()


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
    """A node, the text of its skeleton, and what it says."""

    node: _Node
    text: _Text
    content: _Text


class _Maker:
    """Makes nodes of values and their skeletons, and the texts of both.

    Attributes:
        names: of all leaves met, in order; a tied one is met more than once.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._plain = 0

    def node(self, value: Any, skeleton: Any, path: str) -> _Made:
        """That of a value, the text of its skeleton, and what it says."""
        leaves, plain = len(self.names), self._plain
        kind = "list" if isinstance(skeleton, list) else ""
        if isinstance(skeleton, dict):
            kind = next(iter(skeleton))
        if kind in _LEAVES:
            name = skeleton[kind]
            self.names.append(name)
            return _Made(_Leaf(), [_json(skeleton)], [f'{{"{kind}":', _Slot(name, 0), "}"])
        if kind in ("dict", "ordered"):
            made = self._pairs(value, skeleton, path)
        elif kind in ("list", "tuple"):
            made = self._items(value, skeleton if kind == "list" else skeleton["tuple"], path)
        if len(self.names) > leaves:
            return made
        self._plain = plain + 1
        slot: _Text = [_Slot("", plain)]
        return _Made(_Plain(path, value, skeleton), slot, slot)

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
            begin = f"[{_json(coded)},"
            nodes.append(made.node)
            texts.append([begin, *made.text, "]"])
            contents.append((_json(coded).encode(), [begin, *made.content, "]"]))
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
    for is_slot, parts in groupby(text, _is_slot):
        same = list(parts)
        made += same if is_slot else ["".join(map(str, same))]
    return made


def _is_slot(part: str | _Slot) -> bool:
    return isinstance(part, _Slot)
