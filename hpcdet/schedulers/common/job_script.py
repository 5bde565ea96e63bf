"""The translation of a user's job script into a config: what it sets up, and its command.

Pure: text in, plain data out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hpcdet.errors import ConfigError

_SETUP = {"module", "ml", "source", ".", "conda", "mamba", "micromamba", "spack", "eval", "ulimit"}
_FLAGS = {
    *("--exclusive", "--exact", "--overlap", "--label", "-l", "--unbuffered", "-u", "--pty"),
    *("--kill-on-bad-exit", "-K", "--verbose", "-v", "--oversubscribe", "--allow-run-as-root"),
}
_RANK_STARTERS = {"torchrun", "accelerate", "deepspeed", "horovodrun"}
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_ALWAYS_THERE = re.compile(r"HOME$|USER$|LOGNAME$|PATH$|PWD$|TMPDIR$|HPCDET_|RANK$|WORLD_SIZE$")
WHY = {
    "array": "a search takes its place: hyperparameters and searcher",
    "dependency": "say hpcdet submit --after ID",
    "hold": "say hpcdet submit --hold",
    "export": "jobs get no variable of the shell but those of the config and the site",
}
"""Why an option is left out."""


@dataclass
class Translation:
    """The result of a translation. What has no translation is listed with its line, never dropped.

    Attributes:
        config: an experiment's config, plain.
        setup: shell lines that belong before the worker: a site's ``setup``.
        left: what was not translated, ``line N: TEXT: why``.
    """

    config: dict[str, Any] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def lines(script: str) -> Iterator[tuple[int, str]]:
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


def split(number: int, line: str) -> list[str]:
    """The words of a line. Raises ConfigError: a quote in it is not closed."""
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise ConfigError("a quote is not closed", where=f"line {number}") from error


def set_up(
    commands: list[tuple[int, str]], found: Translation
) -> tuple[dict[str, str], list[tuple[int, str]]]:
    """Take what prepares the run: variables, and lines for the site. Returns the rest, too."""
    variables: dict[str, str] = {}
    plain: list[tuple[int, str]] = []
    for number, line in commands:
        words = split(number, line)
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


def entrypoint(
    commands: list[tuple[int, str]],
    variables: dict[str, str],
    found: Translation,
    *,
    launchers: frozenset[str],
    array: str,
) -> tuple[str, int | None]:
    """The command of one rank, and how many ranks a starter would have made on a node.

    Args:
        launchers: programs that start ranks.
        array: how the variables of job arrays begin; other variables of the scheduler begin with
            the same word.
    """
    chosen = next((c for c in reversed(commands) if _runs(split(*c), launchers)), None)
    for number, line in commands:
        if (number, line) != chosen:
            found.left.append(f"line {number}: {line}: only one command is run")
    if chosen is None:
        names = ", ".join(sorted(launchers))
        hint = f"hpcdet looks for a line with python, {names} or torchrun"
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
        if words[0] in launchers:
            words = _without_options(words[1:], launchers)
        words, ranks = _without_starter(words)
        text = " ".join(words)
    for name in dict.fromkeys(_VARIABLE.findall(text)):
        there = name.startswith(f"{array.partition('_')[0]}_") or _ALWAYS_THERE.match(name)
        if name.startswith(array):
            found.left.append(f"line {number}: ${name}: {WHY['array']}")
        elif name not in variables and not there and not _sets(found, name):
            why = "nothing sets it in the job; environment.environment_variables can"
            found.left.append(f"line {number}: ${name}: {why}")
    return text, ranks


def _runs(words: list[str], launchers: frozenset[str]) -> bool:
    if not words:
        return False
    program = words[0].rpartition("/")[2]
    known = launchers | _RANK_STARTERS
    return program in known or re.fullmatch(r"python[\d.]*", program) is not None


def _sets(found: Translation, name: str) -> bool:
    return any(line.startswith(f"export {name}=") for line in found.setup)


def _without_options(words: list[str], launchers: frozenset[str]) -> list[str]:
    """A launcher's command: what comes after its options and their values."""
    while words and words[0].startswith("-"):
        option = words.pop(0)
        alone = "=" in option or option in _FLAGS or re.fullmatch(r"-[A-Za-z]\d+", option)
        if not alone and _is_value(words, launchers):
            words.pop(0)
    return words


def _is_value(words: list[str], launchers: frozenset[str]) -> bool:
    """True if the next word is the value of the option before it, not the program."""
    return len(words) > 1 and not words[0].startswith("-") and not _runs(words, launchers)


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
