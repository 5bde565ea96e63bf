"""Experiments from Python: read, compare, submit and control them.

    from hpcdet import client

    for experiment in client.experiments(state="COMPLETED"):
        print(experiment.id, experiment.best)

What is read comes from the functions that the command line prints; what changes an experiment is
the command line's verb, in a process of its own. Nothing is printed, and nothing imports torch.
Errors are those of ``hpcdet.errors``, warnings are ``HpcdetWarning``.
"""

from __future__ import annotations

from hpcdet.client.handles import Checkpoint, Experiment
from hpcdet.client.metric_series import Metrics
from hpcdet.client.model_versions import Model, ModelVersion, model, models
from hpcdet.client.queries import compare, experiments, get, submit, usage
from hpcdet.client.run_verb import HpcdetWarning

__all__ = [
    "Checkpoint",
    "Experiment",
    "HpcdetWarning",
    "Metrics",
    "Model",
    "ModelVersion",
    "compare",
    "experiments",
    "get",
    "model",
    "models",
    "submit",
    "usage",
]
