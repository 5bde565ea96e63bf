"""An image file on the local disk of a node: copied once per allocation, by its first rank there.

``python -m hpcdet.containers.node_copy IMAGE DIGEST -- COMMAND ...`` becomes the command, with the
copy in the image's place. The copy is one of ``store.trials.staged_data``: verified, never the
truth, and a link to the image where there is no room.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcdet.errors import HpcdetError, IntegrityError
from hpcdet.store.trials import staged_data

KEY = "container.stage"


def command(python: str, image: str, digest: str, inner: Sequence[str]) -> tuple[str, ...]:
    """Return the command that runs ``inner`` with a node's own copy of an image file.

    Args:
        digest: of the image, by ``image_files.digest``: what the attempt says that it runs.
    """
    return (python, "-Pm", "hpcdet.containers.node_copy", image, digest, "--", *inner)


def copied(image: str, digest: str, inner: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Copy an image to this node's disk; return the command with the copy in its place.

    Args:
        environ: says on which disk, and for which allocation.

    Raises:
        IntegrityError: the image is another one by now.
        ConfigError, IntegrityError, Unavailable, OSError: as ``staged_data.staged``.
    """
    disk, job = environ[staged_data.PLACE], f"{environ.get(staged_data.JOB, '')} {digest}"
    folder, found, why = staged_data.staged([image], disk, job, lambda: None, key=KEY)
    if found != staged_data.digest_of({Path(image).name: digest.partition(":")[2]}):
        raise IntegrityError(f"it is another image than {digest}", where=image)
    if why:
        print(f"{KEY}: {why}; {image} is used where it is", file=sys.stderr)
    copy = str(folder / Path(image).name)
    return [copy if word == image else word for word in inner]


def main(argv: Sequence[str]) -> int:
    """Become the command; return an exit code only where there is no copy and no image."""
    image, digest, _, *inner = argv
    try:
        words = copied(image, digest, inner, os.environ)
    except HpcdetError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: {KEY}: {error}", file=sys.stderr)
        return 1
    os.execvp(words[0], words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
