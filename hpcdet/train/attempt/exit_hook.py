"""Detection of a script that ends by ``sys.exit`` (or ``exit``) with a code of failure.

Python tells nobody: at its end, exceptions that are no ``SystemExit`` are in ``sys.last_value``.
What raises ``SystemExit`` itself is not seen.
"""

from __future__ import annotations

import builtins
import sys
from typing import NoReturn

_codes: list[object] = []
"""What the script has ended with comes first; then what that had been raised in spite of."""


class _Exit(SystemExit):
    """Gone when it has been handled: by code of the script, which goes on, or by Python's end."""

    def __del__(self) -> None:
        if sys._getframe().f_back is None:  # no code runs any more
            _codes.append(self.code)


def _exit(status: str | int | None = None, /) -> NoReturn:
    raise _Exit(status)


def _quit(code: str | int | None = None) -> NoReturn:
    raise _Exit(code)


def watch() -> None:
    """From now on, learn from ``sys.exit``, ``exit`` and ``quit`` how the script ends."""
    script = vars(sys.modules["__main__"])
    script |= {name: _exit for name, value in script.items() if value is sys.exit}
    vars(builtins).update(exit=_quit, quit=_quit)  # which Python makes for people who type them
    sys.exit = _exit


def failed() -> bool:
    """Return True, at the end, if the script has asked for an exit code other than 0."""
    return bool(_codes) and _codes[0] not in (None, 0)
