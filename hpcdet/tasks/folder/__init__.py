"""Files of a task: its folder, and the shells that are open in it."""
