"""``python3 -m determined.launch.tensorflow [OPTIONS --] COMMAND``: on one rank."""

from __future__ import annotations

import sys

from hpcdet.determined.launch._rank import become
from hpcdet.errors import ConfigError
from hpcdet.process.ranks import Ranks

if __name__ == "__main__":
    if (world := Ranks.from_environment().world) > 1:
        raise ConfigError(
            f"with TensorFlow one rank trains, and there are {world}",
            where="determined.launch.tensorflow",
            hint="set resources.slots_per_trial to 1",
        )
    become("determined.launch.tensorflow", sys.argv[1:])
