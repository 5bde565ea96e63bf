"""JupyterLab on a Unix socket: its command, its configuration and its environment.

The configuration names the file of the token and not the token, and replaces the user's own, which
could open a port. Kernels talk over sockets in the same folder. One loopback port is left for each
of them, by which processes that a kernel has forked hand it their output: ipykernel guards it with
a random key.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from hpcdet.store.fs import files
from hpcdet.tasks.folder.task_folder import TaskOrder, TaskPaths

READY = "/api/status"
"""What a server answers once it is up; it does not count as use."""
_CONFIG = "jupyter_server_config.py"


def command(task: TaskPaths, order: TaskOrder, path: Path) -> list[str]:
    """Write the configuration beside the socket and return the command of the server."""
    config = path.parent / _CONFIG
    files.write_once(config, _configuration(task, order, path).encode())
    return [sys.executable, "-Pm", "jupyterlab", "--no-browser", f"--config={config}"]


def environment(given: Mapping[str, str], path: Path) -> dict[str, str]:
    """Return the environment of the server: private folders, but the user's own settings of Lab."""
    home = Path(given.get("JUPYTER_CONFIG_DIR") or Path.home() / ".jupyter")
    own = {
        "JUPYTERLAB_SETTINGS_DIR": str(home / "lab" / "user-settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "lab" / "workspaces"),
    }
    private = dict.fromkeys(("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"), str(path.parent))
    return {**own, **given, **private}


def forget_token(path: Path) -> None:
    """Remove what the server notes of itself in its folder, the token included."""
    for note in path.parent.glob("jpserver-*"):
        with contextlib.suppress(OSError):
            note.unlink()


def _configuration(task: TaskPaths, order: TaskOrder, path: Path) -> str:
    values: dict[str, object] = {
        "ServerApp.sock": str(path),
        "ServerApp.sock_mode": "0600",
        "ServerApp.root_dir": order.folder,
        "ServerApp.open_browser": False,
        "ServerApp.allow_remote_access": False,
        "ServerApp.allow_root": os.getuid() == 0,
        "PasswordIdentityProvider.allow_password_change": False,
        "KernelManager.transport": "ipc",
    }
    if order.idle_s is not None:
        often = max(1, int(min(60.0, order.idle_s / 4)))
        values |= {
            "MappingKernelManager.cull_idle_timeout": max(1, int(order.idle_s)),
            "MappingKernelManager.cull_interval": often,
            "MappingKernelManager.cull_connected": True,  # a tab that was left open is no use
            "TerminalManager.cull_inactive_timeout": max(1, int(order.idle_s)),
            "TerminalManager.cull_interval": often,
            "ServerApp.shutdown_no_activity_timeout": max(1, int(order.idle_s)),
        }
    lines = [f"c.{name} = {value!r}" for name, value in values.items()]
    token = f"with open({str(task.token)!r}) as file:\n    c.IdentityProvider.token = file.read()"
    return "\n".join([*lines, token, ""])
