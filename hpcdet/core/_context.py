"""``core.init`` and the context that it gives."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcdet.checkpoint import Manifest
from hpcdet.core._checkpoint import CheckpointContext
from hpcdet.core._distributed import DistributedContext
from hpcdet.core._preempt import PreemptContext, check
from hpcdet.core._profiler import ProfilerContext
from hpcdet.core._searcher import SearcherContext
from hpcdet.core._train import TrainContext
from hpcdet.core._virtual import VirtualContext
from hpcdet.core.governance.own_loop import LoopGovernance
from hpcdet.data import rng
from hpcdet.data.sample_order import Order, shuffled
from hpcdet.errors import UsageError
from hpcdet.process import launcher_watch
from hpcdet.process.location import LOCK, SAYS
from hpcdet.process.ranks import Ranks
from hpcdet.store.config.data_secrets import resolve
from hpcdet.train.attempt import exit_hook
from hpcdet.train.attempt.session import Session
from hpcdet.train.attempt.startup import join
from hpcdet.train.meeting import rendezvous
from hpcdet.units import Length, Units


class ExperimentalCoreContext:
    """Determined's. Reports are kept in the journal; ``hpcdet events`` shows them."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def report_task_using_checkpoint(self, checkpoint: Any) -> None:
        """This trial reads a checkpoint (its name, or what has it as ``uuid``)."""
        name = getattr(checkpoint, "uuid", checkpoint)
        self._session.tracker.record("status", text=f"uses the checkpoint {name}")

    def report_task_using_model_version(self, model_version: Any) -> None:
        """This trial reads a version of a model (its name, or what has one as ``name``)."""
        name = getattr(model_version, "name", model_version)
        self._session.tracker.record("status", text=f"uses the model {name}")


class Context:
    """Everything a training script shares with hpcdet. Use it in a ``with`` statement.

    Leaving it says how the attempt ended: preempted, if ``should_preempt`` said so before;
    failed, if an exception leaves it; else completed. Without ``with``, the end of the script
    says it.

    Attributes:
        hparams: this trial's hyperparameters.
        seed: this trial's seed; python, numpy and torch are seeded with it, on all ranks alike.
        data: the config's ``data``, with its secrets.
        parent: the trial that this one began from, as ``3@400 batches``; "" if from nothing.
        first_batch: batches behind the checkpoint that this attempt went on from.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.hparams: dict[str, Any] = dict(session.record.params)
        self.seed = session.record.seed
        self.parent = session.record.parent
        experiment = session.place.experiment
        self.data = (
            resolve(session.config.data, experiment.secrets)
            if experiment
            else dict(session.config.data)
        )
        self.first_batch = 0
        self.distributed = DistributedContext.of(session.ranks, session.peers)
        self.governance = LoopGovernance(session)
        self.train = TrainContext(session, self.governance)
        self.preempt = PreemptContext(session, self.train, self._each_step)
        self.virtual = VirtualContext(session)
        self.checkpoint = CheckpointContext(session, self.train, self.virtual, self.governance)
        self.searcher = SearcherContext(session, self.train)
        self.profiler = ProfilerContext(self.train, session.profile)
        self.experimental = ExperimentalCoreContext(session)
        self._left = False

    def _each_step(self) -> None:
        self.checkpoint.begin()
        self.profiler.tick()

    def begin(self, origin: Manifest | None, units: Units) -> None:
        """Begin the attempt of a trainer's loop: ``units`` far, from a checkpoint or from none."""
        self.first_batch = units.batches
        self.governance.trainer()
        self.train.set_progress(units)
        self.session.begin(origin, units)

    @property
    def horizon(self) -> Length | None:
        """The length that schedules of learning rates span; see ``searcher.horizon``."""
        return self.searcher.horizon

    def register_generator(self, name: str, generator: rng.Generator) -> None:
        """Take a random generator of one's own (numpy, torch or python) into checkpoints."""
        self.session.registered.add(name, generator, per_rank=False)

    def register_state(self, name: str, item: Any, *, per_rank: bool = False) -> None:
        """Take an object with ``state_dict`` and ``load_state_dict`` into checkpoints.

        ``checkpoint.save`` asks for its state, ``checkpoint.latest`` puts it back: register
        before. A random generator is taken as by ``register_generator``.

        Args:
            per_rank: each rank has a state of its own; else all have the same.

        Raises:
            UsageError: it has not both methods, or the name is taken.
        """
        if per_rank and self.session.virtual is not None:
            raise UsageError(
                "a state per rank would not be exact with another number of ranks",
                where=f"register_state({name!r})",
                hint="leave per_rank out, or reproducibility.elastic: exact",
            )
        self.session.registered.add(name, item, per_rank=per_rank)

    def alert(
        self, title: str | None = None, description: str | None = None, level: str | None = "info"
    ) -> None:
        """Alert people, in the log and in ``hpcdet events``; rank 0's counts, once.

        Args:
            level: Determined's: ``debug``, ``info``, ``warn`` or ``error``.
        """
        if self.session.ranks.chief:
            text = ": ".join(one for one in (title, description) if one)
            self.session.tracker.record("alert", text=text, level=level or "info")
            with contextlib.suppress(OSError):  # as ``saying.say``
                print(f"{level or 'info'}: {text}", file=sys.stderr, flush=True)

    def order(self, size: int, batch: int, *, shuffle: bool = True) -> Order:
        """The global batches of a data set: a function of the trial's seed and the epoch.

        The data cursor is a count: ``order.slices(records, rank, world)`` gives this rank's
        shares behind so many samples, without end. Save ``records`` with the checkpoint.

        Args:
            size: samples in the data set; ``batch``: in a global batch.
        """
        if shuffle:
            return Order(size, batch, lambda epoch: shuffled(size, self.seed, epoch))
        return Order(size, batch, lambda _epoch: range(size))

    def start(self) -> None:
        """Determined's for code without ``with``; everything has started already."""

    def close(self, *error: Any) -> None:
        """Leave it as the ``with`` block does; its three arguments if an exception leaves it."""
        if not self._left:
            self.__exit__(*(error or (None, None, None)))

    def __enter__(self) -> Context:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._left = True
        self.governance.close()
        ended_well = error is None or (isinstance(error, SystemExit) and not error.code)
        if ended_well:
            if not self.session.finished:
                self.checkpoint.begin()
                self.governance.conclude()
                self.session.finish(self.preempt.cause or "completed", self.train.units)
            rendezvous.leave()
        elif not self.session.finished and error is not None:
            if not self.session.attached:
                return
            code = self.session.fail(error)
            raise SystemExit(code) from None

    def conclude(self, error: BaseException | None = None) -> None:
        """Leave it, unless that was done; the script has ended."""
        if not self._left:
            self.__exit__(type(error) if error else None, error, None)


_contexts: list[Context] = []


@contextlib.contextmanager
def conclude() -> Iterator[None]:
    """Around a script that runs in this process: what it did not leave is left at its end."""
    error: BaseException | None = None
    try:
        yield
    except BaseException as caught:
        error = caught
        raise
    finally:
        for context in _contexts:
            context.conclude(error)


def _at_exit() -> None:
    """A script in a process of its own ends without having left its context.

    Its exit code is known here only if ``sys.exit`` has said it: whoever waits for it publishes
    what is said, if it is 0. Of several ranks, one that fails must not wait for the others, which
    may be in other collectives.
    """
    if hasattr(sys, "last_value") or exit_hook.failed():  # the exit code says so
        return
    for context in _contexts:
        session = context.session
        if session.attached and SAYS in os.environ:
            session.publish_at(Path(os.environ[SAYS]))
            try:
                context.conclude()
            except BaseException as error:
                os._exit(session.fail(error))


def init(
    *,
    hparams: Mapping[str, Any] | None = None,
    checkpoint_storage: str | os.PathLike[str] | None = None,
    seed: int = 0,
    distributed: object = None,
    preempt_mode: object = None,
    tensorboard_mode: object = None,
) -> Context:
    """Join the attempt this process belongs to, or run alone if it belongs to none.

    Args:
        hparams: hyperparameters when alone; in an experiment the trial's count.
        checkpoint_storage: when alone, a folder to go on from and to save in; by default a new
            one that is removed at the end.
        seed: when alone.
        distributed, tensorboard_mode: Determined's; accepted and not needed: the ranks come
            from the launcher.
        preempt_mode: Determined's; all ranks ask, and agree.

    Raises:
        UsageError: several ranks, and a mode in which not all of them ask.
        Unavailable: the other ranks did not come.
    """
    check(preempt_mode, Ranks.from_environment().world)
    context = Context(join(hparams=hparams, storage=checkpoint_storage, seed=seed))
    if isinstance(distributed, DistributedContext):
        distributed.join(context.session.peers)
    if not _contexts:
        atexit.register(_at_exit)
        if SAYS in os.environ:
            exit_hook.watch()
            launcher_watch.end_with_rank(Path(os.environ[SAYS]).with_name(LOCK))
    _contexts.append(context)
    return context
