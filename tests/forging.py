"""Checkpoints that say what no hpcdet wrote, with right digests: for tests of who reads them.

A forgery changes the table of a file, its skeleton or the manifest, and then makes all digests
right that lie around it: of the HDF5 header, of the table, of the manifest. ``python -m
tests.forging FOLDER COUNT SEED`` reads so many forgeries of a checkpoint, with little memory.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import shutil
import signal
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blake3 import blake3

from hpcdet import checkpoint
from hpcdet.checkpoint.format.hdf5_layout import gaps
from hpcdet.checkpoint.read import load
from hpcdet.errors import IntegrityError
from hpcdet.store.fs import files, sealed_json
from tests.trees import same

MANIFEST = "MANIFEST.json"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


ODD: tuple[Any, ...] = (
    *(-1, 0, 1, 7, 1 << 20, 1 << 31, 1 << 53, 1 << 62, 1 << 63, 10**30, -(1 << 63), 10**400),
    *(True, False, None, 1.0, 1.5, 1e300, "", "x", "1", "-1", "a\0b", "é", "\ud7ff", "x" * 5000),
    *([], {}, [1], [-1], [1 << 40], [0, 1 << 62], [1 << 62, 0], {"a": 1}, [[]], nested(90)),
    *("float32", "float64", "uint8", "bool", "O", "|O", "<U0", "|S0", "|V0", "<f4", "<c16"),
    *("Tensor", "load", "dtype", "nn", "<M8[ns]", "(9,)f4", "f4,f4", "../x", "/etc/passwd", "."),
    *("tensor", "array", "scalar", "bytes", MANIFEST, "0" * 64, nested(300)),
)


@dataclass
class Forgery:
    """A checkpoint taken apart; ``write`` puts it together, with right digests.

    Attributes:
        tables: of each file: what its table says, or the bytes of it.
        leave: files whose header digest is left as it is.
    """

    manifest: dict[str, Any]
    data: dict[str, bytearray]
    tables: dict[str, Any]
    leave: set[str] = field(default_factory=set)

    @staticmethod
    def of(folder: Path) -> Forgery:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        data = {
            one["file"]: bytearray((folder / one["file"]).read_bytes()) for one in shards(manifest)
        }
        tables = {
            one["file"]: json.loads(data[one["file"]][one["table"][0] : sum(one["table"])])
            for one in shards(manifest)
        }
        return Forgery(manifest, data, tables)

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        manifest = self.manifest
        for shard in shards(manifest):
            name = shard.get("file") if isinstance(shard, dict) else None
            if name not in self.tables:
                continue
            data, table = bytearray(self.data[name]), self.tables[name]
            place, text = len(data), _text(table)
            if isinstance(table, dict) and "frame" in table and name not in self.leave:
                with contextlib.suppress(TypeError, ValueError, KeyError, IndexError):
                    ranges = [(row[4], row[4] + row[5]) for row in table["leaves"]]
                    holes = gaps([*ranges, (place, place + len(text))], place + len(text))
                    whole = bytes(data) + text
                    frame = b"".join(whole[start:end] for start, end in holes)
                    table = {**table, "frame": blake3(frame).hexdigest()}
                    text = _text(table)
            data += text
            (folder / name).write_bytes(data)
            if "forged" not in shard:
                shard["table"], shard["bytes"] = [place, len(text)], len(data)
            shard["root"] = blake3(text).hexdigest()
            shard.pop("forged", None)
        (folder / MANIFEST).write_bytes(_sealed(manifest))


def shards(manifest: Any) -> list[Any]:
    found = manifest.get("shards")
    return (
        [one for one in found if isinstance(one, dict) and "file" in one]
        if isinstance(found, list)
        else []
    )


def _text(table: Any) -> bytes:
    if isinstance(table, bytes):
        return table
    return json.dumps(table, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "replace"
    )


def _sealed(manifest: Any) -> bytes:
    try:
        return sealed_json.text(sealed_json.sealed(manifest))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return json.dumps(manifest).encode()


Harm = Callable[[Forgery, random.Random], str]


def _place(value: Any, dice: random.Random) -> tuple[Any, Any]:
    """A container somewhere in a value, and a key of it."""
    where, key = value, None
    while isinstance(where, dict | list) and where:
        key = dice.choice(list(where) if isinstance(where, dict) else range(len(where)))
        if not isinstance(where[key], dict | list) or not where[key] or dice.random() < 0.3:
            return where, key
        where = where[key]
    return value, key


def odd_value(value: Any, dice: random.Random) -> str:
    where, key = _place(value, dice)
    if key is None:
        return "nothing"
    new = deepcopy(dice.choice(ODD))
    if isinstance(where[key], int) and not isinstance(where[key], bool) and dice.random() < 0.5:
        new = where[key] + dice.choice((-64, -1, 1, 8, 64, 4096, where[key], -2 * where[key]))
    where[key] = new
    return f"{key} = {str(new)[:60]}"


def removed(value: Any, dice: random.Random) -> str:
    where, key = _place(value, dice)
    if key is None:
        return "nothing"
    del where[key]
    return f"without {key}"


def doubled(value: Any, dice: random.Random) -> str:
    lists = [one for one in _lists(value) if one]
    if not lists:
        return "nothing"
    where = dice.choice(lists)
    where.insert(dice.randrange(len(where) + 1), deepcopy(dice.choice(where)))
    return "something twice"


def swapped(value: Any, dice: random.Random) -> str:
    lists = [one for one in _lists(value) if len(one) > 1]
    if not lists:
        return "nothing"
    where = dice.choice(lists)
    a, b = dice.sample(range(len(where)), 2)
    if isinstance(where[a], list) and isinstance(where[b], list) and dice.random() < 0.6:
        column = dice.randrange(max(1, min(len(where[a]), len(where[b]))))
        with contextlib.suppress(IndexError):
            where[a][column], where[b][column] = where[b][column], where[a][column]
            return f"column {column} of {a} and {b} swapped"
    where[a], where[b] = where[b], where[a]
    return f"{a} and {b} swapped"


def copied_column(value: Any, dice: random.Random) -> str:
    rows = value.get("leaves") if isinstance(value, dict) else None
    if not isinstance(rows, list) or len(rows) < 2:
        return "nothing"
    a, b = dice.sample(rows, 2)
    column = dice.randrange(7)
    with contextlib.suppress(IndexError, TypeError):
        a[column] = deepcopy(b[column])
    return f"column {column} copied"


def _lists(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, list):
        yield value
    for one in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from _lists(one)


STRUCTURAL = (odd_value, odd_value, removed, doubled, swapped, copied_column)


def table(forgery: Forgery, dice: random.Random) -> str:
    name = dice.choice(list(forgery.tables))
    said = [
        dice.choice(STRUCTURAL)(forgery.tables[name], dice) for _ in range(dice.choice((1, 1, 2)))
    ]
    if dice.random() < 0.3:
        _rehash(forgery, name)
    return f"table of {name}: {said}"


def _rehash(forgery: Forgery, name: str) -> None:
    """Make the digests of the leaves right as well."""
    rows = forgery.tables[name].get("leaves")
    for row in rows if isinstance(rows, list) else ():
        with contextlib.suppress(TypeError, ValueError, IndexError, AttributeError, RecursionError):
            _, kind, dtype, shape, offset, nbytes, *_ = row
            head = files.canonical([kind, dtype, shape]) + b"\n"
            row[-1] = blake3(head + bytes(forgery.data[name][offset : offset + nbytes])).hexdigest()


def table_bytes(forgery: Forgery, dice: random.Random) -> str:
    name = dice.choice(list(forgery.tables))
    text = bytearray(_text(forgery.tables[name]))
    for _ in range(dice.choice((1, 1, 2, 5))):
        at = dice.randrange(len(text))
        match dice.randrange(3):
            case 0:
                text[at] = (
                    dice.choice(b'0123456789-+.e"[]{},:\\ \0\xff')
                    if dice.random() < 0.8
                    else dice.randrange(256)
                )
            case 1:
                del text[at : at + dice.choice((1, 2, 100))]
            case _:
                text[at:at] = dice.choice(
                    (b"0", b"-", b"[", b"999999999999999999999", b" ", b"[" * 3000)
                )
        text = text or bytearray(b"x")
    forgery.tables[name] = bytes(text)
    return f"bytes of the table of {name}"


def manifest(forgery: Forgery, dice: random.Random) -> str:
    said = dice.choice(STRUCTURAL)(forgery.manifest, dice)
    for one in shards(forgery.manifest):
        if dice.random() < 0.7:
            one["forged"] = True
    return f"manifest: {said}"


def shard(forgery: Forgery, dice: random.Random) -> str:
    one = dice.choice(shards(forgery.manifest))
    if dice.random() < 0.5:
        one["table"] = deepcopy(
            dice.choice((*ODD, [-1, 5], [0, 1 << 60], [1 << 60, 0], [10, -5], [0, 0], [0.0, 5]))
        )
    else:
        one[dice.choice(("bytes", "file", "root"))] = deepcopy(dice.choice(ODD))
    one["forged"] = True
    return f"shard: {str(one)[:90]}"


def manifest_bytes(forgery: Forgery, dice: random.Random) -> str:
    """Of its text, as far as it is JSON still."""
    text = bytearray(json.dumps(forgery.manifest).encode())
    text[dice.randrange(len(text))] = dice.randrange(32, 127)
    with contextlib.suppress(ValueError):
        value = json.loads(text)
        forgery.manifest = value if isinstance(value, dict) else forgery.manifest
    return "bytes of the manifest"


def skeleton(forgery: Forgery, dice: random.Random) -> str:
    name = dice.choice(list(forgery.tables))
    rows = [row for row in forgery.tables[name]["leaves"] if row[0].startswith("skeleton/")]
    if not rows:
        return "nothing"
    row = dice.choice(rows)
    start, end = row[4], row[4] + row[5]
    value = json.loads(forgery.data[name][start:end])
    said = dice.choice((odd_value, removed, doubled, swapped))(value, dice)
    text = json.dumps(value, separators=(",", ":")).encode()
    if dice.random() < 0.3:
        text = bytearray(text)  # type: ignore[assignment]
        text[dice.randrange(len(text))] = dice.randrange(32, 127)  # type: ignore[index]
    if len(text) <= end - start:
        forgery.data[name][start:end] = text.ljust(end - start)
    _rehash(forgery, name)
    return f"{row[0]} in {name}: {said}"


HARMS: tuple[Harm, ...] = (
    table,
    table,
    table,
    table_bytes,
    manifest,
    shard,
    manifest_bytes,
    skeleton,
)


def _ordered(value: Any) -> Any:
    """Dictionaries in one order: what a checkpoint's digest does not cover."""
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value, key=repr)}
    if isinstance(value, list | tuple):
        return type(value)(map(_ordered, value))
    return value


class Bounds:
    """What reading a checkpoint may take: seconds, and memory beside what the control took."""

    def __init__(self, folder: Path, world: int) -> None:
        self._world = world
        for _ in range(3):
            self.read(folder)
        self.most = 0.0
        tracemalloc.start()
        self.loaded = self.read(folder)
        self.most = 1.2 * tracemalloc.get_traced_memory()[1]
        status = Path("/proc/self/status").read_text()
        peak = int(
            next(line.split()[1] for line in status.splitlines() if line.startswith("VmPeak"))
        )
        resource.setrlimit(resource.RLIMIT_AS, ((peak << 10) + (96 << 20),) * 2)

    def read(self, folder: Path) -> tuple[Any, Any]:
        found = checkpoint.load(folder, 0, self._world)
        return _ordered(found.shared), _ordered(found.private)

    def problem(self, folder: Path) -> str:
        """What was wrong about the reading of a forgery; "" if nothing was."""
        signal.alarm(20)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        said = ""
        for act in (self.read, checkpoint.verify, load.look):
            try:
                found = act(folder)
                equal = act != self.read or all(map(same, found, self.loaded))  # type: ignore[arg-type]
                said = said or ("" if equal else "it was loaded as something else")
            except IntegrityError as error:
                if not error.what or (not error.hint and act == self.read):
                    said = f"no hint: {error}"
            except Exception as error:
                said = said or f"{getattr(act, '__name__', act)}: {type(error).__name__}: {error}"
        taken = tracemalloc.get_traced_memory()[1] - before
        signal.alarm(0)
        if taken > self.most + (64 << 10):
            said = said or f"it took {taken} bytes, not {self.most:.0f}"
        return said

    def restored(self, trial: Path, older: Path, name: str) -> str:
        """The same of ``restore``, with a sound checkpoint before it."""
        shutil.copytree(older, trial / "00000001.g1")
        try:
            found = checkpoint.restore(trial, 0, self._world)
            aside = (trial / f".bad-{name}").exists()
            assert found is not None
            if not same(_ordered(found.shared), self.loaded[0]):
                return "restore gave something else"
            return "" if aside == (found.folder.name != name) else "it was not set aside"
        except checkpoint.NewerFormat:
            return ""
        except Exception as error:
            return f"restore: {type(error).__name__}: {error}"


def main(argv: list[str]) -> int:
    base, count, seed = Path(argv[0]), int(argv[1]), int(argv[2])
    origin = Forgery.of(base)
    place = base.parent / f"forged-{seed}"
    name = "00000002.g1"
    deepcopy(origin).write(place / name)
    bounds = Bounds(place / name, origin.manifest["world"])  # the control is accepted
    tally = {"refused": 0, "loaded": 0, "nothing": 0}
    problems = []
    signal.signal(signal.SIGALRM, _late)
    for number in range(count):
        dice = random.Random(f"{seed}-{number}")
        shutil.rmtree(place)
        forgery = deepcopy(origin)
        said = dice.choice(HARMS)(forgery, dice)
        (place / name).mkdir(parents=True)
        try:
            forgery.write(place / name)
        except (OSError, TypeError, ValueError, RecursionError, AttributeError, KeyError):
            tally["nothing"] += 1  # no such file can be made
            continue
        problem = bounds.problem(place / name)
        if not problem and number % 5 == 0:
            problem = bounds.restored(place, base, name)
        if problem:
            problems.append(f"{number}: {said}: {problem}"[:600])
        with contextlib.suppress(IntegrityError):
            bounds.read(place / name)
            tally["loaded"] += 1
    tally["refused"] = count - tally["loaded"] - tally["nothing"]
    print(json.dumps({**tally, "problems": problems}))
    return 0


def _late(*_: Any) -> None:
    raise TimeoutError("it hangs")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
