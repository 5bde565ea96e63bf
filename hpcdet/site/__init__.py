"""Facts of one cluster, as a resolved site holds them, and where its files belong."""

from __future__ import annotations

from hpcdet.site.models import Container, Launcher, Partition, PartitionView, Site

__all__ = ["Container", "Launcher", "Partition", "PartitionView", "Site"]
