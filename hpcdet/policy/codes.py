"""The codes of governance: what a policy refuses (P), what a resume verifies (G)."""

from __future__ import annotations

from collections.abc import Mapping

from hpcdet.errors import ConfigError, IntegrityError

POLICY_CODES: Mapping[str, str] = {
    "P01": "the policy is not valid",
    "P02": "a parameter is in no layer",
    "P03": "a parameter is in two layers",
    "P04": "a tied parameter is in layers with different rules",
    "P05": "a layer learns from too little",
    "P06": "a source has no provenance chain",
    "P07": "a module mixes the examples of a batch",
    "P08": "a module has no routed operator, or is another one than was routed",
    "P09": "a rule matches nothing",
    "P10": "a key is missing",
    "P11": "an isolated lane can be reached",
    "P12": "rows of a module are not rows of the batch",
    "P13": "the loss couples sources",
    "P14": "the data or the model cannot have the twins or canaries",
    "P15": "a gradient or a weight was changed by something else than accounted passes and steps",
    "P16": "a framework is not governed",
    "P17": "jobs cannot run, or could run elsewhere than, where the policy requires",
    "P18": "the policy does not allow training without routing",
}
"""Refusals of a policy, before or while a trial trains under it; exit code 4."""

RESUME_CODES: Mapping[str, str] = {
    "G101": "the version of the governance state is unknown",
    "G102": "a signature is not valid, or its key is not trusted",
    "G103": "a file of the checkpoint is missing, changed or not listed",
    "G104": "the ledger is not what was written",
    "G105": "the ledger does not hold the checkpoint's record",
    "G106": "steps after the checkpoint are not recorded as rolled back",
    "G107": "ranks have different governance states",
    "G108": "the policy is another one",
    "G109": "the model has other layers",
    "G110": "the policy compiles to other weights, or the config has lost it",
    "G111": "a provenance chain or its data are not what was admitted",
    "G112": "the agreement on a source has ended",
    "G113": "the data have a source that the policy does not know",
    "G114": "the exposure is not what the data order gives",
    "G115": "a layer has changed that nothing may change",
    "G116": "the spectral entropy is not that of the weights",
    "G117": "the spectral entropy lies outside of its band",
    "G118": "the exposure lies outside of what the policy expects",
    "G119": "the position in the data is not what was counted",
    "G120": "the state of an optimizer is not what was saved",
    "G121": "a node does not attest what the policy requires",
    "G122": "the code that routes gradients is another one",
    "G123": "a source reaches a layer that it may not change",
}
"""Checks of a resume, in the order of the reference; exit code 9 where one stops a trial."""

ALARMS = ("warned", "overridden")
"""Outcomes of a check with which training goes on, and that people have to hear of."""

NODE_REFUSED = "G121"
"""The one check that says nothing against the trial: it goes on on another node."""


class PolicyRefused(ConfigError):
    """A policy refuses what it is asked to govern; the message begins with the P code."""

    def __init__(self, policy_code: str, what: str, *, where: str = "", hint: str = "") -> None:
        """``policy_code``: a key of ``POLICY_CODES``, or G113."""
        super().__init__(f"{policy_code}: {what}", where=where, hint=hint)
        self.policy_code = policy_code


class GovernanceBroken(IntegrityError):
    """A check of governed state has failed; the message begins with the G code."""

    def __init__(self, check: str, what: str, *, where: str = "", hint: str = "") -> None:
        """``check``: a key of ``RESUME_CODES``."""
        super().__init__(f"{check}: {what}", where=where, hint=hint)
        self.check = check
