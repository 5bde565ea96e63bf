"""Metadata of a folder that several ranks store together, merged as Determined does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcdet.errors import UsageError


def merged(everyone: Sequence[Mapping[str, Any]], within: str = "") -> dict[str, Any]:
    """Merge the metadata of all ranks; dicts of the same key are merged, too.

    Args:
        within: the key, with dots, under which all of it lies.

    Raises:
        UsageError: two say different things of one key.
    """
    keys = dict.fromkeys(key for said in everyone for key in said)
    return {
        key: _one([said[key] for said in everyone if key in said], f"{within}{key}") for key in keys
    }


def _one(values: Sequence[Any], where: str) -> Any:
    if all(isinstance(value, Mapping) for value in values):
        return merged(values, f"{where}.")
    for value in values:
        if value != values[0]:
            raise UsageError(
                f"one rank says {values[0]!r:.80}, and another {value!r:.80}",
                where=f"metadata {where}",
                hint="give it on one rank, or alike on all",
            )
    return values[0]
