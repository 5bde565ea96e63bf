"""Why an experiment is pending, slow, stuck or failed, by its files alone."""
