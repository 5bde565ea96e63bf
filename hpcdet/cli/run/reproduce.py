"""``reproduce``: what has changed since a run, and the run again from its capsule."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import click

from hpcdet.cli.frame.ids import called, id_argument
from hpcdet.cli.frame.output import Column, Output, output
from hpcdet.cli.frame.progress import busy
from hpcdet.cli.frame.settings import ARGV, settings
from hpcdet.cli.observe import follow
from hpcdet.cli.request.take_turn import CommandCrank
from hpcdet.control.requests import commands
from hpcdet.errors import ConfigError, UsageError
from hpcdet.jobs.repeat import ablation, present, repetition
from hpcdet.jobs.repeat.ablation import Ablation
from hpcdet.jobs.repeat.present import Present
from hpcdet.jobs.repeat.repetition import Repetition
from hpcdet.read.capsule import factors, training_outcome
from hpcdet.read.capsule.factors import FactorView
from hpcdet.read.capsule.recorded import Capsule
from hpcdet.read.capsule.training_outcome import AblationView, RepeatedView
from hpcdet.read.lookup import find
from hpcdet.read.views.items import text
from hpcdet.site import Site
from hpcdet.site_files.load_site import UnknownSite, from_resolved
from hpcdet.store.folder import trust
from hpcdet.store.folder.layout import ExperimentPaths

_RUNS = {"then": "as recorded", "now": "as it stands now"}
FACTORS = (
    Column("FACTOR", "factor", cut=False),
    Column("SAME", lambda row: "unknown" if row.same is None else row.same, cut=False),
    Column("THEN", "then", fold=True),
    Column("NOW", "now", fold=True),
    Column("NAMES", "names", wide=True, fold=True),
)
REPEATED = (
    Column("ID", "id", cut=False),
    Column("SAME BITS", "same", cut=False),
    Column("METRIC", "metric"),
    Column("THEN", "then", right=True),
    Column("NOW", "now", right=True),
    Column("MS/STEP THEN", lambda row: _ms(row.then_step_s), right=True),
    Column("NOW", lambda row: _ms(row.now_step_s), right=True),
)
ABLATION = (
    Column("RUN", lambda row: _RUNS.get(row.run, f"{row.run} as then"), cut=False),
    Column("VALUE", "value", right=True),
    Column("FROM BASELINE", lambda row: _signed(row.difference), right=True, cut=False),
    Column("SAME BITS", "same", cut=False),
    Column("MS/STEP", lambda row: _ms(row.step_s), right=True),
    Column("RESTORED", "names", fold=True),
    Column("ID", "id", wide=True, cut=False),
)


@click.command("reproduce", short_help="What has changed since a run; the run again.")
@id_argument()
@click.option(
    "--model-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The code of now, and the config in it [where they were].",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY.PATH=VALUE",
    help="A value of the config of now (repeat for more).",
)
@click.option("--site", "site_name", metavar="NAME", help="Where it runs now [where it ran].")
@click.option("--run", "again", is_flag=True, help="Train again as recorded; compare the bits.")
@click.option(
    "--ablate", is_flag=True, help="Train as of now, then with one factor after the other as then."
)
@click.option(
    "--env",
    type=click.Choice(["lock", "current"]),
    help="With --run: the recorded packages, or those of this interpreter [lock].",
)
@output("reproduce", FactorView, RepeatedView, AblationView)
def reproduce_command(
    out: Output,
    id: str,
    model_dir: Path | None,
    sets: Sequence[str],
    site_name: str | None,
    again: bool,
    ablate: bool,
    env: Literal["lock", "current"] | None,
) -> None:
    """Compare what a run (ID, or its trial ID/3) was made of with what there is now.

    Nothing is trained without --run or --ablate. The config of now is the file of then as it
    stands, with --set: what was given at the submission is not part of it.

    With --run, exit 0 for the same bits, 1 for others, 9 if something recorded is gone or has
    changed. With --ablate, exit 0 if the last run has the same bits, else 1. Ctrl-C cancels what
    runs.

    \b
    Examples: hpcdet reproduce digits-7f3a
              hpcdet reproduce digits-7f3a --model-dir new/
              hpcdet reproduce digits-7f3a/3 --run
              hpcdet reproduce digits-7f3a --ablate
    """
    _refuse_together(again, ablate, env, bool(model_dir or sets))
    capsule = Capsule.of(find.reference(id, settings().root))
    site = _site(capsule, site_name)
    if again:
        out.expect(_fields(RepeatedView))
        _repeat(out, capsule, site, lock=env != "current")
        return
    with busy("looking at data, code and packages"):
        now = present.look(capsule, site, model_dir, sets)
    for said in (*now.loaded.warnings, *now.notes):
        settings().warn(said)
    if ablate:
        out.expect(_fields(AblationView))
        _ablate(out, capsule, now)
        return
    rows = factors.compare(capsule.run_facts, now.run_facts)
    out.emit(rows, FACTORS, key="factor")
    for row in rows if out.for_people else ():
        if row.names and out.format != "wide":
            settings().note(f"{row.factor}: {_listed(row.names)}")


def _refuse_together(again: bool, ablate: bool, env: str | None, says_now: bool) -> None:
    """Raise UsageError for options that mean nothing together."""
    if again and ablate:
        raise UsageError("--run and --ablate are two things", hint="leave one of them out")
    if env is not None and not again:
        raise UsageError("--env goes with --run", hint="--ablate restores packages in its turn")
    if again and says_now:
        raise UsageError(
            "--run trains as recorded: --model-dir and --set have no say in it",
            hint="--ablate begins with what they say",
        )


def _fields(view: type) -> dict[str, object]:
    return dict.fromkeys(view.__dataclass_fields__)  # type: ignore[attr-defined]


def _site(capsule: Capsule, name: str | None) -> Site:
    """Return the site of that name, else the one where it ran, as it is now if it can be found."""
    wanted = name or settings().profile or capsule.config.site
    try:
        return settings().site(wanted)
    except UnknownSite:
        if name or not capsule.paths.site.exists():
            raise
        return from_resolved(capsule.paths.site)


def _refuse_anothers(capsule: Capsule) -> None:
    """Raise ConfigError for an experiment that another user owns or may change: nothing is run."""
    owner = capsule.paths.root.stat().st_uid
    if owner != os.getuid():
        raise ConfigError(
            f"it belongs to {trust.user(owner)}, whose code this user's jobs would run",
            where=capsule.paths.id,
            hint="without --run it is compared; --model-dir says what with",
        )
    trust.refuse_to_run(capsule.paths.code)


def _repeat(out: Output, capsule: Capsule, site: Site, *, lock: bool) -> None:
    """Train again as recorded and compare. Exits 1 where the bits are others."""
    repetition.refuse_impossible(capsule)
    _refuse_anothers(capsule)
    root = settings().root_at(site)
    with busy("putting data, code and packages back"):
        restored = repetition.restore(capsule, (), root, lock)
    wanted = repetition.whole(capsule, site, restored)
    _say_unrestored(wanted)
    found = _run(wanted, root)
    item = training_outcome.repeated(
        found.id,
        f"{capsule.paths.id}/{capsule.one.number}",
        capsule.outcome,
        training_outcome.of_experiment(found, capsule.outcome.metric),
        restored.packages.installed if restored.packages else (),
        wanted.unrestored,
    )
    out.emit([item], REPEATED)
    for line in _of_checkpoints(item) if out.for_people else ():
        settings().note(line)
    if not item.same:
        raise click.exceptions.Exit(1)


def _of_checkpoints(item: RepeatedView) -> Iterator[str]:
    for one in item.checkpoints:
        how = {True: "same bits", False: "other bits", None: "none at this step now"}[one.same]
        yield f"checkpoint at step {one.step}: {how}"
    if not any(one.same is not None for one in item.checkpoints):
        yield "no checkpoint could be compared: the same bits are not shown"


def _ablate(out: Output, capsule: Capsule, now: Present) -> None:
    """Restore one factor after the other. Exits 1 where the last run has other bits."""
    repetition.refuse_impossible(capsule)
    _refuse_anothers(capsule)
    root = settings().root_at(now.site)
    with busy("putting data, code and packages back"):
        places = [one.place.path for one in now.data]
        restored = repetition.restore(capsule, places, root, lock=True)
    made = Ablation.of(capsule, now, restored)
    for row in made.rows:
        if row.same is not False:
            how = "as it was" if row.same else f"not known: {row.now or row.then}"
            settings().note(f"{row.factor}: {how}")
        elif row not in made.steps:
            settings().warn(f"{row.factor} cannot be restored: {_listed(row.names)}")
    rows: list[AblationView] = []
    for one in made.runs(lambda wanted: _run(wanted, root)):
        rows.append(one)
        settings().note(f"{one.run}: {one.metric} {text(one.value)} ({_signed(one.difference)})")
    out.emit(rows, ABLATION, warnings=list(dict.fromkeys(_lacking(rows))))
    for line in _cost(rows) if out.for_people else ():
        settings().note(line)
    if not ablation.came_back(rows):
        raise click.exceptions.Exit(1)


def _lacking(rows: Sequence[AblationView]) -> Iterator[str]:
    yield from (f"not restored: {one}" for row in rows for one in row.unrestored)


def _cost(rows: Sequence[AblationView]) -> Iterator[str]:
    """Yield what restoring threads or determinism costs in time, where both runs were measured."""
    for before, after in itertools.pairwise(rows[1:]):
        if after.run in ("threads", "determinism") and before.step_s and after.step_s:
            times = after.step_s / before.step_s
            yield (
                f"{after.run} as then: {_ms(after.step_s)} ms a step after "
                f"{_ms(before.step_s)} ms, {times:.2f} times as long"
            )


def _say_unrestored(wanted: Repetition) -> None:
    for one in wanted.unrestored:
        settings().warn(f"not restored: {one}")


def _run(wanted: Repetition, root: Path) -> ExperimentPaths:
    """Queue a repetition and wait for its end; what interrupts the waiting cancels it.

    Raises:
        Unsuccessful: it did not end well.
    """
    argv: Sequence[str] = click.get_current_context().meta[ARGV]
    paths = wanted.create(root, argv)
    settings().note(f"{paths.id} is in {paths.root}")
    with CommandCrank(paths, "submit") as crank:
        try:
            crank.turn()
            ended = follow.until(
                [paths], follow.ended, turn=crank.turn_if_due, longest_s=crank.every_s
            )
        except (KeyboardInterrupt, SystemExit):
            commands.ask(paths, "cancel", reason="hpcdet reproduce was interrupted")
            crank.turn()
            settings().warn(f"{paths.id} is canceled; hpcdet rm {called(paths)} removes it")
            raise
    follow.judge(ended)
    return paths


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.2f}"


def _signed(difference: float | None) -> str:
    return "unknown" if difference is None else f"{difference:+.5g}" if difference else "0.0"
