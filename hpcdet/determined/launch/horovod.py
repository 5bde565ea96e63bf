"""``python3 -m determined.launch.horovod [OPTIONS --] COMMAND``."""

from __future__ import annotations

import sys

from hpcdet.determined.launch._rank import become

if __name__ == "__main__":
    become("determined.launch.horovod", sys.argv[1:])
