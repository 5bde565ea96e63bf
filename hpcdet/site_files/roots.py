"""The folder of experiments where none is named. Sites are read only where they decide."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdet.store.folder import home

if TYPE_CHECKING:
    from hpcdet.site import Site


def experiments(given: Path | None = None, site: str | None = None) -> Path:
    """Return ``given``, else ``$HPCDET_ROOT``, the folder that is here, or that of the site.

    Args:
        site: its name; None: the one that fits.

    Raises:
        ConfigError: there is no such site, or its file is wrong.
    """
    if site is None and not given and home.root().is_dir():
        return home.root()
    if given or os.environ.get("HPCDET_ROOT"):
        return given or home.root()
    from hpcdet.site_files import load_site

    return at(load_site.load(site), given)


def at(site: Site, given: Path | None = None) -> Path:
    """Return the folder of experiments at a site."""
    if given or os.environ.get("HPCDET_ROOT"):
        return given or home.root()
    from hpcdet.site import folders

    return folders.experiments(site) or home.root()
