"""A socket on the login node that leads to a server on a node, carried by the scheduler.

Where no ssh leads to the nodes, one step of the task's own job carries all connections in its
standard input and output: frames of a connection's number, a length, and so many bytes. None
at all opens a connection that is new, and ends one that is known.

``python -Pm hpcdet.tasks.relay TASK`` is what the user's ssh runs on the login node; it ends with
it. ``... relay --node SOCKET`` is the step on the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import sys
import threading
from pathlib import Path

from hpcdet.errors import HpcdetError
from hpcdet.store.folder import private_folders
from hpcdet.store.fs import files
from hpcdet.tasks import join_job, tunnels
from hpcdet.tasks.folder.task_folder import TaskOrder, TaskPaths, TaskServing, TaskStarted

_HEAD = struct.Struct("!II")
_PIECE = 1 << 16
"""Bytes of a frame at most: a longer one is no frame of ours."""
_GREETING = b"hpcdet relay\n"
"""What the step says first; whatever stands before it is of login files."""


class Frames:
    """Both directions between the two ends: many connections in one pair of streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.open: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, number: int, data: bytes) -> None:
        self.writer.write(_HEAD.pack(number, len(data)) + data)
        await self.writer.drain()

    def carry(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Take a connection up; its bytes go to the other end from now on."""
        self.open[number] = writer
        running = asyncio.ensure_future(self._outward(number, reader))
        self._tasks.add(running)
        running.add_done_callback(self._tasks.discard)

    async def _outward(self, number: int, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE):
                await self.send(number, data)
        if (writer := self.open.pop(number, None)) is not None:
            writer.close()
            await self.send(number, b"")

    async def receive(self) -> tuple[int, bytes] | None:
        """Return the next frame; None at the end, or where there is none."""
        try:
            number, length = _HEAD.unpack(await self.reader.readexactly(_HEAD.size))
            if length > _PIECE:
                return None
            return number, await self.reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def deliver(self, number: int, data: bytes) -> None:
        """Hand bytes to a connection; nothing ends it."""
        writer = self.open.get(number) if data else self.open.pop(number, None)
        if writer is None:
            return
        with contextlib.suppress(OSError):
            if data:
                writer.write(data)
                await writer.drain()
            else:
                writer.close()


async def on_node(path: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The node's end: connect to the server for each connection of the other end."""
    frames = Frames(reader, writer)
    writer.write(_GREETING)
    while (frame := await frames.receive()) is not None:
        number, data = frame
        if data or number in frames.open:
            await frames.deliver(number, data)
            continue
        try:
            frames.carry(number, *await asyncio.open_unix_connection(str(path)))
        except OSError:
            await frames.send(number, b"")


async def on_login(
    entrance: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """The login node's end: listen at a socket until the step or the user's ssh has ended.

    Raises:
        HpcdetError: the step did not begin.
    """
    frames, numbers = Frames(reader, writer), iter(range(1, 1 << 32))
    try:
        await reader.readuntil(_GREETING)
    except asyncio.IncompleteReadError as error:
        said = error.partial.decode(errors="replace").strip()
        raise HpcdetError("no step reaches the server's node", hint=said[-500:]) from None

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = next(numbers)
        await frames.send(number, b"")
        frames.carry(number, reader, writer)

    entrance.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(connected, entrance)
    entrance.chmod(files.FILE_MODE)
    print("the relay is open; Ctrl-C closes it", file=sys.stderr, flush=True)
    try:
        while (frame := await frames.receive()) is not None:
            await frames.deliver(*frame)
    finally:
        server.close()
        entrance.unlink(missing_ok=True)


async def streams(read: int, write: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return asyncio's streams for two descriptors."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read, "rb")
    )
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(write, "wb")
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


async def relay(task: TaskPaths) -> None:
    """Relay to a task's server until its user's ssh ends. Raises as ``join_job.argv``."""
    order, serving = TaskOrder.read(task.order), TaskServing.read(task.serving)
    started = TaskStarted.read(task.started)
    if order is None or started is None or serving is None or task.ended.exists():
        raise HpcdetError("its server does not run", where=task.id)
    os.environ["PATH"] = order.path  # ssh reads no login files, which would name these folders
    place = tunnels.at_entrance(order)
    files.make_folder(place.parent)
    private_folders.refuse_foreign(place.parent, "start the task again")
    command = [sys.executable, "-Pm", "hpcdet.tasks.relay", "--node", serving.socket]
    step_command = join_job.of_task(task, started, command)
    step = await asyncio.create_subprocess_exec(
        *step_command.argv,
        env=step_command.environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert step.stdin is not None
    assert step.stdout is not None
    gone = asyncio.ensure_future(_input_ends())
    work = asyncio.ensure_future(on_login(place, step.stdout, step.stdin))
    try:
        await asyncio.wait({gone, work}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        gone.cancel()
        work.cancel()
        with contextlib.suppress(ProcessLookupError):
            step.terminate()
        await step.wait()


async def _input_ends() -> None:
    """Wait for the end of standard input, which comes when the user's ssh ends."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def read() -> None:
        with contextlib.suppress(OSError, RuntimeError):  # the latter: all has ended before
            while os.read(0, _PIECE):
                pass
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=read, daemon=True).start()
    await ended.wait()


async def _node(path: Path) -> None:
    await on_node(path, *await streams(0, 1))


def main(argv: list[str]) -> int:
    """Run one end; return the exit code."""
    os.umask(0o077)
    try:
        if argv[0] == "--node":
            asyncio.run(_node(Path(argv[1])))
        else:
            asyncio.run(relay(TaskPaths(Path(argv[0]))))
    except HpcdetError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
