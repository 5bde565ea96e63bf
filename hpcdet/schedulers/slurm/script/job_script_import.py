"""Translation of an existing job script into a config: its requests, set-up and command.

Pure: text in, plain data out. What has no translation is listed with its line, never dropped.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from hpcdet.schedulers.common.job_script import (
    WHY,
    Translation,
    entrypoint,
    lines,
    set_up,
    split,
)
from hpcdet.schedulers.slurm.answers.slurm_text import hosts, seconds
from hpcdet.schedulers.slurm.script.slurm_options import OURS, SHORT

_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.*))?|-([A-Za-z])(.*)", re.DOTALL)
_LAUNCHERS = frozenset({"srun", "mpirun", "mpiexec"})
_GPUS = re.compile(r"gpu(?::[A-Za-z][\w.-]*)?(?::(\d+))?")
_BYTES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_BARE = {"exclusive", "requeue", "no-requeue", "hold", "contiguous", "overcommit", "spread-job"}


def translate(script: str, name: str) -> Translation:
    """Read a batch script of Slurm.

    Args:
        name: of the experiment, where the script has no job name.

    Raises:
        ConfigError: it runs nothing that a rank could run, or a quote in it is not closed.
    """
    found = Translation()
    options: dict[str, tuple[int, str | None]] = {}
    commands: list[tuple[int, str]] = []
    for number, line in lines(script):
        if line.startswith("#SBATCH"):
            if commands or found.setup:
                found.left.append(f"line {number}: {line}: sbatch does not read it so far down")
            else:
                _directive(number, line, options)
        elif line.startswith("#PBS"):
            found.left.append(f"line {number}: {line}: PBS scripts are not read")
        elif line and not line.startswith("#"):
            commands.append((number, line))
    variables, plain = set_up(commands, found)
    command, ranks = entrypoint(plain, variables, found, launchers=_LAUNCHERS, array="SLURM_ARRAY")
    resources = _resources(options, ranks, found)
    others = _others(options, found)
    job_name = options.pop("job-name", (0, None))[1]
    found.config = {"name": job_name or name, "entrypoint": command}
    found.config["searcher"] = {"name": "single", "metric": "validation_loss"}
    found.config["resources"] = resources
    if others:
        found.config["slurm"] = {"sbatch_args": others}
    if variables:
        found.config["environment"] = {"environment_variables": variables}
    return found


def _directive(number: int, line: str, options: dict[str, tuple[int, str | None]]) -> None:
    words = split(number, line.removeprefix("#SBATCH"))
    while words:
        match = _OPTION.fullmatch(words.pop(0))
        if match is None:
            continue
        name, value, letter, tail = match.groups()
        if letter is not None:
            name, value = SHORT.get(letter, letter), tail.removeprefix("=") or None
        if value is None and words and name not in _BARE and not words[0].startswith("-"):
            value = words.pop(0)
        options[name] = number, value


def _resources(
    options: dict[str, tuple[int, str | None]], ranks: int | None, found: Translation
) -> dict[str, Any]:
    def take(name: str) -> str | None:
        return options.pop(name, (0, None))[1]

    def whole(name: str) -> int | None:
        line, text = options.get(name, (0, None))
        options.pop(name, None)
        first = re.match(r"\d+", text or "")
        if text is not None and (first is None or first[0] != text):
            used = first[0] if first else "nothing"
            found.left.append(f"line {line}: --{name}={text}: taken as {used}")
        return int(first[0]) if first else None

    nodes = whole("nodes") or 1
    tasks, per_node = whole("ntasks"), whole("ntasks-per-node")
    per_node = per_node or (max(1, tasks // nodes) if tasks else 1)
    gpus = _gpus(options, nodes, per_node)
    slots = max(per_node, gpus or 1, ranks or 1)
    cpus = whole("cpus-per-task") or 1
    need: dict[str, Any] = {"slots_per_trial": slots * nodes}
    if nodes > 1:
        need["nodes"] = nodes
    # one task that starts a rank per device shares its cores among them
    need["cpus_per_slot"] = max(1, cpus * per_node // slots)
    memory = {name: take(name) for name in ("mem", "mem-per-cpu", "mem-per-gpu")}
    sizes = {name: _bytes(text) for name, text in memory.items() if text}
    if sizes.get("mem"):
        need["memory_per_slot"] = sizes["mem"] // slots
    elif sizes.get("mem-per-cpu"):
        need["memory_per_slot"] = sizes["mem-per-cpu"] * need["cpus_per_slot"]
    elif sizes.get("mem-per-gpu"):
        need["memory_per_slot"] = sizes["mem-per-gpu"]
    elif memory["mem"]:
        options["mem"] = 0, memory["mem"]  # 0: all of a node
    if (text := take("time")) and (walltime := seconds(text)):
        need["walltime_s"] = walltime
    if names := take("exclude"):
        need["exclude_nodes"] = list(hosts(names))
    if partition := take("partition"):
        need["resource_pool"] = partition
    return need


def _gpus(options: dict[str, tuple[int, str | None]], nodes: int, per_node: int) -> int | None:
    """Accelerators on a node; the option stays, for sbatch, in the form that holds per node."""
    for name, per in (("gpus-per-node", 1), ("gres", 1), ("gpus-per-task", per_node), ("gpus", 0)):
        line, text = options.get(name, (0, None))
        kind, _, count = (text or "").rpartition(":") if name != "gres" else ("", "", "")
        if name == "gres":
            match = _GPUS.search(text or "")
            if match is None:
                continue
            return int(match[1] or 1)
        if not count.isdecimal():
            continue
        here = int(count) * per if per else max(1, int(count) // nodes)
        del options[name]
        options["gpus-per-node"] = line, f"{kind}:{here}" if kind else str(here)
        return here
    return None


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text.upper())
    return int(match[1]) * _BYTES[match[2] or "M"] if match else 0


def _others(options: dict[str, tuple[int, str | None]], found: Translation) -> list[str]:
    """Options that hpcdet has no word of its own for; those that it sets itself are left."""
    others: list[str] = []
    for name, (number, value) in list(options.items()):
        text = f"--{name}" if value is None else f"--{name}={shlex.quote(value)}"
        if name == "job-name":
            continue
        if name in OURS or name in WHY:
            why = WHY.get(name, "hpcdet sets it itself")
            found.left.append(f"line {number}: {text}: {why}")
        else:
            others.append(text)
    return others
