"""Merkle trees, whose root is the digest of all leaves."""

from __future__ import annotations

import hashlib


class Merkle:
    """A Merkle tree (RFC 6962, section 2.1) that grows leaf by leaf, in O(log n) memory."""

    def __init__(self) -> None:
        self.count = 0
        self._peaks: list[tuple[int, bytes]] = []

    def add(self, leaf: bytes) -> None:
        """Add the next leaf."""
        self.count += 1
        height, top = 0, hashlib.sha256(b"\0" + leaf).digest()
        while self._peaks and self._peaks[-1][0] == height:
            top = hashlib.sha256(b"\1" + self._peaks.pop()[1] + top).digest()
            height += 1
        self._peaks.append((height, top))

    @property
    def root(self) -> str:
        """``sha256:…`` of the leaves so far."""
        if not self._peaks:
            return f"sha256:{hashlib.sha256().hexdigest()}"
        top = self._peaks[-1][1]
        for _, left in reversed(self._peaks[:-1]):
            top = hashlib.sha256(b"\1" + left + top).digest()
        return f"sha256:{top.hex()}"
