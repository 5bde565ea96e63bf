"""When a record of a source was trained, and what it could change: computed again, not listed.

A ledger has the seed and the rule of the order, and where the records of each source lie: with
them anyone has the batches again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdet.data.sample_order import Indices, shuffled
from hpcdet.errors import UsageError
from hpcdet.policy.compiled import MIX
from hpcdet.policy.ledger.records import LedgerRecord
from hpcdet.policy.ledger.verify import LedgerExposure, VerifiedLedger


@dataclass(frozen=True)
class TrainedRecord:
    """A step that has trained a record.

    Attributes:
        step: batches trained before it.
        layers: those that the record could change, with a weight above 0.
    """

    step: int
    epoch: int
    layers: tuple[str, ...]


def trained(ledger: VerifiedLedger, source: str, number: int) -> Iterator[TrainedRecord]:
    """Yield the steps that have trained a record, in order.

    Args:
        ledger: of a trial, verified.
        number: of the record among those of its source, from 0, in the order of the data.

    Raises:
        UsageError: the trial has no such record; or its order cannot be computed again.
    """
    matrices = LedgerExposure.of(ledger.counting()).matrices
    data: Mapping[str, Any] = {}
    place = (-1, "")
    for one in ledger.counting():
        if one.type == "source_admit" and "order" in one.body:
            data = one.body
            place = _place(data, source, number)
        elif one.type == "step_batch" and place[0] >= 0:
            sources, layers, weights = matrices[one.body["policy_digest"]]
            members = [sources.index(name) for name in place[1].split(MIX) if name in sources]
            open_to = weights[members].min(axis=0) > 0
            changed = tuple(name for name, is_open in zip(layers, open_to, strict=True) if is_open)
            for step, epoch in _steps(one, data["order"], place[0]):
                yield TrainedRecord(step, epoch, changed)


def _place(data: Mapping[str, Any], source: str, number: int) -> tuple[int, str]:
    """The index of a record in the data set, and the kind of its row."""
    admitted, order = data["data"], data["order"]
    if admitted is None or not order.get("rule"):
        raise UsageError(
            "its order follows from code alone: which step had which record cannot be computed",
            where="ledger query --record",
            hint="hpcdet ledger query --layer says how many records each layer has seen",
        )
    if admitted["runs"] is None:
        raise UsageError(
            "the sources of its data change too often to be listed in a ledger",
            where="ledger query --record",
            hint="put the data of each source behind each other: pytorch.Sourced",
        )
    runs = sorted(
        (begin, length, kind)
        for kind, found in admitted["runs"].items()
        if source in kind.split(MIX)
        for begin, length in found
    )
    left = number
    for begin, length, kind in runs:
        if 0 <= left < length:
            return begin + left, kind
        left -= length
    many = sum(length for _, length, _ in runs)
    raise UsageError(
        f"source {source} has {many} records, from 0" if runs else f"there is no source {source}",
        where=f"--record {source}:{number}",
        hint="its sources are " + ", ".join(sorted(admitted["examples"])),
    )


def _steps(record: LedgerRecord, order: Mapping[str, Any], index: int) -> Iterator[tuple[int, int]]:
    """The steps and epochs of a ``step_batch`` that had a sample."""
    (begin, end), first = record.body["records"], record.body["steps"][0]
    epoch, batch = int(order["epoch"]), int(order["batch"])
    each = -(-epoch // batch)

    def batches(samples: int) -> int:
        return samples // epoch * each + samples % epoch // batch

    for number in range(begin // epoch, -(-end // epoch)):
        [found] = np.flatnonzero(_order(order, number) == index)
        at = number * epoch + int(found)
        if found < epoch and begin <= at < end:
            yield first + batches(at) - batches(begin), number


def _order(order: Mapping[str, Any], epoch: int) -> Indices:
    rule, _, seed = str(order["rule"]).partition(" ")
    size = int(order["size"])
    return shuffled(size, int(seed), epoch) if rule == "shuffled" else np.arange(size)
