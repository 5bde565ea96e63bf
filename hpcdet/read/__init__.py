"""What people and scripts see of an experiment, computed from its files alone."""
