"""Something done as another Unix user, by a process of its own; only root can."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence


def by(uid: int, what: Callable[[], object], groups: Sequence[int] = ()) -> int:
    """Do something as a user of some groups; the exit code: 0, or 1 if it raised."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([*groups])
            os.setgid(uid)
            os.setuid(uid)
            os.umask(0o077)
            what()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
