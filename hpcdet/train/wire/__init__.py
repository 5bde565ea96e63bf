"""Values that ranks send each other, as bytes: a closed list of types, and no code among them.

A message is one value. Each value is a letter and what belongs to it; numbers are little-endian,
and a *length* is 8 bytes::

    N T F       None, True, False
    i I         int of 8 bytes; any other int: length, bytes
    d           float: 8 bytes (of NaN, too, all its bits)
    s b         str (UTF-8, lone surrogates included), bytes: length, bytes
    l t         list, tuple: length, items
    f q         list of floats alone, of ints of 8 bytes alone: length, 8 bytes each
    z           list of tuples of one length: that length, and a list for each column
    m           dict: length, then each key and its value, in their order
    o           OrderedDict: its ``_metadata`` (None but in states of modules), then as ``m``
    x a c       tensor, numpy array, numpy scalar: length and name of the type, number of axes (1
                byte), a length for each axis, bytes in C order

Tensors arrive in main memory, contiguous and without gradient; ``torch.nn.Parameter`` arrives as
a tensor. Other subclasses (named tuples, ``defaultdict``, enumerations, masked arrays) are refused:
they would arrive as something else. What stands at two places arrives as two copies.
"""

from __future__ import annotations

from typing import Any

from hpcdet.train.wire.kinds import DEEPEST, MOST_BYTES
from hpcdet.train.wire.reading import Garbled, decode
from hpcdet.train.wire.writing import Unsendable, encode

__all__ = ["DEEPEST", "MOST_BYTES", "Garbled", "Unsendable", "copied", "decode", "encode"]


def copied(value: Any) -> Any:
    """Return the value as another rank would get it.

    Raises:
        Unsendable, UsageError: as ``encode``.
    """
    return decode(encode(value))
