"""Detection of a host's site by environment, name, commands on PATH, or cluster name."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcdet.errors import ConfigError
from hpcdet.schedulers import opening
from hpcdet.site.models import Detection


@dataclass(frozen=True)
class Host:
    """The host's name, variables and commands, by which detection recognises a site."""

    hostname: str = field(default_factory=socket.getfqdn)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def command(self, name: str) -> str | None:
        """Path of a command, or None."""
        return shutil.which(name, path=self.path)

    @property
    def path(self) -> str:
        """Where commands are, as in ``PATH``."""
        return self.environ.get("PATH", os.defpath)

    def of_cluster(self, key: str, name: str) -> str | None:
        """A value of the cluster's own configuration, by a key that a backend offers.

        Raises:
            ConfigError: none does.
        """
        offered = {found: ask for one in opening.every() for found, ask in one.facts.keys.items()}
        if key not in offered:
            ways = ", ".join(["env", "hostname", "command", *offered])
            raise ConfigError(f"{key} is no way to detect a site", hint=f"use one of {ways}")
        return offered[key](name, self.path)

    def without_cluster(self, command: str) -> bool:
        """True if a scheduler's commands are installed, but belong to no cluster."""
        return any(
            command in one.facts.commands and one.facts.no_cluster(self.path)
            for one in opening.every()
        )


def recognise(rule: Detection, host: Host) -> str:
    """Return why the rule fits this host, for people; empty if it does not.

    Raises:
        ConfigError: the rule's pattern is not a regular expression.
    """
    pattern = rule.match or ""
    if rule.hostname is not None:
        fits = _search(rule.hostname, host.hostname)
        return f"the host's name {host.hostname} matches {rule.hostname!r}" if fits else ""
    if rule.env is not None:
        value = host.environ.get(rule.env)
        if value is not None and _search(pattern, value):
            return f"${rule.env} is {value!r}"
    elif rule.command is not None:
        path = host.command(rule.command)
        if path is not None and host.without_cluster(rule.command):
            return ""
        if path is not None and _search(pattern, path):
            return f"{rule.command} is on PATH ({path})"
    elif (asked := rule.of_cluster) is not None:
        value = host.of_cluster(*asked)
        if value is not None and _search(pattern, value):
            return f"{asked[1]} of the cluster is {value!r}"
    return ""


def _search(pattern: str, value: str) -> bool:
    try:
        return re.search(pattern, value) is not None
    except re.error as error:
        raise ConfigError(f"{pattern!r} under detect is no regular expression: {error}") from error
