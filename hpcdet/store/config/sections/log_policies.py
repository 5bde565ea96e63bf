"""``log_policies``: what follows from a line in the log of a trial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from hpcdet.store.fs.typed_fields import Key


@dataclass(frozen=True)
class LogPolicy:
    pattern: Annotated[str, Key(required=True, min_length=1)] = ""
    """Regular expression that is searched for in each line of the ranks' output."""
    action: Literal["cancel_retries", "exclude_node"] | None = None
    """cancel_retries: a trial that fails is not tried again; exclude_node: its nodes are not used
    again; null: explain names the policy."""
    name: str = ""
    """How people call it; the pattern if absent."""

    @property
    def called(self) -> str:
        """Its name for people."""
        return self.name or self.pattern
