"""A private Slurm: munged, MariaDB, slurmdbd, slurmctld and four slurmd, in one folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import processes
from tests.cluster.configuration import NODES, Options, Ports, slurm_conf, slurmdbd_conf
from tests.cluster.processes import ClusterFailed

_DAEMONS = ("munged", "slurmctld", "slurmd", "srun", "sbatch")
_DATABASE = ("slurmdbd", "mariadbd", "mariadb-install-db")
COMMANDS = (
    "sacct",
    "sacctmgr",
    "sbatch",
    "scancel",
    "scontrol",
    "sdiag",
    "sinfo",
    "squeue",
    "srun",
    "sstat",
)


def why_not(accounting: bool = True) -> str:
    """Why a private Slurm cannot run here; empty if it can."""
    if os.geteuid() != 0:
        return "a private Slurm needs root"
    wanted = _DAEMONS + (_DATABASE if accounting else ())
    missing = [name for name in wanted if shutil.which(name, path=_path()) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (see scripts/packages.sh)"
    return ""


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin:/sbin:/bin"


def folder(name: str) -> Path:
    """Where the cluster of that name keeps everything; short, as sockets lie in it."""
    return Path(tempfile.gettempdir()) / f"hpcdet-slurm-{os.geteuid()}" / name


class SlurmCluster:
    """One private Slurm, known by its name.

    Attributes:
        root: its state folder.
        options: how it is configured now.
    """

    def __init__(self, name: str, options: Options | None = None) -> None:
        self.name = name
        self.root = folder(name)
        self.options = options or Options()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = Ports(0, 0, ())

    @property
    def conf(self) -> Path:
        return self.root / "slurm.conf"

    @property
    def commands(self) -> Path:
        """Folder of wrappers around every Slurm command; each call is recorded in ``calls``."""
        return self.root / "bin"

    @property
    def calls(self) -> Path:
        """One line per call of a Slurm command through the wrappers: epoch seconds, words."""
        return self.root / "calls.log"

    def environment(self) -> dict[str, str]:
        """What a process needs to talk to this cluster, by the counting wrappers."""
        return {"SLURM_CONF": str(self.conf), "PATH": f"{self.commands}:{_path()}"}

    def _daemon_env(self) -> dict[str, str]:
        return {
            "PATH": _path().lstrip(":"),
            "SLURM_CONF": str(self.conf),
            "MYSQL_UNIX_PORT": str(self.root / "mariadb.socket"),
            processes.MARK: str(self.root),
            "HOME": str(self.root),
            "LANG": "C.UTF-8",
        }

    def up(self, owner: int | None = None) -> None:
        """Boot; what a dead owner left behind is swept first.

        Args:
            owner: process at whose end the next ``up`` may sweep this cluster away; None keeps it
                until ``down``.

        Raises:
            ClusterFailed: it cannot run here, or a daemon did not come up; nothing is left.
        """
        reason = why_not(self.options.accounting)
        if reason:
            raise ClusterFailed(reason)
        sweep()
        if self.root.exists():
            raise ClusterFailed(f"a cluster {self.name} is there already: {self.root}")
        self.root.mkdir(parents=True, mode=0o755)
        self.root.parent.chmod(0o755)
        self.root.chmod(0o755)
        mark = None if owner is None else [owner, processes.started_at(owner)]
        (self.root / "owner.json").write_text(json.dumps(mark))
        try:
            self._boot()
        except BaseException:
            self.down()
            raise

    def _boot(self) -> None:
        ports = processes.free_ports(2 + len(NODES))
        self._ports = Ports(ports[0], ports[1], tuple(ports[2:]))
        (self.root / "state").mkdir(mode=0o700)
        for node in NODES:
            (self.root / f"spool.{node}").mkdir(mode=0o755)
        self._write_configuration()
        self._write_wrappers()
        self._start_munge()
        if self.options.accounting:
            self._start_accounting()
        self._start_controller()
        for node in () if self.options.cloud else NODES:
            self.start_node(node)
        self._wait_idle()
        self._limit_submissions()

    def _write_configuration(self) -> None:
        host = socket.gethostname().partition(".")[0]
        self.conf.write_text(slurm_conf(self.root, self.name, host, self._ports, self.options))
        database = self.root / "slurmdbd.conf"
        database.write_text(slurmdbd_conf(self.root, host, self._ports))
        database.chmod(0o600)
        prolog = self.root / "prolog"
        prolog.write_text(f"#!/bin/sh\ntest ! -e {self.root}/fail.$SLURMD_NODENAME\n")
        prolog.chmod(0o755)
        (self.root / "job_submit.lua").write_text(self.options.submit_filter)
        self._write_power_programs()
        state = {
            "ports": dataclasses.asdict(self._ports),
            "options": dataclasses.asdict(self.options),
        }
        (self.root / "cluster.json").write_text(json.dumps(state))

    def _write_power_programs(self) -> None:
        """What Slurm runs, with an empty environment, to make and end nodes (``Options.cloud``).

        No instance comes while ``no-instances`` lies in the cluster's folder.
        """
        names = (f"{name}={shlex.quote(value)}" for name, value in self._daemon_env().items())
        head = f"#!/bin/bash\nexport {' '.join(names)}\n"
        each = 'for node in $(scontrol show hostnames "$1"); do\n'
        resume = (
            f"while [ -e {self.root}/no-instances ]; do sleep 0.2; done\n{each}"
            f"    setsid slurmd -D -b -N $node >>{self.root}/slurmd.$node.out 2>&1 </dev/null &\n"
            "done\n"
        )
        suspend = f"{each}    kill $(cat {self.root}/slurmd.$node.pid)\ndone\n"
        for name, body in (("resume", resume), ("suspend", suspend)):
            program = self.root / name
            program.write_text(head + body)
            program.chmod(0o755)

    def _write_wrappers(self) -> None:
        self.commands.mkdir()
        self.calls.touch()
        for command in COMMANDS:
            real = shutil.which(command, path=_path())
            if real is None:
                continue
            wrapper = self.commands / command
            wrapper.write_text(
                "#!/bin/bash\n"
                f"echo \"$EPOCHREALTIME {command} ${{*//$'\\n'/ }}\" >>{self.calls}\n"
                f'exec {real} "$@"\n'
            )
            wrapper.chmod(0o755)

    def _launch(self, name: str, *argv: str) -> None:
        self._daemons[name] = processes.start(argv, self._log(name), self._daemon_env())

    def _log(self, name: str) -> Path:
        return self.root / f"{name}.out"

    def _start_munge(self) -> None:
        key = self.root / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        names = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log"}
        options = [f"--{option}={self.root}/munge.{end}" for option, end in names.items()]
        self._launch(
            "munged", "munged", "-F", "--force", f"--seed-file={self.root}/munge.seed", *options
        )
        socket_path = self.root / "munge.socket"
        processes.until(socket_path.exists, "munge socket", [self._log("munged")])

    def _start_accounting(self) -> None:
        data = self.root / "mariadb"
        common = ["--no-defaults", f"--datadir={data}", "--user=root"]
        with self._log("mariadb-install-db").open("ab") as log:
            subprocess.run(
                [
                    *["mariadb-install-db", *common, "--skip-test-db", "--skip-name-resolve"],
                    "--auth-root-authentication-method=normal",
                ],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._daemon_env(),
            )
        self._launch(
            "mariadbd",
            *["mariadbd", *common, "--skip-networking", "--skip-name-resolve"],
            *[f"--socket={self.root}/mariadb.socket", f"--pid-file={self.root}/mariadb.pid"],
            *["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M"],
            *["--innodb-log-file-size=16M", "--innodb-lock-wait-timeout=900"],
        )
        database = self.root / "mariadb.socket"
        processes.until(database.exists, "database socket", [self._log("mariadbd")])
        self._launch("slurmdbd", "slurmdbd", "-D")
        logs = [self._log("slurmdbd"), self.root / "slurmdbd.log"]
        processes.until(lambda: processes.listens(self._ports.database), "slurmdbd", logs)
        processes.until(
            lambda: self.call("sacctmgr", "-i", "add", "cluster", self.name).returncode == 0,
            "cluster in slurmdbd",
            logs,
        )

    def _start_controller(self) -> None:
        self._launch("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
        processes.until(
            lambda: self.call("scontrol", "ping").returncode == 0,
            "slurmctld",
            [self._log("slurmctld"), self.root / "slurmctld.log"],
        )

    def start_node(self, node: str) -> None:
        """Start the ``slurmd`` of a node."""
        self._launch(f"slurmd.{node}", "slurmd", "-D", "-N", node, "-f", str(self.conf))

    def kill_node(self, node: str) -> None:
        """SIGKILL the ``slurmd`` of a node; its steps live on, as on a node that lost its link."""
        daemon = self._daemons[f"slurmd.{node}"]
        daemon.kill()
        daemon.wait()

    def reclaim(self, node: str) -> None:
        """End an instance of a cloud with all that runs on it, as its owner does who wants it back.

        The controller is told that the node is down, as a cloud's daemon does.
        """
        mark = f"SLURMD_NODENAME={node}\0".encode()
        daemon = int((self.root / f"slurmd.{node}.pid").read_text())
        on_node = [pid for pid in processes.of_cluster(self.root) if mark in _environ(pid)]
        for pid in (daemon, *on_node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.check("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=reclaimed")

    def launches_fail(self, node: str, on: bool = True) -> None:
        """Let the Prolog of a node fail, and so each launch (``Options.prolog``)."""
        mark = self.root / f"fail.{node}"
        mark.touch() if on else mark.unlink(missing_ok=True)

    def _wait_idle(self) -> None:
        def idle() -> bool:
            answer = self.call("sinfo", "-h", "-p", "batch", "-t", "idle", "-o", "%D")
            return answer.stdout.strip() == str(len(NODES))

        logs = [self.root / "slurmctld.log"]
        processes.until(idle, "idle nodes", [*logs, self.root / f"slurmd.{NODES[0]}.log"])

    def _limit_submissions(self) -> None:
        if self.options.accounting:
            most = -1 if self.options.max_submit is None else self.options.max_submit
            self.check("sacctmgr", "-i", "modify", "user", "root", "set", f"MaxSubmitJobs={most}")

    def reconfigure(self, options: Options) -> None:
        """Go on with other options; accounting cannot change. Running jobs go on."""
        self.options = dataclasses.replace(options, accounting=self.options.accounting)
        self._write_configuration()
        controller = self._daemons["slurmctld"]
        controller.send_signal(signal.SIGTERM)
        controller.wait()
        self._start_controller()
        self.check("scontrol", "reconfigure")
        self._limit_submissions()

    def call(self, *argv: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a Slurm command, not counted."""
        return subprocess.run(
            argv,
            env=self._daemon_env(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd="/",
        )

    def check(self, *argv: str) -> str:
        """Run a Slurm command, not counted; its output.

        Raises:
            ClusterFailed: it failed; with what it said.
        """
        done = self.call(*argv)
        if done.returncode != 0:
            raise ClusterFailed(f"{' '.join(argv)}: {done.stderr.strip()}")
        return done.stdout

    def jobs(self) -> list[dict[str, str]]:
        """Every array task that the controller remembers, as fields of ``scontrol show job``."""
        answer = self.call("scontrol", "-o", "show", "job")
        rows = [line for line in answer.stdout.splitlines() if line.startswith("JobId=")]
        return [dict(w.partition("=")[::2] for w in row.split() if "=" in w) for row in rows]

    def clear(self) -> None:
        """Cancel every job and wait until the nodes are idle, so that the next test starts even."""
        self.call("scontrol", "update", f"NodeName={','.join(NODES)}", "State=RESUME")
        self.call("scancel", "--quiet", "-u", "root")
        live = ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING")

        def empty() -> bool:
            if any(job.get("JobState", "").startswith(live) for job in self.jobs()):
                self.call("scancel", "--quiet", "-u", "root")
                return False
            return True

        processes.until(empty, "empty queue", [self.root / "slurmctld.log"])
        self._wait_idle()

    def down(self) -> None:
        """End every process of the cluster, steps included, and remove its folder."""
        processes.end_all(self.root)
        for daemon in self._daemons.values():
            daemon.wait()
        self._daemons.clear()
        shutil.rmtree(self.root, ignore_errors=True)


def _environ(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
    return b""


def attach(name: str) -> SlurmCluster:
    """A running cluster, made by another process.

    Raises:
        ClusterFailed: there is none of that name.
    """
    try:
        state = json.loads((folder(name) / "cluster.json").read_text())
    except OSError:
        raise ClusterFailed(f"no cluster {name}; up: {', '.join(names()) or 'none'}") from None
    cluster = SlurmCluster(name, Options(**state["options"]))
    ports = state["ports"]
    cluster._ports = Ports(ports["controller"], ports["database"], tuple(ports["nodes"]))
    return cluster


def names() -> list[str]:
    """The clusters that are up."""
    with contextlib.suppress(FileNotFoundError):
        return sorted(os.listdir(folder("x").parent))
    return []


def sweep() -> None:
    """Take down clusters whose owner is dead."""
    for name in names():
        try:
            owner: Sequence[object] | None = json.loads((folder(name) / "owner.json").read_text())
        except (OSError, ValueError):
            continue
        if owner is not None and processes.started_at(int(str(owner[0]))) != owner[1]:
            SlurmCluster(name).down()
