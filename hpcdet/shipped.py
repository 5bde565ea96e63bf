"""Where the folders of text that hpcdet ships (templates, site files, governance) lie."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """The shipped folder ``templates``, ``site_configs`` or ``governance``.

    In a wheel it lies inside the package; in a checkout beside it. One copy each.
    """
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
