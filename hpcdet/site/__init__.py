"""Facts of one cluster: site files, their inheritance, and detection of the site."""

from __future__ import annotations

from hpcdet.site.load_site import from_resolved, load, names
from hpcdet.site.models import Launcher, Partition, PartitionView, Site

__all__ = ["Launcher", "Partition", "PartitionView", "Site", "from_resolved", "load", "names"]
