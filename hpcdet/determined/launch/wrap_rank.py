"""``python3 -m determined.launch.wrap_rank RANK -- COMMAND``: each rank has a log of its own."""

from __future__ import annotations

import sys

from hpcdet.determined.launch._rank import become

if __name__ == "__main__":
    words = [word for word in sys.argv[1:3] if word != "--no-redirect-stdio"] + sys.argv[3:]
    rest = words[1:]
    become("determined.launch.wrap_rank", rest if "--" in rest[:1] else ["--", *rest])
