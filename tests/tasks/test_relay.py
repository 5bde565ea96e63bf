"""Both ends of a relay with a real step between them: many connections in one pair of pipes."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from hpcdet.errors import HpcdetError
from hpcdet.tasks import relay

Talk = Callable[[Path], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def relayed(server: Path, entrance: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A relay from one socket to another, while the context lasts."""
    command = (sys.executable, "-Pm", "hpcdet.tasks.relay", "--node", str(server))
    noisy = f"echo welcome to this node; exec {' '.join(command)}"
    step = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", noisy), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert step.stdin is not None
    assert step.stdout is not None
    login = asyncio.ensure_future(relay.on_login(entrance, step.stdout, step.stdin))
    while not entrance.exists():
        assert not login.done(), login
        await asyncio.sleep(0.01)
    try:
        yield step
    finally:
        login.cancel()
        with contextlib.suppress(ProcessLookupError):
            step.terminate()
        await step.wait()


def run(tmp_path: Path, talk: Talk) -> None:
    """Talk through a relay to a server that gives back what it gets."""

    async def whole() -> None:
        server = await asyncio.start_unix_server(echo, tmp_path / "server")
        async with server, relayed(tmp_path / "server", tmp_path / "entrance"):
            await asyncio.wait_for(talk(tmp_path / "entrance"), 120)

    asyncio.run(whole())


async def once(entrance: Path, data: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(entrance)
    sending = asyncio.ensure_future(_send(writer, data))
    got = await reader.readexactly(len(data))
    await sending
    writer.close()
    return got


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


def test_many_connections_at_once_keep_their_bytes_apart(tmp_path: Path) -> None:
    async def talk(entrance: Path) -> None:
        sent = [bytes([number]) * (200_000 + number) for number in range(20)]
        assert await asyncio.gather(*(once(entrance, data) for data in sent)) == sent
        assert entrance.stat().st_mode & 0o777 == 0o600

    run(tmp_path, talk)


def test_either_side_may_end_a_connection(tmp_path: Path) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.close()

    async def whole() -> None:
        server = await asyncio.start_unix_server(greet, tmp_path / "server")
        async with server, relayed(tmp_path / "server", tmp_path / "entrance"):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "entrance")
            assert await asyncio.wait_for(reader.read(), 60) == b"bye"
            writer.close()

    asyncio.run(whole())


def test_a_server_that_is_gone_closes_what_connects(tmp_path: Path) -> None:
    async def whole() -> None:
        async with relayed(tmp_path / "nobody", tmp_path / "entrance"):
            reader, _ = await asyncio.open_unix_connection(tmp_path / "entrance")
            assert await asyncio.wait_for(reader.read(), 60) == b""

    asyncio.run(whole())


def test_the_entrance_goes_with_the_step(tmp_path: Path) -> None:
    async def whole() -> None:
        async with relayed(tmp_path / "nobody", tmp_path / "entrance") as step:
            step.terminate()
            while (tmp_path / "entrance").exists():
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_a_step_that_does_not_begin_says_why(tmp_path: Path) -> None:
    async def whole() -> None:
        step = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", "echo srun: error: Access denied"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert step.stdin is not None
        assert step.stdout is not None
        await relay.on_login(tmp_path / "entrance", step.stdout, step.stdin)

    with pytest.raises(HpcdetError, match="no step") as refused:
        asyncio.run(asyncio.wait_for(whole(), 60))
    assert "Access denied" in refused.value.hint
