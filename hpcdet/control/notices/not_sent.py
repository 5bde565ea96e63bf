"""The reason why a notice was not sent."""

from __future__ import annotations


class NotSent(Exception):
    """A channel did not take a notice; the message holds no secret."""
