"""``det.ExperimentConfig``: a config with Determined's questions to it."""

from __future__ import annotations

from typing import Any


class ExperimentConfig(dict[str, Any]):
    """The experiment's config as plain data; answers have Determined's defaults."""

    def debug_enabled(self) -> bool:
        return bool(self.get("debug", False))

    def experiment_seed(self) -> int:
        return int(self.get("reproducibility", {}).get("experiment_seed", 0))

    def slots_per_trial(self) -> int:
        return int(self.get("resources", {}).get("slots_per_trial", 1))

    def scheduling_unit(self) -> int:
        return int(self.get("scheduling_unit", 100))

    def native_parallel_enabled(self) -> bool:
        """Determined's for several GPUs in one process; hpcdet has one rank for each."""
        return False

    def profiling_enabled(self) -> bool:
        return bool(self.get("profiling", {}).get("enabled", False))

    def profiling_interval(self) -> tuple[int, int | None]:
        profiling = self.get("profiling", {})
        return int(profiling.get("begin_on_batch", 0)), profiling.get("end_after_batch")

    def profiling_sync_timings(self) -> bool:
        return bool(self.get("profiling", {}).get("sync_timings", True))

    def average_training_metrics_enabled(self) -> bool:
        return bool(self.get_optimizations_config().get("average_training_metrics", True))

    def get_records_per_epoch(self) -> int | None:
        found = self.get("records_per_epoch")
        return int(found) if found else None

    def get_entrypoint(self) -> str | list[str]:
        """The entrypoint, as it is written in the config."""
        return self["entrypoint"]  # type: ignore[no-any-return]

    def get_optimizations_config(self) -> dict[str, Any]:
        return dict(self.get("optimizations", {}))

    def get_checkpoint_storage(self) -> dict[str, Any]:
        return dict(self.get("checkpoint_storage", {}))

    def get_searcher_metric(self) -> str:
        return str(self["searcher"]["metric"])

    def get_min_validation_period(self) -> Any:
        return self.get("min_validation_period", {})

    def get_min_checkpoint_period(self) -> Any:
        return self.get("min_checkpoint_period", {})
