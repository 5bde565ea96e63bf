"""The anchors of a policy, as this host sees them: what can never hold a head is refused."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.ledger import anchored
from hpcdet.store.folder import trust

_SYSLOG = Path("/dev/log")


def refuse_unusable(anchors: Sequence[str]) -> list[str]:
    """Refuse folders of anchors that cannot hold heads, or that others can empty.

    Returns:
        Warnings: what nodes may have and this host has not, and a folder that is one's own.

    Raises:
        PolicyRefused: P01: a folder is not there, others may write in it, or this user may not.
    """
    warnings = [_of_folder(one) for one in anchored.folders(anchors)]
    for one in anchors:
        if one == anchored.SYSLOG and not _SYSLOG.exists():
            warnings.append(f"syslog: there is no {_SYSLOG} on this host: nodes need one")
        if one.startswith(anchored.COMMAND):
            program = shlex.split(one.removeprefix(anchored.COMMAND))[0]
            if shutil.which(program) is None:
                warnings.append(f"there is no program {program} on this host: nodes need it")
    return [f"ledger.anchor: {one}" for one in warnings if one]


def _of_folder(folder: Path) -> str:
    """Return a warning, or "".

    Raises:
        PolicyRefused: P01.
    """
    try:
        found = folder.stat()
    except OSError as error:
        hint = "make it on storage that nodes and this host share, or name another"
        raise _refused(folder, f"{error.strerror}", hint) from None
    if not stat.S_ISDIR(found.st_mode):
        raise _refused(folder, "it is no folder", "name the folder that is to hold the files")
    if removers := trust.removers(found):
        hint = f"chmod +t {folder}, or chmod go-w {folder}"
        raise _refused(folder, f"{removers} may remove what it holds", hint)
    if not os.access(folder, os.W_OK | os.X_OK):
        hint = "ask its owner for a group that may, or name another"
        raise _refused(folder, "you may not make files in it", hint)
    if found.st_uid == os.geteuid():
        return f"you own {folder}: it shows damage, and not what you change yourself"
    return ""


def _refused(folder: Path, what: str, hint: str) -> PolicyRefused:
    where = f"ledger.anchor: file:{folder}"
    return PolicyRefused("P01", f"the anchor cannot be used: {what}", where=where, hint=hint)
