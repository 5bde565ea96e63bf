"""``python -m hpcdet.worker``: one worker, in a task of a job array."""

import sys

from hpcdet.store.folder import log_streams
from hpcdet.worker.main import main

log_streams.lose_what_does_not_fit()
sys.exit(main(sys.argv[1:]))
