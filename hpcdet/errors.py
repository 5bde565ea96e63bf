"""Errors that a person reads: what happened, where, and how to repair it.

    HpcdetError            1
    ├── UsageError         2
    ├── NotFound           3
    ├── ConfigError        4
    ├── Unavailable        5
    ├── Unsuccessful       6
    ├── PartialSuccess     7
    ├── StillPending       8
    └── IntegrityError     9

The number is the exit code of the command line (``hpcdet help exit-codes``).
"""

from __future__ import annotations

import errno


class HpcdetError(Exception):
    """Base of every error that hpcdet raises on purpose.

    Args:
        what: one sentence, without a full stop at its end.
        where: file, key path, job or host it concerns.
        hint: what to do about it.
    """

    exit_code = 1
    code = "FAILED"

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n  hint: {self.hint}" if self.hint else text


class UsageError(HpcdetError):
    """Wrong flags, or a confirmation is needed and no terminal is there to ask."""

    exit_code = 2
    code = "USAGE"


class NotFound(HpcdetError):
    """No such experiment, trial, attempt or checkpoint, or more than one fits."""

    exit_code = 3
    code = "NOT_FOUND"


class ConfigError(HpcdetError):
    """A file that a person wrote is wrong, or a policy refuses it."""

    exit_code = 4
    code = "CONFIG_INVALID"


class Unavailable(HpcdetError):
    """The scheduler or the file system does not answer; safe to try again."""

    exit_code = 5
    code = "UNAVAILABLE"


class Unsuccessful(HpcdetError):
    """The experiment ended, and not well."""

    exit_code = 6
    code = "UNSUCCESSFUL"


class PartialSuccess(HpcdetError):
    """A bulk action worked for some of its items only."""

    exit_code = 7
    code = "PARTIAL"


class StillPending(HpcdetError):
    """The time given to wait is over."""

    exit_code = 8
    code = "PENDING"


class IntegrityError(HpcdetError):
    """A file is not what was written: truncated, changed, or of another run."""

    exit_code = 9
    code = "INTEGRITY"


class Unrecoverable(IntegrityError):
    """A trial's state cannot be gone on from, and trying again would end alike."""


def of_exit_code(code: int) -> type[HpcdetError]:
    """Return the class of errors with which the command line ends so."""
    kinds = HpcdetError.__subclasses__()
    own = (kind for kind in kinds if kind.__module__ == __name__ and kind.exit_code == code)
    return next(own, HpcdetError)


def refused(error: OSError, where: str = "") -> Unavailable:
    """Return the error for a refusal of the file system.

    Args:
        where: what it concerns, if the error names no file (writing into an open one does not).
    """
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "make room (hpcdet ckpt rm, hpcdet rm), then do it again" if full else ""
    return Unavailable(error.strerror or str(error), where=str(error.filename or where), hint=hint)
