"""``python -m hpcdet``: the command line, where the ``hpcdet`` script is not on PATH."""

from hpcdet.cli.main import main

if __name__ == "__main__":
    main()
