"""How ranks come together, and know of each other's lives."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

from hpcdet.errors import ConfigError
from hpcdet.process.ranks import Ranks
from hpcdet.store.fs import files
from hpcdet.train.attempt import verdicts
from hpcdet.train.comm import collectives
from hpcdet.train.meeting import rendezvous
from tests import ranks as processes


def test_ranks_that_share_an_accelerator_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    for rank in (0, 1, 3):
        store.set(f"device/{rank}", f"GPU-{rank % 3}")
    monkeypatch.setattr(rendezvous, "_device_id", lambda _: "GPU-2")
    with pytest.raises(ConfigError, match="ranks 0, 3 of 4 share one accelerator") as caught:
        rendezvous._check_devices(Ranks(2, 4), store, "nccl")
    assert "distributed.backend: nccl" in str(caught.value) and "gloo" in caught.value.hint
    rendezvous._check_devices(Ranks(2, 3), store, "nccl")


def test_a_rank_that_counts_others_or_runs_another_version_is_named(tmp_path: Path) -> None:
    meeting = tmp_path / "rendezvous.json"
    runs = rendezvous._runs(Ranks(0, 2))
    where = {"host": "node1", "secret": "00", "runs": runs}
    meeting.write_bytes(files.canonical(where))
    with pytest.raises(ConfigError, match="rank 1 has number of ranks 4, rank 0 has number of r"):
        rendezvous._visit(Ranks(1, 4), meeting)
    meeting.write_bytes(files.canonical({**where, "runs": {**runs, "torch": "1.0"}}))
    with pytest.raises(ConfigError, match=r"rank 0 has torch 1\.0") as caught:
        rendezvous._visit(Ranks(1, 2), meeting)
    assert "and node1" in caught.value.where
    with pytest.raises(ConfigError, match="there is no backend 'mpich'"):
        rendezvous.meet(Ranks(0, 1), None, "mpich")


def test_code_that_makes_the_process_group_itself_hears_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError) as torchs:
        dist.init_process_group("gloo")
    ours = verdicts.clearer(torchs.value)
    assert isinstance(ours, ConfigError) and "remove this call" in ours.hint
    assert ours.__cause__ is torchs.value
    other = ValueError("environment variable HOME expected")
    assert verdicts.clearer(other) is other
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    with pytest.raises(ConfigError, match="hpcdet makes the process group"):
        rendezvous.meet(Ranks(0, 2, 0, 2), tmp_path / "rendezvous.json", "gloo")
    rendezvous.meet(Ranks(0, 2, 0, 2), None, "gloo")  # a script alone: it is the launcher's


def test_an_interface_that_a_host_does_not_have_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert rendezvous._addresses("node1") == ["127.0.0.1"]
    for named in ("lo,nowhere0", "nowhere0"):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", named)
        with pytest.raises(ConfigError, match="has no interface 'nowhere0' with") as caught:
            rendezvous.meet(Ranks(0, 2, 0, 1), tmp_path / "rendezvous.json", "gloo")
        assert caught.value.where == f"GLOO_SOCKET_IFNAME={named}" and "(lo" in caught.value.hint


def test_addresses_of_a_name_that_are_another_host_s_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    name = socket.gethostname()
    own = rendezvous._addresses(name)
    look_up = socket.getaddrinfo

    def stale(host: str, *given: Any, **options: Any) -> list[Any]:
        found = look_up("198.51.100.7", 0, type=socket.SOCK_STREAM)
        with contextlib.suppress(OSError):
            found += look_up(host, *given, **options)
        return found

    monkeypatch.setattr(rendezvous.socket, "getaddrinfo", stale)
    assert rendezvous._addresses(name) == own


def test_the_secret_of_a_meeting_is_gone_when_its_ranks_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow the file system: else it would take the next one's with it."""
    meeting, slow = tmp_path / "rendezvous.json", threading.Event()
    forget = rendezvous._forget

    def slowly(*given: Any) -> None:
        slow.wait(60)
        forget(*given)

    monkeypatch.setattr(rendezvous, "_forget", slowly)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            other = pool.submit(rendezvous._visit, Ranks(1, 2, 1, 2), meeting)
            met = [rendezvous._host(Ranks(0, 2, 0, 2), meeting), other.result(60)]
            assert met[0].secret == met[1].secret
            for connection in (*met[0].connections.values(), *met[1].connections.values()):
                connection.close()
            threading.Timer(0.2, slow.set).start()
            rendezvous.leave()
            assert "secret" not in files.read_json(meeting)  # type: ignore[operator]
            slow.clear()


def test_ranks_meet_again_and_torch_knows_their_groups(tmp_path: Path) -> None:
    """Code that takes its group down, and goes on with another one; on one host, by loopback."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: processes.elsewhere(_meets_twice, rank, tmp_path), range(2)))


def _meets_twice(rank: int, folder: Path) -> None:
    warnings.simplefilter("error")
    os.environ["GLOO_SOCKET_IFNAME"] = "nowhere0"  # which is for the way to other hosts
    for _ in range(2):
        rendezvous.meet(Ranks(rank, 2, rank, 2), folder / "rendezvous.json", "gloo")
        gc.collect()  # torch makes the group's Python object anew where it needs it
        # public from torch 2.14 on
        later = getattr(dist, "set_timeout", dist.distributed_c10d._set_pg_timeout)
        later(timedelta(days=2), dist.group.WORLD)
        value = torch.tensor([rank + 1])
        dist.all_reduce(value)
        assert value.item() == 3
        connections = psutil.Process().net_connections("tcp")
        listening = {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}
        assert listening == {"127.0.0.1"}
        dist.destroy_process_group()
    rendezvous.leave()


def test_ranks_that_another_launcher_started_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    for rank in range(2):
        rendezvous.meet(Ranks(rank, 2, rank, 2), None, "gloo")
    said = capsys.readouterr().err
    assert said.count("do not prove to each other who they are") == 1
    assert "docs/explanation/security.md" in said


def test_groups_beside_the_training_have_no_thread_that_looks_for_messages() -> None:
    def looking() -> int:
        names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
        return sum("gloo_tcp" in name for name in names)

    before = looking()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        while (with_one := looking()) == before:  # it gives itself its name
            time.sleep(0.01)
        groups = [collectives.new_group() for _ in range(2)]
        # as by init_process_group(device_id=...) in a script of one's own
        dist.distributed_c10d._get_default_group().bound_device_id = torch.device("cuda:0")
        groups.append(collectives.new_group())
        assert looking() == with_one == before + 1
        for number, group in enumerate(groups):
            value = torch.tensor([number])
            dist.all_reduce(value, group=group, async_op=True).wait()
            assert value.item() == number
    finally:
        dist.destroy_process_group()
