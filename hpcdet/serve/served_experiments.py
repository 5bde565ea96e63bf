"""The experiments of the server: those below one root, a few of them kept in memory."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hpcdet.errors import NotFound
from hpcdet.read.comparison import facts
from hpcdet.read.comparison.facts import Facts
from hpcdet.read.experiment.gather import Gathered, Memory
from hpcdet.read.lookup import all_experiments, find
from hpcdet.read.lookup.find import Reference
from hpcdet.read.usage import usage_table
from hpcdet.read.usage.usage_table import UsageOfOne
from hpcdet.store.folder.layout import ExperimentPaths

_ID = re.compile(r"[A-Za-z0-9@][A-Za-z0-9._@-]*")
_KEPT = 8
"""Experiments of which what was read stays in memory."""
_TOGETHER_S = 1.0
"""Requests that come within this time of a look, as those of one page, share it."""


class _Look:
    """What is known of one experiment: for one thread at a time."""

    def __init__(self, paths: ExperimentPaths) -> None:
        self.lock = threading.Lock()
        self._memory = Memory(paths)
        self._last: tuple[float, Gathered] | None = None

    def now(self) -> Gathered:
        """Return the contents of the folder as of now, or of the last look if that is recent."""
        now = time.monotonic()
        if self._last is None or now - self._last[0] > _TOGETHER_S:
            self._last = now, self._memory.look()
        return self._last[1]


class ServedExperiments:
    """Experiments below ``root``. All methods may be called by several threads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._kept: OrderedDict[ExperimentPaths, _Look] = OrderedDict()
        self._lock = threading.Lock()

    def experiments(self) -> list[ExperimentPaths]:
        """Return all of them, oldest first."""
        return find.experiments(self.root)

    def find(self, id: str) -> ExperimentPaths:
        """Return the experiment of an id, or of the beginning of one; never one elsewhere.

        Raises:
            NotFound: there is none, or several.
        """
        if not _ID.fullmatch(id):
            raise NotFound("no such experiment", where=id[:100], hint="GET /api/v1/experiments")
        found = find.experiment(id, self.root)
        if found.root.parent.resolve() != self.root.resolve():  # a file of that name lies here
            raise NotFound("no such experiment", where=id, hint="GET /api/v1/experiments")
        return found

    def reference(self, text: str) -> Reference:
        """Return the experiment or the trial, ``ID/3``, of a text. Raises NotFound as ``find``."""
        id, slash, number = text.partition("/")
        paths = self.find(id)
        if not slash:
            return Reference(paths)
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            raise NotFound("no such trial", where=text[:100])
        return find.reference(f"{paths.id}/{number}", self.root)

    @contextmanager
    def gathered(self, paths: ExperimentPaths, *, asked: bool = True) -> Iterator[Gathered]:
        """Yield the contents of an experiment's folder, a second old at most, to one thread.

        Args:
            asked: it is asked for by name, so that it stays in memory, if need be for another one;
                False, as one of many: where there is room.
        """
        with self._lock:
            look = self._kept.get(paths) or _Look(paths)
            if asked or paths in self._kept or len(self._kept) < _KEPT:
                self._kept[paths] = look
            if asked:
                self._kept.move_to_end(paths)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        with look.lock:
            yield look.now()

    def facts(self, found: Reference) -> Facts:
        """Return the facts of an experiment or trial for a comparison."""
        with self.gathered(found.paths) as gathered:
            return facts.collect(found, gathered=gathered)

    def usage(
        self, experiments: Iterable[ExperimentPaths], by: Sequence[str]
    ) -> tuple[list[list[UsageOfOne]], list[str]]:
        """Return the use of each experiment by keys (``usage_table.KEYS``), and warnings."""

        def of_one(paths: ExperimentPaths) -> list[UsageOfOne]:
            with self.gathered(paths, asked=False) as gathered:
                return usage_table.of_experiment(gathered, by)

        return all_experiments.of_each(experiments, of_one)
