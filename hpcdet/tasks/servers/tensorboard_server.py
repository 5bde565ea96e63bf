"""TensorBoard on a Unix socket, behind a token, over event files that follow the journals.

TensorBoard can listen on TCP ports only. Its application is served here by werkzeug, on a socket,
without TensorBoard's own data server (``--load_fast=false``), which would open a port.

``python -Pm hpcdet.tasks.servers.tensorboard_server TASK SOCKET`` is what the job runs.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from hpcdet import units
from hpcdet.interop.tensorboard import EventFiles
from hpcdet.store.folder import log_streams
from hpcdet.store.fs import files
from hpcdet.tasks.folder.task_folder import TaskOrder, TaskPaths
from hpcdet.tasks.servers.private_socket import read_token
from hpcdet.tasks.servers.token_gate import TokenGate

LOOK_S = 10.0
"""Seconds between two looks at the journals, and between two of TensorBoard at its event files."""
_COST = 10
"""A look that took t seconds is not taken again within ten times t."""


class SocketServer:
    """The server class of ``tensorboard.program``: its application on a Unix socket.

    Args:
        path: of the socket.
    """

    def __init__(self, gate: TokenGate, path: Path) -> None:
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Silent(WSGIRequestHandler):
            """A request's line could hold the token."""

            def log(self, type: str, message: str, *args: Any) -> None:
                return

        self._server = make_server(f"unix://{path}", 0, gate, threaded=True, request_handler=Silent)
        path.chmod(files.FILE_MODE)

    def serve_forever(self) -> None:
        self._server.serve_forever()

    def get_url(self) -> str:
        """Return an address that TensorBoard accepts; no server listens there."""
        return "http://localhost/"


def serve(task: TaskPaths, path: Path) -> None:
    """Serve the event files of a task until it is idle."""
    from tensorboard import default, program

    order = TaskOrder.read(task.order)
    assert order is not None
    token = read_token(task.token)
    gates: list[TokenGate] = []

    def server(application: Any, _: Any) -> SocketServer:
        gates.append(TokenGate(application, token, f"hpcdet-{task.id}"))
        return SocketServer(gates[0], path)

    written = EventFiles(task.events, order.sources)
    said = _update(written, [])
    board = program.TensorBoard(plugins=default.get_plugins(), server_class=server)
    flags = ("--logdir", str(task.events), "--load_fast=false", f"--reload_interval={LOOK_S:g}")
    board.configure(argv=[sys.argv[0], *flags])
    board.launch()
    print(f"{files.now()} serving {units.counted(len(order.sources), 'source')}", flush=True)
    threading.Thread(target=_follow, args=(written, said), daemon=True).start()
    while order.idle_s is None or time.monotonic() - gates[0].asked_at < order.idle_s:
        time.sleep(min(1.0, order.idle_s or 1.0))
    print(f"{files.now()} nobody has looked for {order.idle_s:g} s", flush=True)


def _follow(written: EventFiles, said: list[str]) -> None:
    while True:
        began = time.monotonic()
        said = _update(written, said)
        time.sleep(max(LOOK_S, _COST * (time.monotonic() - began)))


def _update(written: EventFiles, said: list[str]) -> list[str]:
    """Bring the event files up to date; print each problem once."""
    try:
        wrong = written.update()
    except OSError as error:  # a full disk; it may have room the next time
        wrong = [str(error)]
    for line in wrong:
        if line not in said:
            print(f"{files.now()} {line}", flush=True)
    return wrong


def main(argv: list[str]) -> int:
    """Serve one task; return the exit code."""
    os.umask(0o077)
    serve(TaskPaths(Path(argv[0])), Path(argv[1]))
    return 0


if __name__ == "__main__":
    log_streams.lose_what_does_not_fit()
    sys.exit(main(sys.argv[1:]))
