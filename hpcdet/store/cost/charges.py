"""What the scheduler's accounting has charged an experiment for, as it lies in its folder.

Facts of the scheduler's, not decisions: whoever has heard of one may write it down, in the next
free number under ``charges/``. One that is there twice is the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

from hpcdet.store.cost.budget import Charge
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.folder.records import Charges
from hpcdet.store.fs import files, packed, typed_fields

_FIELDS = {each.name for each in dataclasses.fields(Charge)}


@dataclass
class Book:
    """Reader and writer of the charges of one experiment. Each file is read once.

    Attributes:
        settled: submissions of which nothing more is to come.
    """

    paths: ExperimentPaths
    settled: set[int] = field(default_factory=set)
    _known: dict[tuple[str, float], Charge] = field(default_factory=dict)
    _read: set[int] = field(default_factory=set)

    def read(self) -> list[Charge]:
        """All that is known now. Raises IntegrityError: a record is not what was written."""
        for number in packed.numbers(self.paths.charges(0).parent, ".json"):
            if number in self._read:
                continue
            path = self.paths.charges(number)
            found = Charges.read(path)
            if found is not None:
                try:
                    self._take(found)
                except (TypeError, ValueError) as error:  # a field is missing, or of another type
                    what = str(error).rpartition(".__init__() ")[2]
                    raise files.damaged(path, f"allocations: {what}") from error
                self._read.add(number)
        return list(self._known.values())

    def write(self, charges: Iterable[Charge], settled: Iterable[int]) -> None:
        """Add what is new; nothing is written if nothing is."""
        self.read()
        fresh = [one for one in charges if (one.job, one.start) not in self._known]
        over = sorted(set(settled) - self.settled)
        if not fresh and not over:
            return
        record = Charges([dataclasses.asdict(one) for one in fresh], over, files.now())
        number = max(self._read, default=0) + 1
        while not record.write_once(self.paths.charges(number)):
            number += 1
        self._read.add(number)
        self._take(record)

    def _take(self, record: Charges) -> None:
        self.settled.update(record.settled)
        for given in record.allocations:
            known = {key: value for key, value in given.items() if key in _FIELDS}
            typed_fields.refuse_others(Charge, known, lenient=False)
            charge = Charge(**known)
            self._known.setdefault((charge.job, charge.start), charge)
