"""``python -m tests.cluster slurm up|down|env|ls``."""

from __future__ import annotations

import argparse
import shlex
import sys
import time

from tests.cluster import slurm
from tests.cluster.configuration import Options


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("kind", choices=["slurm"])
    parser.add_argument("verb", choices=["up", "down", "env", "ls"])
    parser.add_argument("--name", default="main")
    parser.add_argument("--grace", type=int, default=0, help="GraceTime of batch, seconds")
    parser.add_argument("--no-accounting", action="store_true")
    parser.add_argument("--send-user-signal", action="store_true")
    parser.add_argument("--max-array", type=int, default=1001)
    parser.add_argument("--max-submit", type=int)
    parser.add_argument("--kill-wait", type=int, default=6, help="seconds from TERM to KILL")
    given = parser.parse_args(argv)
    try:
        if given.verb == "ls":
            print("\n".join(slurm.names()))
        elif given.verb == "env":
            for key, value in slurm.attach(given.name).environment().items():
                print(f"export {key}={shlex.quote(value)}")
        elif given.verb == "down":
            slurm.SlurmCluster(given.name).down()
        else:
            options = Options(
                grace_s=given.grace,
                accounting=not given.no_accounting,
                send_user_signal=given.send_user_signal,
                max_array=given.max_array,
                max_submit=given.max_submit,
                kill_wait_s=given.kill_wait,
            )
            began = time.monotonic()
            cluster = slurm.SlurmCluster(given.name, options)
            cluster.up()
            print(f"up after {time.monotonic() - began:.0f} s: {cluster.root}")
            print(f"use it: eval $(python -m tests.cluster slurm env --name {given.name})")
    except slurm.ClusterFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
