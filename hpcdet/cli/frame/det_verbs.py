"""Equivalents of the verbs of Determined's ``det`` (0.38).

A noun may be cut short as there (``e`` for ``experiment``); ``*`` is any verb of a noun.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

_NO_SERVER = "there is no server to ask"
_NO_USERS = "users are those of the cluster: there is no server that has others"
_NODES = "the scheduler looks after the nodes: its own commands show them"
_NO_PROJECTS = "words of a config: hpcdet set ID project=NAME, hpcdet ls --project NAME"
_TEMPLATES = "a template is a file: hpcdet submit CONFIG --template FILE"
_MODELS = {
    "*": "hpcdet registry ls",
    "create": "hpcdet registry add MODEL ID",
    "register-version": "hpcdet registry add MODEL ID",
    "describe": "hpcdet registry show MODEL",
    "list-versions": "hpcdet registry versions MODEL",
    "delete": "hpcdet registry rm MODEL",
    "move": "there are no workspaces: HPCDET_REGISTRY names another registry",
}
_QUEUE = "the scheduler has the queue: its own commands, hpcdet status"
_PRIORITY = "the scheduler decides: its options in the config, hpcdet hold ID, hpcdet release ID"


def _task(kind: str, **others: str) -> dict[str, str]:
    """Return the verbs of what is a job of its own here."""
    return {
        "config": f"hpcdet {kind} ls -o json",
        "kill": f"hpcdet {kind} stop ID",
        "list": f"hpcdet {kind} ls",
        "logs": f"hpcdet {kind} logs ID",
        "set priority": _PRIORITY,
        **others,
    }


NOUNS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "experiment": (
        ("e",),
        {
            "activate": "hpcdet resume ID",
            "unpause": "hpcdet resume ID",
            "archive": "hpcdet archive ID (into one file); hpcdet tag ID --add archived",
            "unarchive": "unpack the archive under a root; hpcdet tag ID --rm archived",
            "cancel": "hpcdet cancel ID",
            "config": "hpcdet show ID --section config",
            "continue": "hpcdet resume ID, hpcdet retry ID; hpcdet fork ID (to change more)",
            "create": "hpcdet submit CONFIG MODEL_DIR",
            "delete": "hpcdet rm ID",
            "delete-tb-files": "no TensorBoard files are written but by the code itself",
            "describe": "hpcdet show ID",
            "download": "hpcdet ckpt get CHECKPOINT -o FOLDER",
            "download-model-def": "code/ in the folder of: hpcdet ls --fields id,path",
            "kill": "hpcdet cancel ID --now",
            "label add": "hpcdet tag ID --add LABEL",
            "label remove": "hpcdet tag ID --rm LABEL",
            "list": "hpcdet ls",
            "list-checkpoints": "hpcdet ckpt ls ID",
            "list-trials": "hpcdet status ID",
            "logs": "hpcdet logs ID",
            "move": "hpcdet move ID FOLDER",
            "pause": "hpcdet pause ID",
            "set max-slots": "hpcdet set ID resources.max_slots=N",
            "set gc-policy": "checkpoint_storage.save_*; hpcdet ckpt pin CHECKPOINT",
            "set log-retention": "logs stay as long as the experiment's folder",
            "set priority": _PRIORITY,
            "set weight": _PRIORITY,
            "set name": "hpcdet set ID name=TEXT",
            "set description": "hpcdet set ID description=TEXT",
            "wait": "hpcdet wait ID",
        },
    ),
    "trial": (
        ("t",),
        {
            "describe": "hpcdet show ID/3, hpcdet metrics ID/3",
            "download": "hpcdet ckpt get CHECKPOINT -o FOLDER",
            "kill": "hpcdet cancel ID/3",
            "logs": "hpcdet logs ID/3",
            "set log-retention": "logs stay as long as the experiment's folder",
            "support-bundle": "hpcdet explain ID, hpcdet doctor, hpcdet archive ID",
        },
    ),
    "checkpoint": (
        ("c",),
        {
            "describe": "hpcdet ckpt ls ID -o json, hpcdet ckpt digest PATH",
            "download": "hpcdet ckpt get CHECKPOINT -o FOLDER",
            "delete": "hpcdet ckpt rm CHECKPOINT",
            "rm": "hpcdet ckpt rm CHECKPOINT",
        },
    ),
    "preview-search": ((), {"*": "hpcdet plan CONFIG, hpcdet simulate CONFIG"}),
    "version": ((), {"*": "hpcdet --version"}),
    "job": (
        ("j",),
        {
            "list": _QUEUE,
            "update": _PRIORITY,
            "update-batch": _PRIORITY,
        },
    ),
    "template": (("tpl",), {"*": _TEMPLATES}),
    "tensorboard": (
        (),
        _task(
            "tensorboard",
            open="hpcdet tensorboard url ID",
            start="hpcdet tensorboard start ID (of an experiment, a trial, or a folder)",
        ),
    ),
    "model": (("m",), _MODELS),
    "command": (
        ("cmd",),
        _task("run", describe="hpcdet run ls -o json", run="hpcdet run start -- COMMAND"),
    ),
    "notebook": (
        (),
        _task("notebook", open="hpcdet notebook url ID", start="hpcdet notebook start"),
    ),
    "shell": (
        (),
        {
            **_task("shell", open="hpcdet shell open ID", start="hpcdet shell start"),
            **dict.fromkeys(("show-ssh-command", "show_ssh_command"), "hpcdet shell open ID"),
        },
    ),
    "task": ((), {"*": "each kind has verbs of its own: hpcdet run ls, hpcdet notebook ls"}),
    "agent": (("a",), {"*": _NODES}),
    "slot": (("s",), {"*": _NODES}),
    "resources": (
        ("res",),
        {
            "aggregated": "hpcdet eff ID; sreport",
            "agg": "hpcdet eff ID; sreport",
            "allocations": "hpcdet show ID --section allocations",
            "alloc": "hpcdet show ID --section allocations",
            "raw": "hpcdet show ID --section allocations",
        },
    ),
    "resource-pool": (("rp",), {"*": "a partition: resources.resource_pool, hpcdet site show"}),
    "master": ((), {"config": "hpcdet site show --origin", "*": _NO_SERVER}),
    "deploy": (("d",), {"*": "nothing is deployed: pip install hpcdet, then hpcdet doctor"}),
    "config-policies": (
        ("cp",),
        {"*": "defaults stand in the site file (config:)"},
    ),
    "workspace": (("w",), {"*": _NO_PROJECTS}),
    "project": (("p",), {"list-experiments": "hpcdet ls", "*": _NO_PROJECTS}),
    "user": (("u",), {"*": _NO_USERS}),
    "user-group": ((), {"*": _NO_USERS}),
    "rbac": ((), {"*": "the permissions of an experiment's folder say who may read it"}),
    "token": (("tkn",), {"*": _NO_SERVER}),
    "oauth": ((), {"*": _NO_SERVER}),
    "auth": ((), {"*": _NO_SERVER}),
    "dev": ((), {"*": _NO_SERVER}),
}
_BY_NAME = {name: noun for noun, (short, _) in NOUNS.items() for name in (noun, *short)}
_ALONE = ("preview-search", "version")
"""Verbs without a noun."""
_COLUMN = 20
_ALIASES = {"ls": "list", "lc": "list-checkpoints", "lt": "list-trials", "u": "update"}


_ELSEWHERE = {
    "describe": "hpcdet show ID",
    "history": "hpcdet ls, hpcdet events ID",
    "hparams": "hpcdet hp ID, hpcdet schedule ID",
    "importance": "hpcdet hp ID",
    "info": "hpcdet show ID",
    "kill": "hpcdet cancel ID --now",
    "rename": "hpcdet set ID name=TEXT (an experiment keeps its id)",
    "start": "hpcdet submit CONFIG, hpcdet resume ID",
    "stop": "hpcdet pause ID, hpcdet cancel ID",
    "watch": "hpcdet status ID -w",
}
"""Verbs of other programs that people try, and ours."""


def answer(words: Sequence[str]) -> str:
    """Return the answer to a command line of ``det``; "" if ``det`` has no such noun.

    Args:
        words: the command line, without options.
    """
    words = words[1:] if words[:1] == ["det"] else words
    noun = _BY_NAME.get(words[0]) if words else None
    if noun is None:
        tried = words[0] if words else ""
        ours = _ELSEWHERE.get(tried)
        return f"No such verb: {tried!r}. Here: {ours}" if ours else ""
    verb = _verb(noun, words)
    if verb:
        length = 1 if noun in _ALONE else 1 + len(verb.split())
        typed = " ".join(words[:length])
        return f"{typed!r} is a verb of Determined's. Here: {NOUNS[noun][1][verb]}"
    what = f"{' '.join(words[:2])!r} is no verb of Determined's. There are:"
    return "\n".join([what, *(_row(*row) for row in NOUNS[noun][1].items() if row[0] != "*")])


def instead_of(words: Sequence[str]) -> str:
    """Return the equivalent of ``det WORDS``; "" if ``det`` has no such verb."""
    noun = _BY_NAME.get(words[0]) if words else None
    return NOUNS[noun][1].get(_verb(noun, words), "") if noun is not None else ""


def _verb(noun: str, words: Sequence[str]) -> str:
    """Return the verb of a noun that the words name; "" if it is none of them."""
    verb = _ALIASES.get(words[1], words[1]) if len(words) > 1 else ""
    verbs = NOUNS[noun][1]
    return next((one for one in (" ".join([verb, *words[2:3]]), verb, "*") if one in verbs), "")


def _row(verb: str, instead: str) -> str:
    indent = " " * (_COLUMN + 4)
    first = f"    {verb:{_COLUMN}}"
    return textwrap.fill(instead, 78, initial_indent=first, subsequent_indent=indent)


def rows() -> list[tuple[str, str]]:
    """Return each verb for the documentation: ``det …`` and its equivalent."""
    return [
        (f"det {noun} {verb}".removesuffix(" *"), instead)
        for noun, (_, verbs) in NOUNS.items()
        for verb, instead in verbs.items()
    ]
