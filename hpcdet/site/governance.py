"""Governance at a site: how jobs reach nodes that enforce it, and nodes' statements."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

FEATURES = re.compile(r"[A-Za-z0-9_.:/=-]+(?:&[A-Za-z0-9_.:/=-]+)*")
"""Features of nodes that are all wanted. An alternative in it would be one without the policy."""
_PLACEHOLDERS = re.compile(r"\{([^{}]*)\}")

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.@/-]+$", max_length=128)]
CapabilityName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
PublicKey = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


NodeCapability = dict[Name, dict[str, Any] | None]
"""One capability of nodes: name of a scheduler to what a job asks it for. Its backend reads it."""


class StatementPlace(_Strict):
    """Where a node's statement lies and who signs it."""

    path: str = Field(
        default="/run/hpcdet/node.dsse",
        description="file on the node; {node} is the scheduler's name of the node",
    )
    key: PublicKey | None = Field(
        default=None, description="Ed25519 public key of the signer, hex; null: nobody signs"
    )
    max_age_s: float = Field(
        default=86400, gt=0, allow_inf_nan=False, description="an older statement does not count"
    )

    @model_validator(mode="after")
    def _place(self) -> StatementPlace:
        if not self.path.startswith("/") or ".." in self.path.split("/"):
            raise ValueError("path: write an absolute path without ..")
        if any(name != "node" for name in _PLACEHOLDERS.findall(self.path)):
            raise ValueError("path: {node} is the only placeholder")
        return self


class SiteGovernance(_Strict):
    """Capabilities that policies may require of nodes, and the statements of nodes."""

    capabilities: dict[CapabilityName, NodeCapability] = Field(
        default_factory=dict, description="name in policies to what a job asks for"
    )
    statement: StatementPlace | None = Field(
        default=None, description="null: nodes make no statements; features are all there is"
    )
