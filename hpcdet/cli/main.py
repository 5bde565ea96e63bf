"""Entry point of the command line: the lazy group of verbs, and the output of errors."""

from __future__ import annotations

import io
import itertools
import json
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import click

import hpcdet
from hpcdet.cli.frame.lazy_commands import LazyCommands
from hpcdet.cli.frame.settings import ARGV, global_options
from hpcdet.cli.table_of_verbs import SECTIONS, VERBS
from hpcdet.errors import ConfigError, HpcdetError, Unavailable, refused
from hpcdet.read.lookup.escapes import escaped

EXAMPLES = """\
Examples:
  hpcdet init digits && cd digits       a config and a model to start from
  hpcdet submit random.yaml --wait      queue it and watch it
  hpcdet status @last                   how the newest experiment stands
"""


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals by which people end a command."""


class _ReaderGone(Exception):
    """The reader of standard output has closed it."""


class VerbGroup(click.Group):
    """The group of all verbs, by the sections of the table of verbs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGV] = ("hpcdet", *args)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb.name for verb in VERBS.values() if not verb.hidden]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            import difflib

            from hpcdet.cli.frame.det_verbs import answer

            if said := answer([word for word in args if not word.startswith("-")]):
                raise click.UsageError(said, ctx)
            near = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such verb: {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        # click ends a process whose reader has gone with 1; nothing has failed
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderGone from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                shown = [(verb.name, verb.help) for verb in verbs if not verb.hidden]
                formatter.write_dl(shown, col_max=12)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write(EXAMPLES)


@click.group(
    cls=VerbGroup,
    commands=LazyCommands({name: f"{one.module}:{one.attribute}" for name, one in VERBS.items()}),
    params=global_options(hidden=False),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    invoke_without_command=True,
)
@click.version_option(hpcdet.__version__, prog_name="hpcdet")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Deep-learning training on Slurm and PBS clusters, with no server."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(argv: Sequence[str]) -> int:
    """Run a command line and return its exit code; raises ``SystemExit`` only."""
    as_json = _wants_json(argv)
    try:
        code = cli.main(args=list(argv), prog_name="hpcdet", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except HpcdetError as error:
        _say(error.code, error.what, error.where, error.hint, as_json)
        _traceback_if_asked(argv)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:  # ``hpcdet ckpt`` alone
        click.echo(error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "hpcdet"
        _say("USAGE", error.format_message(), "", f"{where} --help", as_json)
        return 2
    except click.ClickException as error:
        _say("FAILED", error.format_message(), "", "", as_json)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except (_ReaderGone, BrokenPipeError):
        _print_no_more()
        return 0
    except OSError as error:
        said = refused(error)
        if not said.where.startswith("/") and _here_is_gone():
            said = Unavailable(
                "the current folder no longer exists", hint="change to an existing folder"
            )
        _say(said.code, said.what, said.where, said.hint, as_json)
        _traceback_if_asked(argv)
        _print_no_more()
        return 5
    except Exception as error:
        if isinstance(error, RuntimeError) and "home directory" in str(error):  # of pathlib
            hint = "set HOME, or write the path without ~"
            _say("CONFIG_INVALID", "the home folder does not exist", "", hint, as_json)
            return ConfigError.exit_code
        what = f"{type(error).__name__}: {error}"
        _say("UNEXPECTED", what, "", "this is a bug; --debug shows where", as_json)
        _traceback_if_asked(argv)
        return 1


def _here_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _print_no_more() -> None:
    """Flush standard output or discard it, so that python does not report a failure at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _wants_json(argv: Sequence[str]) -> bool:
    """True if JSON is asked for; used before parsing, so that usage errors are JSON as well."""
    return any(
        word == "--json"
        or word.startswith(("-ojson", "--output=json"))
        or (word in ("-o", "--output") and value in ("json", "jsonl"))
        for word, value in itertools.pairwise([*argv, ""])
    )


def _say(code: str, what: str, where: str, hint: str, as_json: bool) -> None:
    if as_json:
        body = {"code": code, "message": what, "where": where, "hint": hint}
        click.echo(json.dumps({"error": body}), err=True)
        return
    first, *more = escaped(what).splitlines() or [""]
    where, hint = escaped(where), escaped(hint)
    click.echo(f"error: {where}: {first}" if where else f"error: {first}", err=True)
    for line in more:
        click.echo(f"  {line}", err=True)
    for line in hint.splitlines():
        click.echo(f"hint: {line}", err=True)


def _traceback_if_asked(argv: Sequence[str]) -> None:
    if "--debug" in argv:
        import traceback

        traceback.print_exc()


def main(argv: Sequence[str] | None = None) -> Any:
    """Run the ``hpcdet`` script."""
    _mend_streams()
    os.umask(0o077)  # what is made is the user's alone, and so what jobs make
    for number in _ENDING:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _leave)
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def _leave(number: int, _: FrameType | None) -> None:
    """End on a signal with an exception, so that cleanup runs; ignore all later signals."""
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _mend_streams() -> None:
    """Repair standard streams that are closed or cannot encode what is printed.

    Closed ones are opened on ``/dev/null``; undecodable file names are printed unchanged, and
    characters that standard output cannot encode as ``?``.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    if isinstance(sys.stdout, io.TextIOWrapper):
        utf8 = sys.stdout.encoding.lower() in ("utf-8", "utf8")
        sys.stdout.reconfigure(errors="surrogateescape" if utf8 else "replace")
