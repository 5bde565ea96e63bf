"""Faults that happen inside a rank: at its k-th batch, at the k-th system call or rename of a save.

The model of ``tests.chaos`` imports this file from its own folder, so it stands alone. Beside
the file ``$PACE``, which says how many seconds a batch takes, lie the plans: ``PACE.plan-R`` holds
the next fault of rank R as JSON. It is taken up at the beginning of a batch, happens once, in
whichever attempt gets so far, and is told in ``PACE.fired-R``. ``PACE.at-R`` is the batch.

A plan has ``where`` (``step``, ``call`` or ``rename``), ``nth`` (from 1, counted from when it was
taken up), ``how`` (``KILL``, ``TERM``, ``USR2``, ``ENOSPC`` or ``EIO``) and ``after``: whether the
call is made before the blow falls.
"""

import errno
import json
import os
import signal
import threading
import time
from pathlib import Path

from hpcdet.process.ranks import Ranks

CALLS = ("open", "ftruncate", "pwrite", "write", "fsync", "replace", "mkdir", "close")
_REAL = {name: getattr(os, name) for name in CALLS}


class Faults:
    """The faults of this rank."""

    def __init__(self):
        self._pace = os.environ["PACE"]
        self._rank = Ranks.from_environment().rank
        self._plan = None
        self._count = 0
        self._ours = set()
        self._lock = threading.RLock()
        for name in CALLS:
            setattr(os, name, self._watched(name))

    def step(self, batch):
        """At the beginning of a batch: say how far training is, maybe strike, keep the pace."""
        self._file("at").write_text(str(batch))
        with self._lock:
            if self._plan is None and self._file("plan").exists():
                self._plan, self._count = json.loads(self._file("plan").read_bytes()), 0
        if self._due("step"):
            self._strike(f"batch {batch}")
        time.sleep(float(Path(self._pace).read_text()))

    def _file(self, what):
        return Path(f"{self._pace}.{what}-{self._rank}")

    def _watched(self, name):
        real = _REAL[name]
        places = ("call", "rename") if name == "replace" else ("call",)

        def call(*arguments, **options):
            about = self._about(name, arguments)
            if about and self._due(*places):
                # an error of close leaves the file closed all the same
                if self._plan["after"] or name == "close":
                    real(*arguments, **options)
                self._strike(f"{name} {about}")
            result = real(*arguments, **options)
            if about and name == "open":
                self._ours.add(result)
            elif name == "close":
                self._ours.discard(arguments[0])
            return result

        return call

    def _about(self, name, arguments):
        """What a call of a save is about; "" for all other calls."""
        subject = arguments[1] if name == "replace" else arguments[0]
        if isinstance(subject, int):
            return f"file {subject}" if subject in self._ours else ""
        return Path(subject).name if "/checkpoints/" in str(subject) else ""

    def _due(self, *places):
        with self._lock:
            if self._plan is None or self._plan["where"] not in places:
                return False
            self._count += 1
            return self._count == self._plan["nth"]

    def _strike(self, where):
        how, self._plan = self._plan["how"], None
        self._file("plan").unlink()
        self._file("fired").write_text(where)
        if how in ("ENOSPC", "EIO"):
            number = getattr(errno, how)
            raise OSError(number, os.strerror(number))
        os.kill(os.getpid(), getattr(signal, f"SIG{how}"))
