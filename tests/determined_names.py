"""``make names``: docs/reference/determined-names.md, from recorded names and our tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from hpcdet.cli.frame import det_verbs
from hpcdet.determined import _client
from hpcdet.determined._absent import why_absent

RECORDED = Path(__file__).parent / "recorded"
NAMES: Mapping[str, Mapping[str, list[str]]] = json.loads(
    (RECORDED / "determined-0.38-names.json").read_text()
)
VERBS = (RECORDED / "determined" / "verbs.txt").read_text().splitlines()
PAGE = Path(__file__).parent.parent / "docs" / "reference" / "determined-names.md"

REMARKS = {
    "determined.core.DistributedContext.from_tf_config": "on one rank",
    **{
        f"determined.{module}.PreemptMode.{mode}": "on one rank: several agree on when to leave"
        for module in ("core", "experimental.core_v2")
        for mode in ("ChiefOnly", "WorkersAskMaster")
    },
    "determined.core.TrainContext.upload_tensorboard_files": "has nothing to do",
    "determined.core.Context.alert": "in the log and in hpcdet events",
    "determined.common": "Here: `set_logger`, `util`.",
    "determined.errors": "For code that raises or catches them; hpcdet raises its own.",
    "determined.experimental.client": (
        "`hpcdet.client` under these names. Ids are hpcdet's: `digits-7f3a`, `digits-7f3a/3`, and "
        "a checkpoint's folder as its `uuid`."
    ),
    **{
        f"determined.experimental.client.{name}": "has nothing to do: there is no server"
        for name in ("login", "logout")
    },
    "determined.experimental.client.Experiment.archive": "as the label `archived`",
    "determined.experimental.client.Experiment.unarchive": "as the label `archived`",
    "determined.experimental.client.Experiment.set_notes": "appends: earlier ones stay",
    "determined.experimental.client.Trial.logs": "has `head`, `tail` and `rank_ids`",
    **{
        f"determined.launch.{name}": "Makes way for the command behind it."
        for name in ("deepspeed", "horovod", "torch_distributed", "wrap_rank")
    },
    "determined.launch.tensorflow": "Makes way for the command behind it, on one rank.",
    "determined.pytorch.PyTorchTrialContext.configure_apex_amp": (
        "raises: apex is given up; context.experimental.use_amp"
    ),
    "determined.pytorch.CheckpointLoadContext.configure_apex_amp": (
        "raises: apex is given up; context.experimental.use_amp"
    ),
    "determined.pytorch.Trainer.configure_profiler": "does nothing, as there",
    "determined.pytorch.deepspeed.DeepSpeedTrial.load": "a trial's own is refused by name",
    "determined.pytorch.deepspeed.DeepSpeedTrial.save": "a trial's own is refused by name",
    "determined.tensorboard.TensorboardManager.sync": "has nothing to do",
    "determined.tensorboard.SharedFSTensorboardManager.sync": "has nothing to do",
}
"""Names that are here and do less, or something else; others: docs/start/port.md."""

_HEAD = """\
# Determined's names, one by one

This page is generated (`make names`): every public name of Determined 0.38 with its members, and
every verb of `det`, with what there is in its place. Where nothing else is said, a name is here
and works: under its own name in an experiment, as `hpcdet.determined…` anywhere. What differs in
meaning stands in [determined](../start/port.md).

It is made from what code for Determined can import, hpcdet's own messages (what is
printed when such a name is used), and the verbs that `det --help` lists.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD, *(section(module) for module in sorted(NAMES)), verbs()]
    return "\n".join(parts)


def section(module: str) -> str:
    """A module's heading and table, or what there is in its place."""
    text, names = f"## {module}\n", NAMES[module]
    if module in REMARKS:
        text += f"\n{REMARKS[module]}\n"
    elif not names:
        text += f"\nNot here: {why_absent(module)}.\n"
    same = [name for name in names if _is_clients(module, name)]
    if same:
        listed = ", ".join(f"`{name}`" for name in same)
        text += f"\nAs in [`client`](#determinedexperimentalclient): {listed}.\n"
    lines = list(table(module, {name: names[name] for name in names if name not in same}))
    return "\n".join([text, "| name | here |", "|---|---|", *lines, ""]) if lines else text


def _is_clients(module: str, name: str) -> bool:
    """Whether a name is one of the client's: a Reference is what it refers to."""
    client = NAMES[_client.PACKAGES[0]]
    other = module in _client.PACKAGES[1:] and name.removesuffix("Reference")
    return bool(other) and bool(client.get(other)) and client.get(other) == NAMES[module][name]  # type: ignore[arg-type]


def table(module: str, names: Mapping[str, list[str]]) -> Iterator[str]:
    """The rows: a class with its members, and what has none together, by what is said of it."""
    alone: dict[str, list[str]] = {}
    for name, members in names.items():
        if members:
            yield from rows(module, name, members)
        else:
            alone.setdefault(said(f"{module}.{name}"), []).append(name)
    for text, found in alone.items():
        yield f"| {', '.join(f'`{one}`' for one in found)} | {text or 'works'} |"


def rows(module: str, name: str, members: list[str]) -> Iterator[str]:
    """The row of a class, and of members of which something else is to be said."""
    whole = f"{module}.{name}"
    own = said(whole)
    by_text: dict[str, list[str]] = {}
    for member in members:
        by_text.setdefault(said(f"{whole}.{member}"), []).append(member)
    same = ", ".join(f"`{one}`" for one in by_text.pop(own, []))
    yield f"| `{name}`{f': {same}' if same else ''} | {own or 'works'} |"
    for text, found in by_text.items():
        those = ", ".join(f"`{name}.{one}`" for one in found)
        yield f"| {those} | {text or 'works'} |"


def said(name: str) -> str:
    """What there is in place of a name, or to say of it; "" where it works."""
    return why_absent(name) or ("" if name in NAMES else REMARKS.get(name, ""))


def verbs() -> str:
    """Every verb of ``det``, by noun."""
    text = f"## det\n\nAll {len(VERBS)} verbs; behind a verb its other spellings.\n"
    table = "\n| there | here |\n|---|---|\n"
    for _, lines in groupby(VERBS, key=lambda line: line.partition(" / ")[0]):
        for line in lines:
            full = [part.split()[0].replace("|", "") for part in line.split(" / ")]
            spelled = f"`det {' '.join(full)}`{_short(line)}"
            table += f"| {spelled} | {det_verbs.instead_of(full)} |\n"
    return text + table


def _short(line: str) -> str:
    """The other spellings of each word: `e` for `experiment`, `ls` for `list`."""
    found = []
    for part in line.split(" / "):
        first, *others = part.split()
        found += [first.partition("|")[0]] * ("|" in first) + others
    return f" ({', '.join(f'`{one}`' for one in found)})" if found else ""


if __name__ == "__main__":
    PAGE.write_text(page())
