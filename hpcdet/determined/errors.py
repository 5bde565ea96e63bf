"""``determined.errors``, for code that raises or catches them. hpcdet raises its own."""

from __future__ import annotations

from typing import Any


class EnterpriseOnlyError(Exception):
    """Never raised here."""


class InternalException(Exception):
    """Never raised here."""


class InvalidExperimentException(BaseException):
    """An experiment is invalid."""


class InvalidDataTypeException(InvalidExperimentException):
    """Data are of a type that cannot be used."""

    def __init__(self, typ: type, message: str) -> None:
        super().__init__(f"{typ.__name__} cannot be used: {message}")


class InvalidConfigurationException(InvalidExperimentException):
    """A config is invalid."""

    def __init__(self, config: dict[str, Any], message: str) -> None:
        super().__init__(f"{message} (config: {config})")


class InvalidModelException(InvalidExperimentException):
    """A model is invalid."""


class InvalidCheckpointException(Exception):
    """A checkpoint is invalid."""

    def __init__(self) -> None:
        super().__init__("the checkpoint is invalid")


class StopLoadingImplementation(Exception):
    """Never raised here."""


class WorkerError(Exception):
    """Never raised here."""


class WorkerFinishedGracefully(Exception):
    """Never raised here."""


class SkipWorkloadException(Exception):
    """Never raised here."""


class CheckpointNotFound(Exception):
    """Never raised here: ``hpcdet.errors.NotFound`` is."""


class CheckpointStateException(Exception):
    """Never raised here."""


class NoDirectStorageAccess(Exception):
    """Never raised here."""


class ProxiedDownloadFailed(Exception):
    """Never raised here."""


class MultipleDownloadsFailed(Exception):
    """Never raised here."""
