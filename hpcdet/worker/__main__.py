"""``python -m hpcdet.worker``: one worker, in a task of a job array."""

import sys

from hpcdet.worker.main import main

sys.exit(main(sys.argv[1:]))
