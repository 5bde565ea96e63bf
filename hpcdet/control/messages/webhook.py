"""Messages as HTTP requests: one signed POST of JSON, to the config's address and nowhere else.

Certificates are verified, redirects are not followed, and proxies of the environment are not used.
No message names the address, which is a secret.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hpcdet import __version__
from hpcdet.control.messages.not_sent import NotSent
from hpcdet.store.config import webhook_addresses
from hpcdet.store.decisions.outbox import Message
from hpcdet.store.fs import files

CONNECT_S, WHOLE_S = 10.0, 20.0
"""Seconds for each answer of the network, and for all of it."""
SIGNATURE = "X-Hpcdet-Signature"
_REFUSED = (400, 413, 422)
"""Answers about what was sent, and not about who sends it or where to."""


def body(message: Message, experiment: str) -> bytes:
    """Return the bytes that are sent, the same at each repetition.

    ``text`` is what chat programs show of it.
    """
    value = {
        "schema": "hpcdet.message/1",
        "id": message.id,
        "event": message.event,
        "experiment": experiment,
        "name": message.name,
        "why": message.why,
        "at": message.at,
        "text": f"{experiment}: {message.event}: {message.why}",
    }
    return files.canonical(value)


def signature(secret: str, data: bytes) -> str:
    """Return the value of the header ``SIGNATURE``: HMAC-SHA256 of the body, in hex."""
    key = os.fsencode(secret)  # the very bytes of a variable
    return f"sha256={hmac.new(key, data, hashlib.sha256).hexdigest()}"


def post(url: str, secret: str | None, message: Message, experiment: str) -> None:
    """Send a message.

    Raises:
        NotSent: the answer was not 2xx, or there was none in time.
    """
    if why := webhook_addresses.refusal(url):
        raise NotSent(f"notify.webhook.url: {why}")
    data = body(message, experiment)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"hpcdet/{__version__}",
        "X-Hpcdet-Delivery": message.id,
        "X-Hpcdet-Event": message.event,
    }
    if secret is not None:
        headers[SIGNATURE] = signature(secret, data)
    try:
        with _limited(WHOLE_S):
            status = _status(url, data, headers)
    except TimeoutError:
        raise NotSent("no answer in time") from None
    except ssl.SSLError:
        raise NotSent("its certificate is not trusted, or it speaks no TLS") from None
    except socket.gaierror:
        raise NotSent("its host is not known here") from None
    except (http.client.HTTPException, ValueError) as error:
        raise NotSent(f"it does not answer as HTTP ({type(error).__name__})") from None
    except OSError as error:
        raise NotSent(error.strerror or type(error).__name__) from None
    if 300 <= status < 400:
        raise NotSent(f"HTTP {status}: redirects are not followed")
    if not 200 <= status < 300:
        raise NotSent(f"HTTP {status}", alone=status in _REFUSED)


def _status(url: str, data: bytes, headers: dict[str, str]) -> int:
    encrypted, host, port, target = webhook_addresses.split(url)
    connection: http.client.HTTPConnection
    if encrypted:
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(host, port, timeout=CONNECT_S, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=CONNECT_S)
    try:
        connection.request("POST", target, data, headers)
        return connection.getresponse().status
    finally:
        connection.close()


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError once the time is over, however slowly bytes come; in a main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
