"""Entrypoints: which program starts the processes, hpcdet, Determined's launchers or others.

hpcdet starts one process on each slot. Determined runs the entrypoint once on each node, and its
launchers start the rest. A launcher of Determined's alone is left out; in the middle of a shell
command it stays, and its stand-in (``hpcdet.determined.launch``) hands its command to all ranks
of the node. Other launchers would start processes on top of the existing ranks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from hpcdet import launch_modules
from hpcdet.config.check.problems import Problem
from hpcdet.launchers import opening as launchers
from hpcdet.store.config.resolved_config import Resolved

_STARTS_RANKS = frozenset({"", "torch_distributed", "deepspeed"})
"""Launchers that start what hpcdet starts; "": ``determined.exec.harness``."""
_OWN = {"torchrun", "accelerate", "deepspeed", "horovodrun", "jsrun"}
_OPTION = re.compile(r"-.*|[\d.]+[smhd]?")
"""An option of a wrapper, or a number after it: ``timeout -k 5 60s``, ``nice -n 5``."""
_OWN_MODULES = re.compile(
    r"torch\.distributed\.(?:run|launch)|accelerate\.commands\.launch|deepspeed\.launcher\.\w+"
)
_WRAPPERS = frozenset({"!", "command", "conda", "do", "else", "env", "exec", "if", "nice", "nohup"})
_WRAPPERS |= {"run", "setsid", "stdbuf", "then", "time", "timeout", "uv", "while", "xargs", "{"}
_FOUND = re.compile(r"""(["']?)(?:\$\(|`)\s*(?:which|command\s+-v)\s+([^\s`)]+)\s*[`)]\1""")
"""A command that is looked for, and run: ``$(which torchrun)``."""
_ASKED = re.compile(r"\bcommand\s+-[vV]\b")
_RUNS = re.compile(r"-[bBdEiIOPqsSuvx]*([mc])(.*)", re.DOTALL)
_NO_HOROVOD = "Horovod is not used here; a PyTorchTrial trains on all ranks without it"
_PATH = "write PYTHONPATH=FOLDER:$PYTHONPATH, or set it in environment.environment_variables"
_FRAMEWORKS = "leave the launcher out: hpcdet starts the ranks (docs/guides/frameworks.md)"


def rewrite(values: dict[str, Any]) -> Iterator[tuple[Problem, bool]]:
    """Leave out a launcher of Determined's that alone surrounds a command.

    Yields:
        What was found, and whether it is an error (else a warning).
    """
    given = values.get("entrypoint")
    names = [launch_modules.name(module) for module in launch_modules.named(given)]
    for name in names:
        if name not in _STARTS_RANKS | {"horovod", "wrap_rank", "tensorflow"}:
            what = f"there is no determined.launch.{name}"
            yield Problem("entrypoint", what, _FRAMEWORKS), True
            return
        if name == "tensorflow" and _slots(values) > 1:
            what = "determined.launch.tensorflow trains on several ranks, hpcdet on one"
            hint = "set resources.slots_per_trial to 1 (docs/guides/frameworks.md)"
            yield Problem("entrypoint", what, hint), True
            return
    found = launch_modules.at_front(launch_modules.words(given))
    if found is None:
        return
    if found.trial == "":
        yield (
            Problem("entrypoint", "--trial does not name a class", "--trial model_def:MyTrial"),
            True,
        )
        return
    if found.trial is None and "horovod" in names:
        yield Problem("entrypoint", _NO_HOROVOD, _FRAMEWORKS), True
        return
    if found.trial is None and not found.command:
        what = f"there is no command behind {found.module}"
        hint = "write -- between the launcher's own options and the command"
        yield Problem("entrypoint", what, hint), True
        return
    command = list(found.command)
    values["entrypoint"] = found.trial or (
        command if isinstance(given, list) else shlex.join(command)
    )
    what = f"the launcher is left out, as the ranks are started here: {values['entrypoint']!r}"
    yield Problem("entrypoint", what), False


def _slots(values: Mapping[str, Any]) -> int:
    """Return the slots per trial as written, before any check."""
    resources = values.get("resources")
    asked = resources.get("slots_per_trial") if isinstance(resources, Mapping) else None
    return asked if isinstance(asked, int) else 1


def errors(config: Resolved) -> Iterator[Problem]:
    """Yield launchers that would start processes in each of several ranks, or that are absent."""
    if config.compat.determined == "off" and launch_modules.named(config.entrypoint):
        what = "determined.launch is not there with compat.determined: off"
        yield Problem("entrypoint", what, _FRAMEWORKS)
    hides = launch_modules.hidden(config.entrypoint)
    if hides and launch_modules.named(config.entrypoint):
        what = f"{hides} hides hpcdet's launchers, which PYTHONPATH names"
        yield Problem("entrypoint", what, _PATH)
    ranks = config.resources.slots_per_trial
    for own in _own_launchers(config.entrypoint) if ranks > 1 else ():
        what = f"{own} would start processes of its own in each of the {ranks} ranks"
        yield Problem("entrypoint", what, "leave it out: hpcdet starts a rank on each slot")


def doubts(config: Resolved, written: Mapping[str, Any]) -> Iterator[Problem]:
    """Differences from Determined, for configs that were written for it."""
    hides = launch_modules.hidden(config.entrypoint)
    if hides and config.compat.determined != "off":
        what = f"{hides} hides hpcdet's face of Determined: `import determined` will fail"
        yield Problem("entrypoint", f"{what} ({_PATH})")
    ranks = config.resources.slots_per_trial
    alone = isinstance(config.entrypoint, str) and launch_modules.CLASS.fullmatch(config.entrypoint)
    if ranks > 1 and not alone and not launch_modules.named(written.get("entrypoint")):
        what = f"runs {ranks} times, once on each slot; Determined runs it once on each node"
        yield Problem("entrypoint", what)


def _own_launchers(entrypoint: str | list[str]) -> Iterator[str]:
    """Yield other launchers that run as a command, not those that are only mentioned."""
    for words in _commands(entrypoint):
        name = words[0].rpartition("/")[2]
        if name in _OWN | launchers.starters() and (
            name != "accelerate" or words[1:2] == ["launch"]
        ):
            yield name if name != "accelerate" else "accelerate launch"
        elif name in ("sh", "bash", "dash", "zsh") and "-c" in words[1:-1]:
            yield from _own_launchers(words[words.index("-c") + 1])
        elif name == "eval":
            yield from _own_launchers(" ".join(words[1:]))
        elif launch_modules.PYTHON.fullmatch(name):
            yield from _by_python(words)


def _by_python(words: list[str]) -> Iterator[str]:
    """Yield the launcher that a Python interpreter runs, as a module or by its file."""
    values = iter(words[1:])
    for word in values:
        if runs := _RUNS.fullmatch(word):
            module = runs[2] or next(values, "")
            if runs[1] == "m" and _OWN_MODULES.fullmatch(module):
                yield f"{words[0]} -m {module}"
            return
        if word in ("-W", "-X"):
            next(values, None)
        elif not word.startswith("-"):
            yield from _own_launchers([word.rpartition("/")[2], *values])
            return


def _commands(entrypoint: str | list[str]) -> Iterator[list[str]]:
    """Split a shell line into simple commands, without leading assignments and wrappers."""
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
    """Split a text into words and operators; none if it is not valid shell."""
    line = text.replace("\\\n", " ").replace("\n", ";")
    line = _ASKED.sub("which", _FOUND.sub(lambda found: found[2], line))
    reader = shlex.shlex(line, posix=True, punctuation_chars=";&|()")
    reader.whitespace_split = True
    try:
        return list(reader)
    except ValueError:
        return []
