"""What a task keeps on disk: its folder, and the shells that are open in it."""
