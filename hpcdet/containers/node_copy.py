"""An image file on the local disk of a node: copied once per allocation, by its first rank there.

``python -m hpcdet.containers.node_copy IMAGE -- COMMAND ...`` becomes the command, with the copy
in the image's place. The copy is one of ``store.trials.staged_data``: verified, never the truth,
and a link to the image where there is no room.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcdet.errors import HpcdetError
from hpcdet.store.trials import staged_data

KEY = "container.stage"


def command(python: str, image: str, inner: Sequence[str]) -> tuple[str, ...]:
    """Return the command that runs ``inner`` with a node's own copy of an image file."""
    return (python, "-Pm", "hpcdet.containers.node_copy", image, "--", *inner)


def copied(image: str, inner: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Copy an image to this node's disk; return the command with the copy in its place.

    Args:
        environ: says on which disk, and for which allocation.

    Raises:
        ConfigError, IntegrityError, OSError: as ``staged_data.staged``.
    """
    disk, job = environ[staged_data.PLACE], environ.get(staged_data.JOB, "")
    folder, _, why = staged_data.staged([image], disk, job, lambda: None, key=KEY)
    if why:
        print(f"{KEY}: {why}; {image} is used where it is", file=sys.stderr)
    copy = str(folder / Path(image).name)
    return [copy if word == image else word for word in inner]


def main(argv: Sequence[str]) -> int:
    """Become the command; return an exit code only where there is no copy and no image."""
    image, _, *inner = argv
    try:
        words = copied(image, inner, os.environ)
    except HpcdetError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: {KEY}: {error}", file=sys.stderr)
        return 1
    os.execvp(words[0], words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
