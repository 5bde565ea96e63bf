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
_OPTION = re.compile(r"-.*|[\d.]+[smhd]?")
"""An option of a wrapper, or a number after it: ``timeout -k 5 60s``, ``nice -n 5``."""
_OWN_MODULES = re.compile(
    r"torch\.distributed\.(?:run|launch)|accelerate\.commands\.launch|deepspeed\.launcher\.\w+"
)
_WRAPPERS = frozenset({"!", "command", "conda", "do", "else", "env", "exec", "if", "nice", "nohup"})
_WRAPPERS |= {"run", "setsid", "stdbuf", "then", "time", "timeout", "uv", "while", "{"}
_NO_HOROVOD = "Horovod is not used here; a PyTorchTrial trains on all ranks without it"
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
    trial = _trial(rest)
    if "--" in rest:
        rest = rest[rest.index("--") + 1 :]
    if trial is not None:
        rest = [trial]
    elif launcher == "horovod":
        yield Problem("entrypoint", _NO_HOROVOD, _FRAMEWORKS), True
        return
    if trial == "":
        yield Problem("entrypoint", "--trial names no class", "--trial model_def:MyTrial"), True
        return
    if not rest or rest[0].startswith("-"):
        what = f"there is no command behind {words[place]}"
        hint = "write -- between the launcher's own options and the command"
        yield Problem("entrypoint", what, hint), True
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


def _trial(arguments: Sequence[str]) -> str | None:
    """The class of ``--trial`` among a launcher's arguments; None without that option."""
    for at, word in enumerate(arguments):
        if word == "--trial":
            return "".join(arguments[at + 1 : at + 2])
        if word.startswith("--trial="):
            return word.partition("=")[2]
        if _PYTHON.fullmatch(word):  # what follows are the script's own
            return None
    only = arguments[-1:]
    return only[0] if len(arguments) == 1 and _CLASS.fullmatch(only[0]) else None


def _name(module: str) -> str | None:
    match = LAUNCHER.fullmatch(module)
    return match[1] if match else None


def _own_launchers(entrypoint: str | list[str]) -> Iterator[str]:
    """Launchers of others that are run as a command, not those that are only mentioned."""
    for words in _commands(entrypoint):
        name = words[0].rpartition("/")[2]
        if name in _OWN and (name != "accelerate" or words[1:2] == ["launch"]):
            yield name if name != "accelerate" else "accelerate launch"
        elif name in ("sh", "bash", "dash", "zsh") and "-c" in words[1:-1]:
            yield from _own_launchers(words[words.index("-c") + 1])
        elif _PYTHON.fullmatch(name) and "-m" in words[1:-1]:
            at = words.index("-m")
            options = all(word.startswith("-") for word in words[1:at])
            if options and _OWN_MODULES.fullmatch(words[at + 1]):
                yield f"{words[0]} -m {words[at + 1]}"


def _commands(entrypoint: str | list[str]) -> Iterator[list[str]]:
    """The simple commands of a shell's line, without assignments and wrappers before them."""
    words = entrypoint if isinstance(entrypoint, list) else _tokens(entrypoint)
    command: list[str] = []
    wrapped = False
    for word in [*words, ";"]:
        if isinstance(entrypoint, str) and re.fullmatch(r"[;&|()]+", word):
            if command:
                yield command
            command, wrapped = [], False
        elif command or not (_is_before(word) or (wrapped and _OPTION.fullmatch(word))):
            command.append(word)
        else:
            wrapped = True
    if command:
        yield command


def _is_before(word: str) -> bool:
    return bool(re.fullmatch(r"\w+=.*", word, re.DOTALL)) or word in _WRAPPERS


def _tokens(text: str) -> list[str]:
    """Words and operators; none of a text that is no shell's."""
    line = text.replace("\\\n", " ").replace("\n", ";")
    reader = shlex.shlex(line, posix=True, punctuation_chars=";&|()")
    reader.whitespace_split = True
    try:
        return list(reader)
    except ValueError:
        return []
