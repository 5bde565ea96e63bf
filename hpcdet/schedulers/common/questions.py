"""The ban on questions to the scheduler in jobs of a site where it answers none.

Scripts tell the processes of their job by a variable (``capabilities.query_from_compute: false`` of
a site file). A question that nobody answers would take its whole limit of time, and what became of
it would be the answer for all processes of the user.
"""

from __future__ import annotations

import os

from hpcdet.errors import Unavailable

VARIABLE = "HPCDET_NO_QUERIES"
_WHY = "the scheduler answers no questions inside jobs here (capabilities.query_from_compute)"


def answered() -> bool:
    """True unless this process is in a job whose site says that none is answered."""
    return not os.environ.get(VARIABLE)


def refuse(name: str) -> None:
    """Refuse to put a question where none is answered. Raises Unavailable."""
    if not answered():
        raise Unavailable(_WHY, where=name)
