"""``determined.tensorboard.metric_writers``; ``pytorch`` has the one for torch."""

from hpcdet.determined.tensorboard import BatchMetricWriter, MetricWriter

__all__ = ["BatchMetricWriter", "MetricWriter"]
