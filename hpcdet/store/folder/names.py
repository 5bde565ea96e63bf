"""Names of files and folders by which an experiment is found and known."""

from __future__ import annotations

import re

CONFIG = "experiment.yaml"
"""The resolved config; a folder that holds it is a whole experiment."""
POLICY = "policy.yaml"
"""The text of an experiment's policy; its config names it so."""
EXPERIMENTS = "hpcdet-experiments"
"""The folder that holds experiments, below a site's scratch or project path or the present one."""
REHEARSAL = ".hpcdet-test-"
"""How the folder begins in which ``hpcdet test`` tries a copy of an experiment."""
SCRATCH_MARK = "hpcdet-experiment.json"
"""In an experiment's folder on scratch: whose it is (``records.ScratchMark``)."""
MODEL_PREFIX = "model:"
"""How the name of a registered model's version begins where a checkpoint may stand."""
REGISTERED = "version.json"
"""In the folder of a registered model's version: its record. Nothing runs or changes there."""
IMPORTED = "imported"
"""The key of ``provenance.json`` that says where an experiment of another platform is from."""

_LONGEST_SLUG = 40


def slug(name: str) -> str:
    """Return the part of an id that people read: lower case letters, digits, dashes."""
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST_SLUG].strip("-")
    return text or "experiment"
