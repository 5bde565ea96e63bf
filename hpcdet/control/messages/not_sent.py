"""The reason why a message was not sent."""

from __future__ import annotations


class NotSent(Exception):
    """A channel did not take a message; the message holds no secret."""
