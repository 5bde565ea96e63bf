"""Which of ``log_policies`` fit an attempt, by what its ranks have printed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

from hpcdet.store.config.sections.log_policies import LogPolicy
from hpcdet.store.folder.attempt_paths import AttemptPaths

_BEGIN = re.compile(r"^\.\*(?![?+*{])")
_LINE = 4096
"""Characters of a line that are looked at."""
_MOST = 1 << 28
"""Bytes of each log that are looked at: its last ones."""


def fitting(policies: Sequence[LogPolicy], attempt: AttemptPaths) -> list[LogPolicy]:
    """Return the policies of which some line of a rank's log has the pattern.

    A log that cannot be read has none: what a trial ends with must not depend on a file server.
    """
    # what any line begins with says nothing, and is slow to search for
    plain = [_BEGIN.sub("", policy.pattern) for policy in policies]
    left = [(policy, re.compile(text)) for policy, text in zip(policies, plain, strict=True)]
    found: list[LogPolicy] = []
    for line in _lines(attempt) if left else ():
        hits = [policy for policy, pattern in left if pattern.search(line)]
        if hits:
            found += hits
            left = [each for each in left if each[0] not in hits]
            if not left:
                break
    return [policy for policy in policies if policy in found]


def _lines(attempt: AttemptPaths) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for path in (*sorted(attempt.logs.glob("rank-*.log")), attempt.launcher_log):
            with contextlib.suppress(OSError), path.open("rb") as log:
                log.seek(max(0, path.stat().st_size - _MOST))
                for line in iter(lambda log=log: log.readline(_LINE), b""):  # type: ignore[misc]
                    yield line.decode(errors="replace")
