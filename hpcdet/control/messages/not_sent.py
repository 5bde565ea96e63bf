"""The reason why a message was not sent."""

from __future__ import annotations


class NotSent(Exception):
    """A channel did not take a message; the text holds no secret.

    Args:
        alone: this message is refused, and others may be taken.
    """

    def __init__(self, why: str, *, alone: bool = False) -> None:
        super().__init__(why)
        self.alone = alone
