"""``python3 -m determined.launch.wrap_rank RANK -- COMMAND``: each rank has a log of its own."""

from __future__ import annotations

import sys

from hpcdet.determined.launch._rank import become

if __name__ == "__main__":
    become("determined.launch.wrap_rank", sys.argv[1:])
