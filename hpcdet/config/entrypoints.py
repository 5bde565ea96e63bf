"""What an entrypoint says about who starts processes: hpcdet, Determined's launchers, or others.

hpcdet starts one process on each slot. Determined runs the entrypoint once on each node, and its
launchers start the rest. A launcher of Determined's alone is left out; in the middle of a shell
command it stays, and its stand-in (``hpcdet.determined.launch``) hands what it launches to all
ranks of the node. Launchers of others would start processes on top of those that are there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcdet.config.models import Config
from hpcdet.config.problems import Problem

LAUNCHER = re.compile(r"determined\.(?:launch\.(\w+)|exec\.harness)")
_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_SHELL = re.compile(r"[|&;<>()$`*?#~\[\]{}\\\n]|(?:^|\s)\w+=")
_STARTS_RANKS = frozenset({None, "torch_distributed", "deepspeed"})
"""Launchers that start what hpcdet starts; None: ``determined.exec.harness``."""
_OWN = {"torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "srun"}
_OWN_MODULES = re.compile(
    r"torch\.distributed\.(?:run|launch)|accelerate\.commands\.launch|deepspeed\.launcher\.\w+"
)
_WRAPPERS = frozenset({"command", "env", "exec", "nice", "nohup", "time"})
_FRAMEWORKS = "leave the launcher out: hpcdet starts the ranks (docs/frameworks.md)"


def rewrite(values: dict[str, Any]) -> Iterator[tuple[Problem, bool]]:
    """Leave out a launcher of Determined's that is all there is around a command.

    Yields:
        What was found, and whether it is an error (else a warning).
    """
    given = values.get("entrypoint")
    for launcher in _launchers(given):
        if launcher not in _STARTS_RANKS | {"horovod", "wrap_rank", "tensorflow"}:
            what = f"there is no determined.launch.{launcher}"
            yield Problem("entrypoint", what, _FRAMEWORKS), True
            return
        if launcher == "tensorflow":
            what = "determined.launch.tensorflow trains on several ranks, hpcdet on one"
            hint = "leave the launcher out, with resources.slots_per_trial: 1 (docs/frameworks.md)"
            yield Problem("entrypoint", what, hint), True
            return
    words = _words(given)
    place = _place(words)
    if place == 0:
        return
    launcher, rest = _name(words[place]), words[place + 1 :]
    if "--" in rest:
        rest = rest[rest.index("--") + 1 :]
    if rest[:1] == ["--trial"] or (rest and rest[0].startswith("--trial=")):
        rest = [rest[0].partition("=")[2] or (rest[1] if len(rest) > 1 else "")]
    elif not rest or rest[0].startswith("-"):
        what = f"there is no command behind {words[place]}"
        hint = "write -- between the launcher's own options and the command"
        yield Problem("entrypoint", what, hint), True
        return
    if launcher == "horovod" and not (len(rest) == 1 and _CLASS.fullmatch(rest[0])):
        what = "Horovod is not used here; a PyTorchTrial trains on all ranks without it"
        yield Problem("entrypoint", what, _FRAMEWORKS), True
        return
    whole = isinstance(given, list) and not (len(rest) == 1 and _CLASS.fullmatch(rest[0]))
    values["entrypoint"] = rest if whole else rest[0] if len(rest) == 1 else shlex.join(rest)
    what = f"the launcher is left out, as the ranks are started here: {values['entrypoint']!r}"
    yield Problem("entrypoint", what), False


def errors(config: Config) -> Iterator[Problem]:
    """Launchers that would start processes in each of several ranks, or that are not there."""
    if config.compat.determined == "off" and _launchers(config.entrypoint):
        what = "determined.launch is not there with compat.determined: off"
        yield Problem("entrypoint", what, _FRAMEWORKS)
    ranks = config.resources.slots_per_trial
    for own in _own_launchers(config.entrypoint) if ranks > 1 else ():
        what = f"{own} would start processes of its own in each of the {ranks} ranks"
        yield Problem("entrypoint", what, "leave it out: hpcdet starts a rank on each slot")


def doubts(config: Config, written: Mapping[str, Any]) -> Iterator[Problem]:
    """What is otherwise in Determined: for configs that were written for it."""
    ranks = config.resources.slots_per_trial
    alone = isinstance(config.entrypoint, str) and _CLASS.fullmatch(config.entrypoint)
    if ranks > 1 and not alone and not _launchers(written.get("entrypoint")):
        what = f"runs {ranks} times, once on each slot; Determined runs it once on each node"
        yield Problem("entrypoint", what)


def _launchers(entrypoint: Any) -> list[str | None]:
    """Determined's launchers that are run by ``-m`` in a command."""
    text = entrypoint if isinstance(entrypoint, str) else ""
    if isinstance(entrypoint, list):
        text = " ".join(word for word in entrypoint if isinstance(word, str))
    return [match[1] for match in re.finditer(rf"-m\s+{LAUNCHER.pattern}", text)]


def _words(entrypoint: Any) -> list[str]:
    """The command as words; none where only a shell knows what it means."""
    if isinstance(entrypoint, list):
        return entrypoint if all(isinstance(word, str) for word in entrypoint) else []
    if not isinstance(entrypoint, str) or _SHELL.search(entrypoint):
        return []
    try:
        return shlex.split(entrypoint)
    except ValueError:
        return []


def _place(words: Sequence[str]) -> int:
    """Where ``python3 -m determined.launch.X`` at the front names the module; 0: it does not."""
    if len(words) < 3 or not _PYTHON.fullmatch(words[0]) or words[1] != "-m":
        return 0
    return 2 if LAUNCHER.fullmatch(words[2]) else 0


def _name(module: str) -> str | None:
    match = LAUNCHER.fullmatch(module)
    return match[1] if match else None


def _own_launchers(entrypoint: str | list[str]) -> Iterator[str]:
    """Launchers of others that are run as a command, not those that are only mentioned."""
    for words in _commands(entrypoint):
        name = words[0].rpartition("/")[2]
        if name in _OWN and (name != "accelerate" or words[1:2] == ["launch"]):
            yield name if name != "accelerate" else "accelerate launch"
        elif (
            _PYTHON.fullmatch(words[0])
            and words[1:2] == ["-m"]
            and _OWN_MODULES.fullmatch("".join(words[2:3]))
        ):
            yield f"{words[0]} -m {words[2]}"


def _commands(entrypoint: str | list[str]) -> Iterator[list[str]]:
    """The simple commands of a shell's line, without assignments and wrappers before them."""
    words = entrypoint if isinstance(entrypoint, list) else _tokens(entrypoint)
    command: list[str] = []
    for word in [*words, ";"]:
        if isinstance(entrypoint, str) and re.fullmatch(r"[;&|()]+", word):
            if command:
                yield command
            command = []
        elif command or not (re.fullmatch(r"\w+=.*", word) or word in _WRAPPERS):
            command.append(word)
    if command:
        yield command


def _tokens(text: str) -> list[str]:
    """Words and operators; none of a text that is no shell's."""
    line = text.replace("\\\n", " ").replace("\n", ";")
    reader = shlex.shlex(line, posix=True, punctuation_chars=";&|()")
    reader.whitespace_split = True
    try:
        return list(reader)
    except ValueError:
        return []
