"""Lookup of folders by references: ids, prefixes, ``ID/3``, ``@last``, ``@best``, job ids.

Paths of experiments and of what is inside one are understood, too.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
from dataclasses import dataclass
from pathlib import Path

from hpcdet.errors import HpcdetError, NotFound, Unavailable
from hpcdet.store.folder import home, scratch, trust
from hpcdet.store.folder.attempt_paths import AttemptPaths
from hpcdet.store.folder.layout import ExperimentPaths, TrialPaths
from hpcdet.store.folder.names import CONFIG
from hpcdet.store.folder.records import Submitted
from hpcdet.store.fs import packed

BEST = "@best"
_REFERENCE = re.compile(r"(?P<id>[^/]+)(/(?P<trial>\d+|@best)(\.(?P<attempt>\d+))?)?")


@dataclass(frozen=True)
class Reference:
    """An experiment, one of its trials (from 1), or one attempt of that trial (from 1).

    0 stands for "all of them".
    """

    paths: ExperimentPaths
    trial: int = 0
    attempt: int = 0

    def __str__(self) -> str:
        if not self.trial:
            return self.paths.id
        return f"{self.paths.id}/{self.trial}" + (f".{self.attempt}" if self.attempt else "")


def experiments(root: Path, prefix: str = "") -> list[ExperimentPaths]:
    """Return every experiment below ``root``, oldest first. An absent root holds none.

    What is called ``experiment.yaml`` makes a folder one, whatever it is. Folders that cannot be
    looked into (in a project's folder, those of others), links that lead nowhere or to themselves,
    and folders that vanish meanwhile are left out.

    Args:
        prefix: only those whose ids begin with it.
    """
    try:
        with os.scandir(root) as entries:
            # with a dot in front: on its way here, or half removed
            names = [e.name for e in entries if e.name[:1] != "." and e.name.startswith(prefix)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    found: list[tuple[int, str]] = []
    for name in names:
        with contextlib.suppress(OSError):
            found.append((os.lstat(f"{root}/{name}/{CONFIG}").st_mtime_ns, name))
    return [ExperimentPaths(root / name) for _, name in sorted(found)]


def reference(text: str, root: Path) -> Reference:
    """Return the experiment, trial or attempt that ``text`` names.

    Accepted: an id or an unambiguous prefix of one; ``ID/3``; ``ID/3.2``; ``@last`` (with
    ``/3`` as well); ``ID/@best``, the trial with the best value so far, and ``@best``, that of
    the newest experiment; a scheduler's job id, as it prints it; the path of an
    experiment or of anything inside one.

    Raises:
        NotFound: nothing matches, or more than one experiment does.
        Unavailable: the match is another user's folder without permission to read it.
    """
    inside = _enclosing(text)
    if inside is not None:
        return inside
    match = _REFERENCE.fullmatch(f"@last/{BEST}" if text == BEST else text)
    if match is None:
        raise _nothing(text, root)
    paths = _experiment(match["id"], root)
    trial = _best(paths) if match["trial"] == BEST else int(match["trial"] or 0)
    attempt = int(match["attempt"] or 0)
    if match["trial"] is not None and not paths.trial(trial).root.is_dir():
        has = [t.number for t in paths.trials()]
        hint = f"trials are {has[0]} to {has[-1]}" if has else "it has no trials yet"
        raise NotFound(f"no trial {trial}", where=paths.id, hint=hint)
    if match["attempt"] is not None and not packed.exists(paths.trial(trial).attempt(attempt).root):
        hint = f"see them all with: hpcdet show {home.called(paths)}"
        raise NotFound(f"no attempt {attempt}", where=f"{paths.id}/{trial}", hint=hint)
    return Reference(paths, trial, attempt)


def experiment(text: str, root: Path) -> ExperimentPaths:
    """Return the experiment that ``text`` names or lies in. Raises NotFound."""
    return reference(text, root).paths


def trial(text: str, root: Path) -> TrialPaths:
    """Return the trial ``ID/3``; for an experiment with a single trial, ``ID`` is enough.

    Raises:
        NotFound: no such trial, or the experiment has several and none is named.
    """
    found = reference(text, root)
    if found.trial:
        return found.paths.trial(found.trial)
    trials = found.paths.trials()
    if len(trials) == 1:
        return trials[0]
    raise NotFound(
        f"it has {len(trials)} trials", where=found.paths.id, hint=f"name one: {found.paths.id}/1"
    )


def attempt(text: str, root: Path) -> AttemptPaths:
    """Return the attempt ``ID/3.2``; without its number, the newest one. Raises NotFound."""
    found = reference(text, root)
    of = trial(text, root)
    if found.attempt:
        return of.attempt(found.attempt)
    attempts = of.attempts()
    if not attempts:
        raise NotFound("the experiment was never started", where=str(found))
    return attempts[-1]


def _experiment(name: str, root: Path) -> ExperimentPaths:
    if name == "@last":
        all_of_them = experiments(root)
        if not all_of_them:
            raise NotFound("there are no experiments", where=str(root), hint=_ROOT_HINT)
        return all_of_them[-1]
    exact = ExperimentPaths(root / name)
    if _is_one(exact):
        return exact
    fits = experiments(root, name)
    if not fits:
        from hpcdet.schedulers import opening  # hardly anybody names a job

        known = [one.names for one in opening.every() if one.names.reads(name)]
        fits = [
            paths
            for paths in (experiments(root) if known else ())
            if any(of.means(name, job) for job in _jobs(paths) for of in known)
        ]
    if len(fits) == 1:
        return fits[0]
    if not fits:
        for paths in map(ExperimentPaths, sorted(root.glob(f"{glob.escape(name)}*"))):
            _is_one(paths)  # which says so if nobody may tell
        raise _nothing(name, root)
    names = ", ".join(sorted(paths.id for paths in fits)[:5])
    raise NotFound(f"{len(fits)} experiments fit: {names}", where=name, hint="type more of the id")


def _is_one(paths: ExperimentPaths) -> bool:
    """True if a folder is an experiment. Raises Unavailable without permission to look into it."""
    try:
        paths.config.lstat()
    except PermissionError as error:
        owner = trust.user(paths.root.lstat().st_uid)
        raise Unavailable(
            f"the experiment belongs to {owner}, and you may not read it",
            where=str(paths.root),
            hint=f"ask {owner} to let you read it: chmod -R g+rX, or setfacl for you alone",
        ) from error
    except OSError:
        return False
    return True


def _best(paths: ExperimentPaths) -> int:
    """Return the best trial by the searcher's metric. Raises NotFound if there is none."""
    from hpcdet.read.views import views  # completion finds ids without reading experiments

    item = views.status(paths)
    if item.best is None:
        hint = f"see how they stand with: hpcdet status {home.called(paths)}"
        what = f"no trial has a value of {item.metric} yet"
        if item.nearest is not None:
            what = f"no trial is feasible; nearest: trial {item.nearest.trial}, infeasible"
        raise NotFound(what, where=paths.id, hint=hint)
    return int(item.best.trial)


def _jobs(paths: ExperimentPaths) -> set[str]:
    found: set[str] = set()
    for number in paths.submissions():
        with contextlib.suppress(HpcdetError, OSError):  # another one may have the job
            record = Submitted.read(paths.submitted(number))
            found.update([record.job] if record else [])
    return found


def _enclosing(text: str) -> Reference | None:
    """Return the experiment, trial or attempt that a path lies in; None for other texts."""
    if not text.startswith((".", "~", "/")) and not text.count("/"):
        return None
    try:
        path = Path(text).expanduser().absolute()
    except RuntimeError:  # nobody of that name has a home
        return None
    if not packed.exists(path):
        return None
    for folder in (path, *path.parents):
        whole = ExperimentPaths(folder)
        paths = whole if _is_one(whole) else scratch.owner(folder)
        if paths is not None:
            parts = path.relative_to(folder).parts
            if parts and folder == paths.root and folder / parts[0] == paths.scratch:
                parts = parts[1:]
            number = parts[1] if len(parts) > 1 and parts[0] == "trials" else ""
            attempt = parts[3] if len(parts) > 3 and parts[2] == "attempts" else ""
            return Reference(
                paths,
                int(number) if number.isdigit() else 0,
                int(attempt) if attempt.isdigit() else 0,
            )
    return None


_ROOT_HINT = "experiments are looked for in -C DIR, else in $HPCDET_ROOT"


def _nothing(text: str, root: Path) -> NotFound:
    return NotFound(
        "no such experiment",
        where=text,
        hint=f"hpcdet ls shows those in {root} (-C DIR or $HPCDET_ROOT)",
    )
