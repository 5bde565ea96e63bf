"""The translation of a user's job script into a config."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Translation:
    """The result of a translation. What has no translation is listed with its line, never dropped.

    Attributes:
        config: an experiment's config, plain.
        setup: shell lines that belong before the worker: a site's ``setup``.
        left: what was not translated, ``line N: TEXT: why``.
    """

    config: dict[str, Any] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
