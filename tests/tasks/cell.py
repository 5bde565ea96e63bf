"""Runs a cell in a new kernel of a notebook server, through a Unix socket, and prints what it says.

    python cell.py SOCKET TOKEN_FILE CODE

Needs what JupyterLab brings along.
"""

from __future__ import annotations

import json
import socket
import sys
import uuid
from pathlib import Path
from typing import Any

import websocket

from hpcdet.tasks.servers.private_socket import SocketConnection


def main(path: str, token_file: str, code: str) -> None:
    token = {"Authorization": f"token {Path(token_file).read_text()}"}
    connection = SocketConnection(Path(path))
    connection.request("POST", "/api/kernels", body="{}", headers=token)
    kernel = json.loads(connection.getresponse().read())["id"]
    plain = socket.socket(socket.AF_UNIX)
    plain.connect(path)
    header = [f"{name}: {value}" for name, value in token.items()]
    address = f"ws://localhost/api/kernels/{kernel}/channels"
    channel = websocket.create_connection(address, socket=plain, header=header, timeout=120)
    message: dict[str, Any] = {
        "header": {
            **{"msg_id": uuid.uuid4().hex, "session": uuid.uuid4().hex, "username": "u"},
            **{"msg_type": "execute_request", "version": "5.3", "date": ""},
        },
        "parent_header": {},
        "metadata": {},
        "content": {"code": code, "silent": False, "store_history": False, "allow_stdin": False},
        "channel": "shell",
    }
    channel.send(json.dumps(message))
    while True:
        said = json.loads(channel.recv())
        if said["parent_header"].get("msg_id") != message["header"]["msg_id"]:
            continue
        if said["msg_type"] == "stream":
            print(said["content"]["text"], end="")
        elif said["msg_type"] == "error":
            print(*said["content"]["traceback"], sep="\n")
        elif said["msg_type"] == "status" and said["content"]["execution_state"] == "idle":
            return  # the last that it says


if __name__ == "__main__":
    main(*sys.argv[1:])
