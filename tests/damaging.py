"""Damage to an experiment's files: what a disk, another version or somebody may make of them.

A record is changed in one place and written back as its writer would, so that no checksum shields
what is behind it. The rest happens to files as a whole.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from hpcdet.store.fs import journal, sealed_json

Plain = Any

LITERALS = ("NaN", "-Infinity", "1e999", "1" * 250, "-1", '"\\ud800"', '"\\u0000"')
"""JSON that Python reads and nobody means; some of them no encoder writes."""
VALUES: tuple[Plain, ...] = (
    *(None, True, 0, -1, 1.5, 10**18, "", "x", "../../etc", "\u009b31m", "NaN", "2026-01-01"),
    *([], [None], [[1]], {}, {"": None}, {"batches": -1}, {"batches": 10**30}, [{"a": [{}]}]),
)
_MARK = "a mark that stands for a literal"


def _nested(levels: int) -> Plain:
    value: Plain = 1
    for _ in range(levels):
        value = {"a": [value]}
    return value


def places(value: Plain, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in a document, the outermost last."""
    inner = value.items() if isinstance(value, dict) else ()
    for key, one in inner if isinstance(value, dict) else enumerate(_listed(value)):
        yield from places(one, (*path, key))
    yield path


def _listed(value: Plain) -> list[Plain]:
    return value if isinstance(value, list) else []


def changed(value: Plain, draw: random.Random) -> tuple[bytes, str]:
    """JSON of a document with one place changed, and what was changed."""
    value = copy.deepcopy(value)
    path = draw.choice(list(places(value)))
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    literal = ""
    if path and isinstance(holder, dict) and draw.random() < 0.25:
        del holder[path[-1]]
        what = "is missing"
    else:
        kind = draw.random()
        new: Plain = draw.choice(VALUES)
        if kind < 0.3:
            new, literal = _MARK, draw.choice(LITERALS)
        elif kind < 0.35:
            new = _nested(draw.choice([30, 200]))
        what = f"is {literal[:20] or json.dumps(new)[:40]}"
        if path:
            holder[path[-1]] = new
        else:
            value = new
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    if literal:
        text = text.replace(json.dumps(_MARK), literal)
    return text.encode(), f"{'.'.join(map(str, path)) or 'all of it'} {what}"


def _record(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    text, what = changed(json.loads(data), draw)
    return text + b"\n", what


def _manifest(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    text, what = changed(json.loads(data), draw)
    with contextlib.suppress(ValueError, TypeError):  # it cannot be sealed
        value = json.loads(text)
        return sealed_json.text(sealed_json.sealed(value)), what
    return text, what


def _lines(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    lines = data.splitlines()
    number = draw.randrange(len(lines))
    fields = json.loads(lines[number])
    numbered = draw.random() < 0.9 and fields.pop("n")
    del fields["crc"]
    text, what = changed(fields, draw)
    if numbered and text.startswith(b"{"):
        text = b'{"n":%d' % numbered + (b"," if len(text) > 2 else b"") + text[1:]
    head = text[:-1]
    lines[number] = head + b',"crc":"%08x"}' % journal.zlib.crc32(head)
    return b"\n".join([*lines, b""]), f"line {number + 1}: {what}"


def _snapshot(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    """Its first line, or its state with the checksum of what it is now."""
    about, state = (json.loads(line) for line in data.splitlines())
    if draw.random() < 0.5:
        text, what = changed(state, draw)
        about["sha256"] = hashlib.sha256(text).hexdigest()
        return b"\n".join([json.dumps(about).encode(), text, b""]), f"state.{what}"
    text, what = changed(about, draw)
    return b"\n".join([text, json.dumps(state).encode(), b""]), what


def _yaml(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    return changed(yaml.safe_load(data), draw)


def _archive(data: bytes, draw: random.Random) -> tuple[bytes, str]:
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w") as new:
        chosen = draw.choice([name for name in old.namelist() if kind(name)])
        what = ""
        for name in old.namelist():
            content = old.read(name)
            if name == chosen:
                content, what = kind(name)(content, draw)
            new.writestr(name, content)
    return made.getvalue(), f"{chosen}: {what}"


Change = Callable[[bytes, random.Random], tuple[bytes, str]]


def kind(name: str) -> Change | None:
    """How the contents of such a file are changed; None: it holds nothing that is read by parts."""
    base = name.rpartition("/")[2]
    if base == "MANIFEST.json":
        return _manifest
    if "snapshots/" in name:
        return _snapshot
    ends: dict[str, Change] = {".json": _record, ".beat": _record, ".jsonl": _lines}
    return {**ends, ".yaml": _yaml, ".zip": _archive}.get(Path(base).suffix)


def _cut(path: Path, draw: random.Random) -> None:
    os.truncate(path, draw.randrange(path.stat().st_size + 1))


def _emptied(path: Path, draw: random.Random) -> None:
    os.truncate(path, 0)


def _flipped(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes() or b"\0")
    for _ in range(draw.choice([1, 20])):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def _utf_16(path: Path, draw: random.Random) -> None:
    path.write_bytes(path.read_bytes().decode("latin-1").encode("utf-16"))


def _garbage(path: Path, draw: random.Random) -> None:
    path.write_bytes(draw.randbytes(300))


def _another(path: Path, draw: random.Random) -> None:
    others = [one for one in path.parent.iterdir() if one.is_file() and one != path]
    if others:
        shutil.copy(draw.choice(sorted(others)), path)


def _pipe(path: Path, draw: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _nowhere(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.symlink_to(draw.choice(["nowhere", path.name, "/dev/zero"]))


def _gone(path: Path, draw: random.Random) -> None:
    path.unlink()


WHOLE = (_cut, _emptied, _flipped, _utf_16, _garbage, _another, _pipe, _folder, _nowhere, _gone)


def damage(root: Path, name: str, draw: random.Random) -> str:
    """Damage one file of an experiment; what was done to it."""
    path = root / name
    change = kind(name)
    if change is not None and draw.random() < 0.75:
        data, what = change(path.read_bytes(), draw)
        path.write_bytes(data)
        return f"{name}: {what}"
    harm = draw.choice(WHOLE)
    harm(path, draw)
    return f"{name}: {harm.__name__.strip('_')}"
