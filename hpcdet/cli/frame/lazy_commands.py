"""Verbs that are imported when they are used, and the global flags that each verb has."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, MutableMapping

import click

from hpcdet.cli.frame.settings import global_options


class LazyCommands(MutableMapping[str, click.Command]):
    """The commands of a group, with the global flags; listing their names imports none.

    Args:
        modules: by the name of a command ``MODULE:ATTRIBUTE``, below ``hpcdet.cli``.
    """

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._commands: dict[str, str | click.Command] = dict(modules)

    def __getitem__(self, name: str) -> click.Command:
        command = self._commands[name]
        if isinstance(command, str):
            module, _, attribute = command.partition(":")
            command = getattr(importlib.import_module(f"hpcdet.cli.{module}"), attribute)
            assert isinstance(command, click.Command)
            self[name] = command
        return command

    def __setitem__(self, name: str, command: click.Command) -> None:
        add_global_options(command)
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)


_SENTENCE = 200
"""Longer than the first sentence of any verb: click cuts lists after 45 characters."""


def add_global_options(command: click.Command) -> None:
    """Add the global flags to a verb and its subverbs; lists show the whole first sentence."""
    command.short_help = command.get_short_help_str(_SENTENCE)
    taken = {name for parameter in command.params for name in parameter.opts}
    if "--root" not in taken:
        fresh = [o for o in global_options(hidden=True) if not taken & set(o.opts)]
        command.params.extend(fresh)
    if isinstance(command, click.Group) and not isinstance(command.commands, LazyCommands):
        for each in command.commands.values():
            add_global_options(each)
