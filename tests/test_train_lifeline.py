"""The connections by which ranks know of each other's lives."""

from __future__ import annotations

import socket
import threading

import pytest
from torch.distributed import HashStore

from hpcdet.errors import Unavailable
from hpcdet.train import lifeline
from hpcdet.train.ranks import Ranks


def test_strangers_are_no_ranks() -> None:
    store, held = HashStore(), []
    rank_0 = threading.Thread(
        target=lambda: held.extend(lifeline._hold(Ranks(0, 2), store, "127.0.0.1", 60))
    )
    rank_0.start()
    try:
        port = int(store.get("lifeline").split()[0])
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"0123456789abcdef")
            assert stranger.recv(1) == b"", "it was sent away"
        mine = lifeline._grasp(store, "127.0.0.1")
    finally:
        rank_0.join(120)
    with mine, held[0] as other:
        mine.sendall(b".")
        assert lifeline._said_goodbye(other)
        mine.close()
        assert not lifeline._said_goodbye(other)


def test_ranks_that_do_not_come_are_counted() -> None:
    with pytest.raises(Unavailable, match="only 1 of 2 ranks came"):
        lifeline._hold(Ranks(0, 2), HashStore(), "127.0.0.1", 0.01)
