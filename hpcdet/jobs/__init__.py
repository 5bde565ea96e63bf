"""From a config and a site to an experiment's folder, a batch script and a submission."""
