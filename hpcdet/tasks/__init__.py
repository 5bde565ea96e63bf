"""Interactive tasks: notebooks, TensorBoards, shells and single commands, each a job of its own."""
