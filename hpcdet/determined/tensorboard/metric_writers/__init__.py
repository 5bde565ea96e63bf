"""``determined.tensorboard.metric_writers``; ``pytorch`` has the one for torch."""

from hpcdet.determined._tensorboard_files import BatchMetricWriter, MetricWriter

__all__ = ["BatchMetricWriter", "MetricWriter"]
