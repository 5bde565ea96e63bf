"""``worker``: the supervisor inside an allocation; batch scripts start it, people do not."""

from __future__ import annotations

import click


@click.command("worker", hidden=True)
@click.argument("exp")
@click.option("--submission", type=int, required=True)
@click.option("--index", type=int, required=True)
@click.option("--digest", required=True)
def worker_command(exp: str, submission: int, index: int, digest: str) -> None:
    """Run trials of EXP inside this allocation."""
    from hpcdet.worker import main

    raise click.exceptions.Exit(main.run(exp, submission, index, digest))
