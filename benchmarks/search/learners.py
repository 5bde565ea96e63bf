"""Learners of the tables of learning curves: data, spaces of hyperparameters, and their trainings.

Costs are counted, not measured, so that a table is the same on any machine but for rounding.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Params = Mapping[str, Any]
Curve = tuple[list[float], list[float]]
"""Validation loss at each length, NaN where there is none; cost up to there, in any unit."""


@dataclass(frozen=True)
class Data:
    x: NDArray[np.float64]
    y: NDArray[Any]
    valid: NDArray[np.float64]
    truth: NDArray[Any]


@functools.cache
def data(name: str) -> Data:
    """Standardised, split 60 to 40; what is predicted of a regression has a variance of 1."""
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    labels = None
    if name == "diabetes":
        y = (y - y.mean()) / y.std()
    else:
        labels = y
    x, valid, y, truth = train_test_split(x, y, test_size=0.4, random_state=0, stratify=labels)
    scale = x.std(axis=0)
    scale[scale == 0] = 1
    return Data((x - x.mean(axis=0)) / scale, y, (valid - x.mean(axis=0)) / scale, truth)


def _log(low: float, high: float) -> dict[str, Any]:
    return {"type": "loguniform", "low": low, "high": high}


def _log_int(low: int, high: int) -> dict[str, Any]:
    return {"type": "log_int", "low": low, "high": high}


def _int(low: int, high: int) -> dict[str, Any]:
    return {"type": "int", "minval": low, "maxval": high}


def _real(low: float, high: float) -> dict[str, Any]:
    return {"type": "double", "minval": low, "maxval": high}


def _of(*vals: str) -> dict[str, Any]:
    return {"type": "categorical", "vals": list(vals)}


NETWORK = {
    "lr": _log(1e-5, 0.3),
    "alpha": _log(1e-7, 10),
    "width": _log_int(4, 64),
    "depth": _int(1, 2),
    "batch": _log_int(32, 256),
    "momentum": _real(0, 0.99),
    "solver": _of("sgd", "adam"),
}
LINEAR = {
    "eta0": _log(1e-5, 10),
    "alpha": _log(1e-7, 1),
    "l1_ratio": _real(0, 1),
    "power_t": _real(0, 1),
    "schedule": _of("constant", "invscaling"),
    "loss": _of("log_loss", "modified_huber"),
}
BOOSTING = {
    "lr": _log(1e-3, 1),
    "depth": _int(1, 7),
    "leaf": _log_int(1, 64),
    "subsample": _real(0.1, 1),
    "features": _real(0.05, 1),
}
FOREST = {
    "depth": _int(1, 16),
    "leaf": _log_int(1, 64),
    "features": _real(0.02, 1),
    "samples": _real(0.05, 1),
    "criterion": _of("gini", "entropy"),
}
KERNELS = {
    "kernel": _of("rbf", "polynomial", "laplacian"),
    "gamma": _log(1e-5, 10),
    "alpha": _log(1e-6, 1e3),
    "coef0": _real(0, 3),
    "degree": _int(1, 5),
}
SVM = {
    "kernel": _of("rbf", "poly", "sigmoid"),
    "C": _log(1e-4, 1e4),
    "gamma": _log(1e-6, 10),
    "coef0": _real(-1, 2),
    "degree": _int(1, 5),
}


def _loss(truth: NDArray[Any], shares: NDArray[np.float64]) -> float:
    """Cross entropy, whose classes are 0, 1, ...; NaN where a model has diverged."""
    if not np.isfinite(shares).all():
        return math.nan
    shares = np.clip(shares, 1e-6, 1)
    own = shares[np.arange(len(truth)), truth] / shares.sum(axis=1)
    return float(-np.log(own).mean())


def _squared(truth: NDArray[Any], said: NDArray[np.float64]) -> float:
    with np.errstate(all="ignore"):
        value = float(((truth - said) ** 2).mean())
    return value if value < 1e6 else math.nan


def network(params: Params, on: Data, lengths: int) -> Curve:
    """By epochs."""
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    regression = on.y.dtype.kind == "f"
    kind = MLPRegressor if regression else MLPClassifier
    model = kind(
        hidden_layer_sizes=(params["width"],) * params["depth"],
        solver=params["solver"],
        learning_rate_init=params["lr"],
        alpha=params["alpha"],
        batch_size=min(params["batch"], len(on.x)),
        momentum=params["momentum"],
        random_state=0,
    )
    widths = [on.x.shape[1], *(params["width"],) * params["depth"]]
    weights = sum(a * b for a, b in itertools.pairwise(widths))
    each = len(on.x) / params["batch"] * 0.4 + len(on.x) * weights * 3e-6  # ms, about
    first: dict[str, Any] = {} if regression else {"classes": np.unique(on.y)}
    losses: list[float] = []
    for _ in range(lengths):
        try:
            model.partial_fit(on.x, on.y, **first)
            first = {}
            if regression:
                losses.append(_squared(on.truth, model.predict(on.valid)))
            else:
                losses.append(_loss(on.truth, model.predict_proba(on.valid)))
        except ValueError:  # its weights are no numbers any more
            break
        if math.isnan(losses[-1]):
            break
    losses += [math.nan] * (lengths - len(losses))
    return losses, [each * (n + 1) for n in range(lengths)]


def linear(params: Params, on: Data, lengths: int) -> Curve:
    """By epochs of stochastic gradient descent."""
    from sklearn.linear_model import SGDClassifier

    model = SGDClassifier(
        loss=params["loss"],
        penalty="elasticnet",
        alpha=params["alpha"],
        l1_ratio=params["l1_ratio"],
        learning_rate=params["schedule"],
        eta0=params["eta0"],
        power_t=params["power_t"],
        random_state=0,
    )
    losses = []
    for _ in range(lengths):
        try:
            model.partial_fit(on.x, on.y, classes=np.unique(on.y))
            losses.append(_loss(on.truth, model.predict_proba(on.valid)))
        except ValueError:
            break
    losses += [math.nan] * (lengths - len(losses))
    return losses, [float(n + 1) for n in range(lengths)]


def boosting(params: Params, on: Data, lengths: int) -> Curve:
    """By trees."""
    from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

    regression = on.y.dtype.kind == "f"
    kind = GradientBoostingRegressor if regression else GradientBoostingClassifier
    model = kind(
        learning_rate=params["lr"],
        n_estimators=lengths,
        max_depth=params["depth"],
        min_samples_leaf=params["leaf"],
        subsample=params["subsample"],
        max_features=params["features"],
        random_state=0,
    ).fit(on.x, on.y)
    if regression:
        losses = [_squared(on.truth, said) for said in model.staged_predict(on.valid)]
    else:
        losses = [_loss(on.truth, shares) for shares in model.staged_predict_proba(on.valid)]
    each = 1 + params["depth"] * params["subsample"] * params["features"]
    return losses, [each * (n + 1) for n in range(lengths)]


def forest(params: Params, on: Data, lengths: int) -> Curve:
    """By trees."""
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(
        n_estimators=lengths,
        max_depth=params["depth"],
        min_samples_leaf=params["leaf"],
        max_features=params["features"],
        max_samples=params["samples"],
        criterion=params["criterion"],
        random_state=0,
    ).fit(on.x, on.y)
    summed = np.cumsum([tree.predict_proba(on.valid) for tree in model.estimators_], axis=0)
    losses = [_loss(on.truth, shares / (n + 1)) for n, shares in enumerate(summed)]
    each = 1 + params["depth"] * params["samples"] * params["features"]
    return losses, [each * (n + 1) for n in range(lengths)]


def _parts(on: Data, lengths: int) -> Iterator[tuple[int, int]]:
    """Lengths at which a model is trained, and on how many samples; others have the one before."""
    for length in range(1, lengths + 1):
        if length < 10 or length % 9 == 0:
            yield length, max(len(on.x) * length // lengths, 10)


def _held(at: Mapping[int, float], lengths: int) -> list[float]:
    found: list[float] = []
    for length in range(1, lengths + 1):
        found.append(at.get(length, found[-1] if found else math.nan))
    return found


def kernels(params: Params, on: Data, lengths: int) -> Curve:
    """By samples: regularised least squares, squared errors of one-against-all targets."""
    from sklearn.metrics.pairwise import pairwise_kernels

    shape: dict[str, Any] = {"gamma": params["gamma"]}
    if params["kernel"] == "polynomial":
        shape |= {"coef0": params["coef0"], "degree": params["degree"]}
    wanted = on.y[:, None] if on.y.dtype.kind == "f" else np.eye(on.y.max() + 1)[on.y]
    truth = on.truth[:, None] if on.y.dtype.kind == "f" else np.eye(on.y.max() + 1)[on.truth]
    gram = pairwise_kernels(on.x, metric=params["kernel"], **shape)
    valid = pairwise_kernels(on.valid, on.x, metric=params["kernel"], **shape)
    at: dict[int, float] = {}
    for length, samples in _parts(on, lengths):
        ridge = gram[:samples, :samples] + params["alpha"] * np.eye(samples)
        try:
            weights = np.linalg.solve(ridge, wanted[:samples])
            at[length] = _squared(truth, valid[:, :samples] @ weights)
        except np.linalg.LinAlgError:
            at[length] = math.nan
    return _held(at, lengths), [float((n + 1) ** 2) for n in range(lengths)]


def svm(params: Params, on: Data, lengths: int) -> Curve:
    """By samples; the share of errors, which is the same for many."""
    from sklearn.svm import SVC

    at: dict[int, float] = {}
    for length, samples in _parts(on, lengths):
        if length not in (1, 3, 9, 27):
            continue
        model = SVC(
            C=params["C"],
            kernel=params["kernel"],
            gamma=params["gamma"],
            coef0=params["coef0"],
            degree=params["degree"],
            max_iter=2000,
        )
        try:
            model.fit(on.x[:samples], on.y[:samples])
            at[length] = float((model.predict(on.valid) != on.truth).mean())
        except ValueError:
            at[length] = math.nan
    return _held(at, lengths), [float((n + 1) ** 2) for n in range(lengths)]
