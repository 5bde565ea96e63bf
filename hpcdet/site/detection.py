"""Detection of a host's site by environment, name, commands on PATH, or cluster name."""

from __future__ import annotations

import functools
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpcdet.errors import ConfigError
from hpcdet.site.models import Detection

_OF_SLURM = ("sbatch", "squeue", "srun", "sinfo", "scontrol")
_NO_CLUSTER = "Could not establish a configuration source"


def parse_config(text: str) -> dict[str, str]:
    """Parse ``scontrol show config`` to a mapping of its keys to their values."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, mark, value in pairs if mark}


@functools.cache
def _ask_slurm(scontrol: str) -> tuple[Mapping[str, str], str]:
    """Return the output of ``scontrol show config`` (10 s at most), or its error message."""
    try:
        done = subprocess.run(
            [scontrol, "show", "config"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {}, str(error)
    return (parse_config(done.stdout), "") if done.returncode == 0 else ({}, done.stderr)


@dataclass(frozen=True)
class Host:
    """The host's name, variables and commands, by which detection recognises a site."""

    hostname: str = field(default_factory=socket.getfqdn)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def command(self, name: str) -> str | None:
        """Path of a command, or None."""
        return shutil.which(name, path=self.environ.get("PATH", os.defpath))

    def slurm(self, key: str) -> str | None:
        """A value of the cluster's own configuration."""
        scontrol = self.command("scontrol")
        return _ask_slurm(scontrol)[0].get(key) if scontrol else None

    @property
    def without_cluster(self) -> bool:
        """True if Slurm's commands are installed, but belong to no cluster.

        A controller that is down for the moment is a cluster.
        """
        scontrol = self.command("scontrol")
        return scontrol is not None and _NO_CLUSTER in _ask_slurm(scontrol)[1]


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
        if rule.command in _OF_SLURM and host.without_cluster:
            return ""
        if path is not None and _search(pattern, path):
            return f"{rule.command} is on PATH ({path})"
    elif rule.scontrol is not None:
        value = host.slurm(rule.scontrol)
        if value is not None and _search(pattern, value):
            return f"{rule.scontrol} of the cluster is {value!r}"
    return ""


def _search(pattern: str, value: str) -> bool:
    try:
        return re.search(pattern, value) is not None
    except re.error as error:
        raise ConfigError(f"{pattern!r} under detect is no regular expression: {error}") from error
