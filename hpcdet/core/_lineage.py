"""``context.experimental``: reports of a trial that only reads a model."""

from __future__ import annotations

from typing import Any

from hpcdet.train.attempt.session import Session


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
