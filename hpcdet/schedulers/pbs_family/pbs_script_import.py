"""Translation of an existing job script into a config: its requests, set-up and command.

Pure: text in, plain data out. What has no translation is listed with its line, never dropped.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcdet.errors import Unavailable
from hpcdet.schedulers.common.job_script import (
    WHY,
    Translation,
    entrypoint,
    lines,
    set_up,
    split,
)
from hpcdet.schedulers.pbs_family.pbs_options import LETTERS, OURS
from hpcdet.schedulers.pbs_family.pbs_text import seconds

_LAUNCHERS = frozenset({"mpirun", "mpiexec", "pbsdsh", "aprun"})
_NAMES = {letter: name for name, letter in LETTERS.items()} | {"e": "output", "k": "output"}
_BARE = "hVIXz"
_FACTORS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_OURS = {
    **WHY,
    "depend": WHY["dependency"],
    "tag": WHY["export"],
    "-V": WHY["export"],
}


def translate(script: str, name: str) -> Translation:
    """Read a job script of PBS.

    Args:
        name: of the experiment, where the script has no job name.

    Raises:
        ConfigError: it runs nothing that a rank could run, or a quote in it is not closed.
    """
    found = Translation()
    options: dict[str, tuple[int, str]] = {}
    commands: list[tuple[int, str]] = []
    for number, line in lines(script):
        if line.startswith("#PBS"):
            if commands or found.setup:
                found.left.append(f"line {number}: {line}: qsub does not read it so far down")
            else:
                options |= {key: (number, value) for key, value in _directive(number, line)}
        elif line and not line.startswith("#"):
            commands.append((number, line))
    variables, plain = set_up(commands, found)
    command, ranks = entrypoint(plain, variables, found, launchers=_LAUNCHERS, array="PBS_ARRAY")
    resources = _resources(options, ranks, found)
    job_name = options.pop("name", (0, ""))[1]
    found.config = {"name": job_name or name, "entrypoint": command}
    found.config["searcher"] = {"name": "single", "metric": "validation_loss"}
    found.config["resources"] = resources
    if others := _others(options, found):
        found.config["pbs"] = {"pbsbatch_args": others}
    if variables:
        found.config["environment"] = {"environment_variables": variables}
    return found


def asked(script: Path) -> dict[str, str]:
    """Return the options that ``qsub`` reads in a script; none if there is no such file.

    Raises:
        Unavailable: it cannot be read.
    """
    found: dict[str, str] = {}
    try:
        with open(script) as text:
            for number, line in lines(text.read()):
                if line.startswith("#PBS"):
                    found |= dict(_directive(number, line))
                elif line and not line.startswith("#"):
                    break  # qsub reads no further
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Unavailable(f"cannot be read: {error.strerror}", where=str(script)) from error
    return found


def _directive(number: int, line: str) -> Iterator[tuple[str, str]]:
    """Yield the options of a line: ours by name, resources by theirs, others as ``-X``."""
    words = split(number, line.removeprefix("#PBS"))
    while words:
        option = words.pop(0)
        letter, value = option[1:2], option[2:]
        if not option.startswith("-") or not letter:
            continue
        if not value and letter not in _BARE and words:
            value = words.pop(0)
        if letter in "lW":
            for part in _parts(value):
                key, _, said = part.partition("=")
                yield key, said
        else:
            yield _NAMES.get(letter, f"-{letter}"), value


def _parts(text: str) -> list[str]:
    """``a=1,depend=afterok:1,b=2`` by its commas."""
    return [part for part in text.split(",") if part]


def _resources(
    options: dict[str, tuple[int, str]], ranks: int | None, found: Translation
) -> dict[str, Any]:
    line, select = options.pop("select", (0, ""))
    nodes, chunk = _chunk(line, select, found)
    old_line, old = options.pop("nodes", (0, ""))
    if old and not select:
        nodes, chunk = _chunk(old_line, old.replace("ppn=", "ncpus="), found)
    cores = _whole(chunk.pop("ncpus", "")) or _whole(options.pop("ncpus", (0, ""))[1]) or 1
    tasks, gpus = _whole(chunk.pop("mpiprocs", "")) or 1, _gpus(chunk)
    slots = max(tasks, gpus or 1, ranks or 1)
    need: dict[str, Any] = {"slots_per_trial": slots * nodes}
    if nodes > 1:
        need["nodes"] = nodes
    need["cpus_per_slot"] = max(1, cores // slots)
    chunk.pop("ompthreads", None)
    memory = chunk.pop("mem", "") or options.pop("mem", (0, ""))[1]
    if size := _bytes(memory):
        need["memory_per_slot"] = size // slots
    for key, value in chunk.items():
        why = "of each chunk: `chunk` of the site file"
        found.left.append(f"line {line or old_line}: {key}={value}: {why}")
    if walltime := seconds(options.pop("walltime", (0, ""))[1]):
        need["walltime_s"] = int(walltime)
    if queue := options.pop("queue", (0, ""))[1]:
        need["resource_pool"] = queue
    return need


def _chunk(line: int, select: str, found: Translation) -> tuple[int, dict[str, str]]:
    """``2:ncpus=4:mpiprocs=2`` as the number of chunks, and what one has."""
    if "+" in select:
        found.left.append(f"line {line}: {select}: workers have one shape; its first chunks count")
    count, *parts = select.partition("+")[0].split(":")
    if "=" in count:
        count, parts = "1", [count, *parts]
    pairs = [part.partition("=") for part in parts]
    for name in (key for key, mark, _ in pairs if not mark):
        found.left.append(f"line {line}: {name}: a property of nodes: `chunk` of the site file")
    return _whole(count) or 1, {key: value for key, mark, value in pairs if mark}


def _gpus(chunk: dict[str, str]) -> int:
    return _whole(chunk.get("ngpus", "")) or _whole(chunk.get("gpus", "")) or 0


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)([kmgt]?)b?", text.lower())
    return int(match[1]) * _FACTORS[match[2]] if match else 0


def _others(options: dict[str, tuple[int, str]], found: Translation) -> list[str]:
    """PbsDirectives that hpcdet has no word of its own for; those that it sets itself are left."""
    others: list[str] = []
    for name, (number, value) in options.items():
        letter = LETTERS.get(name)
        text = f"-{letter} {shlex.quote(value)}" if letter else f"-l {name}={shlex.quote(value)}"
        text = f"{name} {value}".strip() if name.startswith("-") else text
        if name in OURS or name in _OURS or name.startswith("-"):
            why = _OURS.get(name, "hpcdet sets it itself")
            found.left.append(f"line {number}: {text}: {why}")
        else:
            others.append(text)
    return others
