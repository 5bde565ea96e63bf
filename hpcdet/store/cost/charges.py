"""The charges of the scheduler's accounting, as stored in the experiment's folder.

They are facts from the scheduler, not decisions: any process that learns of one may record it,
under the next free number in ``charges/``. A charge that is recorded twice counts once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

from hpcdet.store.cost.budget import Charge
from hpcdet.store.cost.cost_records import Charges
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files, packed, typed_fields

_FIELDS = {each.name for each in dataclasses.fields(Charge)}


@dataclass
class Book:
    """The reader and writer of one experiment's charges; each file is read once.

    Attributes:
        settled: submissions that get no further charges.
    """

    paths: ExperimentPaths
    settled: set[int] = field(default_factory=set)
    _known: dict[tuple[str, float], Charge] = field(default_factory=dict)
    _read: set[int] = field(default_factory=set)

    def read(self) -> list[Charge]:
        """Return all charges known now. Raises IntegrityError: a record is not what was written."""
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
        """Record the new charges and settled submissions; write no file if there are none."""
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
