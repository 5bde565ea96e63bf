import sys

from hpcdet.worker.main import main

sys.exit(main(sys.argv[1:]))
