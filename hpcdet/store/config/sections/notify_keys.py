"""The section ``notify`` of the config: recipients of messages, channels and events."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated

from hpcdet.store.folder.records import Channel, Occasion
from hpcdet.store.fs.typed_fields import Key

_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._%+=-]*(@[A-Za-z0-9][A-Za-z0-9.-]*)?")


def is_address(text: str) -> bool:
    """True for the address of one mailbox, of this host where it names none."""
    return len(text) <= 254 and _ADDRESS.fullmatch(text) is not None


_WRITTEN = Key(kind=dict[str, str] | str | None)
"""A reference, or the secret itself, of which a reference takes the place when it is read."""


@dataclass(frozen=True)
class Webhook:
    """``notify.webhook``. Both are secrets: the config holds references to them only."""

    url: Annotated[dict[str, str] | None, _WRITTEN] = None
    """The https address that a message about each event is posted to; a secret, as data.secrets."""
    secret: Annotated[dict[str, str] | None, _WRITTEN] = None
    """The key by which each message is signed (HMAC-SHA256); a secret, as data.secrets."""


WEBHOOK_KEYS = ("url", "secret")
"""Of ``notify.webhook``: references, as those of ``data.secrets``."""


@dataclass(frozen=True)
class Notify:
    command: str | list[str] | None = None
    """A command run on the events below, with HPCDET_EVENT and others in its environment."""
    webhook: Webhook = field(default_factory=Webhook)
    email: str | list[str] | None = None
    """Addresses that a mail about each event goes to, by the site's sendmail."""
    on: list[Occasion] = field(default_factory=lambda: ["end", "failure", "stuck"])
    """The events of which command, webhook and email tell."""

    @property
    def recipients(self) -> list[str]:
        """The addresses of ``email``."""
        return [self.email] if isinstance(self.email, str) else list(self.email or ())

    @property
    def channels(self) -> list[Channel]:
        """The channels of messages, beside ``command``."""
        asked: dict[Channel, bool] = {"webhook": bool(self.webhook.url), "email": bool(self.email)}
        return [channel for channel, wanted in asked.items() if wanted]
