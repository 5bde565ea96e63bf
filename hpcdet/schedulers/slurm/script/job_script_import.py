"""Translation of an existing job script into a config: its requests, set-up and command.

Pure: text in, plain data out. What has no translation is listed with its line, never dropped.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from hpcdet.errors import ConfigError
from hpcdet.schedulers.common.job_script import Translation
from hpcdet.schedulers.slurm.script.options import OURS, SHORT
from hpcdet.schedulers.slurm.slurm_text import hosts, seconds

_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.*))?|-([A-Za-z])(.*)", re.DOTALL)
_SETUP = {"module", "ml", "source", ".", "conda", "mamba", "micromamba", "spack", "eval", "ulimit"}
_LAUNCHERS = {"srun", "mpirun", "mpiexec"}
_FLAGS = {
    *("--exclusive", "--exact", "--overlap", "--label", "-l", "--unbuffered", "-u", "--pty"),
    *("--kill-on-bad-exit", "-K", "--verbose", "-v", "--oversubscribe", "--allow-run-as-root"),
}
_RANK_STARTERS = {"torchrun", "accelerate", "deepspeed", "horovodrun"}
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_ALWAYS_THERE = re.compile(
    r"SLURM_|HOME$|USER$|LOGNAME$|PATH$|PWD$|TMPDIR$|HPCDET_|RANK$|WORLD_SIZE$"
)
_GPUS = re.compile(r"gpu(?::[A-Za-z][\w.-]*)?(?::(\d+))?")
_BYTES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_BARE = {"exclusive", "requeue", "no-requeue", "hold", "contiguous", "overcommit", "spread-job"}
_WHY = {
    "array": "a search takes its place: hyperparameters and searcher",
    "dependency": "say hpcdet submit --after ID",
    "hold": "say hpcdet submit --hold",
    "export": "jobs get no variable of the shell but those of the config and the site",
}


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
    for number, line in _lines(script):
        if line.startswith("#SBATCH"):
            if commands or found.setup:
                found.left.append(f"line {number}: {line}: sbatch does not read it so far down")
            else:
                _directive(number, line, options)
        elif line.startswith("#PBS"):
            found.left.append(f"line {number}: {line}: PBS scripts are not read")
        elif line and not line.startswith("#"):
            commands.append((number, line))
    variables, plain = _set_up(commands, found)
    entrypoint, ranks = _entrypoint(plain, variables, found)
    resources = _resources(options, ranks, found)
    others = _others(options, found)
    job_name = options.pop("job-name", (0, None))[1]
    found.config = {"name": job_name or name, "entrypoint": entrypoint}
    found.config["searcher"] = {"name": "single", "metric": "validation_loss"}
    found.config["resources"] = resources
    if others:
        found.config["slurm"] = {"sbatch_args": others}
    if variables:
        found.config["environment"] = {"environment_variables": variables}
    return found


def _lines(script: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; one that goes on after a backslash is one line."""
    begun, text = 0, ""
    for number, line in enumerate(script.splitlines(), 1):
        begun = begun or number
        if line.endswith("\\") and not line.startswith("#"):
            text += line[:-1].strip() + " "
            continue
        yield begun, (text + line.strip()).strip()
        begun, text = 0, ""
    if text:
        yield begun, text.strip()


def _words(number: int, line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise ConfigError("a quote is not closed", where=f"line {number}") from error


def _directive(number: int, line: str, options: dict[str, tuple[int, str | None]]) -> None:
    words = _words(number, line.removeprefix("#SBATCH"))
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


def _set_up(
    commands: list[tuple[int, str]], found: Translation
) -> tuple[dict[str, str], list[tuple[int, str]]]:
    """Take what prepares the run: variables, and lines for the site. Returns the rest, too."""
    variables: dict[str, str] = {}
    plain: list[tuple[int, str]] = []
    for number, line in commands:
        words = _words(number, line)
        given = words[1:] if words and words[0] == "export" else words
        pairs = [_ASSIGNMENT.fullmatch(word) for word in given]
        if not words:
            continue
        if pairs and all(pairs):
            if re.search(r"[$`]", line):
                found.setup.append(line if words[0] == "export" else f"export {line}")
            else:
                variables |= {pair[1]: pair[2] for pair in pairs if pair}
        elif words[0] in _SETUP:
            found.setup.append(line)
        elif words[0] == "cd":
            found.left.append(f"line {number}: {line}: the code runs in its snapshot")
        elif words[0] == "set":
            continue  # how the script itself behaves
        else:
            plain.append((number, line))
    return variables, plain


def _entrypoint(
    commands: list[tuple[int, str]], variables: dict[str, str], found: Translation
) -> tuple[str, int | None]:
    """The command of one rank, and how many ranks a starter would have made on a node."""
    chosen = next((c for c in reversed(commands) if _runs(_words(*c))), None)
    for number, line in commands:
        if (number, line) != chosen:
            found.left.append(f"line {number}: {line}: only one command is run")
    if chosen is None:
        hint = "hpcdet looks for a line with python, srun, mpirun or torchrun"
        raise ConfigError("the script runs nothing that a rank could run", hint=hint)
    number, line = chosen
    ranks: int | None = None
    if re.search(r"[;&|<>]", line):
        found.left.append(f"line {number}: {line}: look at it, a shell would run it whole")
        text = line
    else:
        # words of the line itself, so that quotes and variables stay as they were written
        raw = shlex.shlex(line, posix=False, punctuation_chars=False)
        raw.whitespace_split = True
        words = list(raw)
        if words[0] in _LAUNCHERS:
            words = _without_options(words[1:])
        words, ranks = _without_starter(words)
        text = " ".join(words)
    for name in dict.fromkeys(_VARIABLE.findall(text)):
        if name.startswith("SLURM_ARRAY"):
            found.left.append(f"line {number}: ${name}: {_WHY['array']}")
        elif name not in variables and not _ALWAYS_THERE.match(name) and not _sets(found, name):
            why = "nothing sets it in the job; environment.environment_variables can"
            found.left.append(f"line {number}: ${name}: {why}")
    return text, ranks


def _runs(words: list[str]) -> bool:
    if not words:
        return False
    program = words[0].rpartition("/")[2]
    known = _LAUNCHERS | _RANK_STARTERS
    return program in known or re.fullmatch(r"python[\d.]*", program) is not None


def _sets(found: Translation, name: str) -> bool:
    return any(line.startswith(f"export {name}=") for line in found.setup)


def _without_options(words: list[str]) -> list[str]:
    """A launcher's command: what comes after its options and their values."""
    while words and words[0].startswith("-"):
        option = words.pop(0)
        alone = "=" in option or option in _FLAGS or re.fullmatch(r"-[A-Za-z]\d+", option)
        if not alone and _is_value(words):
            words.pop(0)
    return words


def _is_value(words: list[str]) -> bool:
    """True if the next word is the value of the option before it, not the program."""
    return len(words) > 1 and not words[0].startswith("-") and not _runs(words)


def _without_starter(words: list[str]) -> tuple[list[str], int | None]:
    """``torchrun --nproc_per_node=4 train.py`` is ``python train.py`` four times."""
    module = ["-m", "torch.distributed.run"], ["-m", "torch.distributed.launch"]
    starts = bool(words) and words[0] in _RANK_STARTERS
    if not starts and words[1:3] not in module:
        return words, None
    python = "python" if starts else words[0]
    rest = words[1:] if starts else words[3:]
    if rest[:1] == ["launch"]:  # accelerate launch
        rest = rest[1:]
    ranks: int | None = None
    while rest and not rest[0].endswith(".py") and rest[0] not in ("-m", "--module"):
        option, _, value = rest.pop(0).partition("=")
        if option.replace("_", "-") in ("--nproc-per-node", "--num-processes", "--num-gpus"):
            text = value or (rest.pop(0) if rest else "")
            ranks = int(text) if text.isdecimal() else None
    return [python, *rest], ranks


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
        if name in OURS or name in _WHY:
            why = _WHY.get(name, "hpcdet sets it itself")
            found.left.append(f"line {number}: {text}: {why}")
        else:
            others.append(text)
    return others
