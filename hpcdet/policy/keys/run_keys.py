"""The key that signs what the runs of an experiment leave as evidence, and its certificates.

The key is ``governance.run_key`` of the config, or drawn at submission. Where a policy names who
may sign ledgers (``trust`` with role ``run`` or ``site``), one of them certifies it for the
experiment: ``EXP/certificates/0001.json`` and on, each written once. The newest that holds is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdet.errors import IntegrityError
from hpcdet.policy import experiment_policy
from hpcdet.policy.codes import GovernanceBroken, PolicyRefused
from hpcdet.policy.compiled import CompiledPolicy
from hpcdet.policy.keys import key_files
from hpcdet.policy.ledger import owners, seals
from hpcdet.policy.ledger.seals import Certificate
from hpcdet.store.config.resolved_config import Governance, Resolved
from hpcdet.store.folder.layout import ExperimentPaths
from hpcdet.store.fs import files
from hpcdet.store.trials.parents import ORIGIN, Parent

if TYPE_CHECKING:  # imported where something is signed only
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

CERTIFIERS = ("run", "site")
"""Roles of keys that may sign ledgers, or certify keys that do."""
CLOCKS = timedelta(minutes=5)
"""By which the clock of a node may be behind that of who certifies."""
LARGEST = 64 * 1024
"""Bytes of a certificate's file."""
_ANEW = "submit its config anew, which draws another key"
_LOST = f"put secrets.json back from a backup of the experiment (mode 0600), or {_ANEW}"
_NUMBERED = re.compile(r"(\d{4,})\.json")


@dataclass(frozen=True)
class RunKey:
    """The private key of an experiment's runs, and the envelope of its certificate, if any."""

    private: Ed25519PrivateKey = field(repr=False)
    certificate: Mapping[str, Any] | None = None

    @property
    def public(self) -> str:
        """The public half, 64 hex digits."""
        return key_files.public(self.private)


def signer(paths: ExperimentPaths, governance: Governance) -> Ed25519PrivateKey:
    """Return the private key of an experiment's runs, certified or not.

    Raises:
        PolicyRefused: P10: it cannot be read, others may read it, or it is no key, or another one
            than the experiment was submitted with.
    """
    try:
        text = experiment_policy.key(paths, governance, "run_key")
    except OSError as error:
        what = f"cannot read the run key: {error.strerror}"
        hint = "only the experiment's owner signs for it"
        if isinstance(error, FileNotFoundError):
            hint += f", and archives leave the key out: {_LOST}"
        raise PolicyRefused("P10", what, where=str(error.filename), hint=hint) from None
    key = key_files.parse(text, "governance.run_key")
    if governance.signer not in ("", key_files.public(key)):
        raise PolicyRefused(
            "P10",
            f"it is another key than the experiment was submitted with ({governance.signer[:16]}…)",
            where="governance.run_key",
            hint=f"put that key back; or {_ANEW}",
        )
    return key


def refuse_lost(paths: ExperimentPaths, governance: Governance) -> None:
    """Refuse to go on with an experiment that has not the keys in its folder with which it began.

    Raises:
        PolicyRefused: P10.
    """
    for name in ("run_key", "twin_key") if governance.commitment else ("run_key",):
        if "stored" in (getattr(governance, name) or {}) and not paths.secrets.exists():
            raise PolicyRefused(
                "P10",
                f"its {name} is not here any more, and no node could go on without it",
                where=str(paths.secrets),
                hint=f"archives leave keys out: {_LOST}",
            )


def load(
    paths: ExperimentPaths,
    governance: Governance,
    policy: CompiledPolicy,
    now: datetime | None = None,
    recorded: str = "",
) -> RunKey:
    """Return what signs an attempt's ledger and checkpoints, on the node that trains.

    Args:
        policy: the one in effect, which names the keys that it trusts.
        now: when the certificate has to hold; None: at present.
        recorded: the newest time that is known, ISO 8601: it has to hold then, too, where the
            clock is behind it; "": none is.

    Raises:
        PolicyRefused: P10: the key cannot be read, others may read it, or it is none.
        GovernanceBroken: G102: the policy names who may sign, the key is not among them, and has no
            certificate that holds.
    """
    key = signer(paths, governance)
    trusted = certifiers(policy)
    if not trusted or key_files.public(key) in trusted:
        return RunKey(key)
    opened = {"key": key_files.public(key), "experiment": owners.name_of(paths)}
    present = (now or datetime.now(UTC)).isoformat()
    wrong: GovernanceBroken | None = None
    for path in reversed(list(certificates(paths))):
        try:
            given = files.parse_json(files.read(path, LARGEST), path)
            for time in filter(None, (present, recorded)):
                seals.trust_of({**opened, "certificate": given}, time, trusted)
        except IntegrityError as error:  # an older one may still hold
            what = error.what.removeprefix("G102: ")
            wrong = wrong or GovernanceBroken("G102", what, where=str(path), hint=error.hint)
            continue
        return RunKey(key, given)
    raise wrong or GovernanceBroken(
        "G102",
        "the policy names who may sign ledgers, and nobody has certified the key of this run",
        where=str(paths.certificates),
        hint=f"who has the private key of {_named(policy)} runs: hpcdet policy sign {paths.id} "
        "--key FILE; then resume",
    )


def certify(key: str, experiment: str, by: Ed25519PrivateKey, days: int) -> dict[str, Any]:
    """Return the envelope of a certificate that holds from now on.

    Args:
        key: public key of the run, 64 hex digits.
        days: for how long it holds.
    """
    now = datetime.now(UTC)
    begin, end = (now - CLOCKS).isoformat(), (now + timedelta(days=days)).isoformat()
    return seals.sign(Certificate(key, experiment, begin, end), by)


def keep(paths: ExperimentPaths, certificate: Mapping[str, Any]) -> Path:
    """Write a certificate beside the earlier ones, and return its path.

    Raises:
        OSError: it cannot be written.
    """
    number = 1 + max((int(one.stem) for one in certificates(paths)), default=0)
    while not files.write_once(
        path := paths.certificates / f"{number:04d}.json", files.canonical(dict(certificate))
    ):
        number += 1
    return path


def certificates(paths: ExperimentPaths) -> Iterator[Path]:
    """Yield the certificates of an experiment, the oldest first."""
    try:
        names = sorted(path.name for path in paths.certificates.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in sorted(
        (one for one in names if _NUMBERED.fullmatch(one)), key=lambda n: (len(n), n)
    ):
        yield paths.certificates / name


def certifiers(policy: CompiledPolicy) -> list[str]:
    """The public keys that a policy trusts with ledgers; empty: everybody's own key signs."""
    return [one.key for one in policy.trust if one.role in CERTIFIERS]


def signers(policy: CompiledPolicy, governance: Governance) -> list[str]:
    """The public keys of which one has to have signed an experiment's ledgers, or certified theirs.

    Where the policy names none it is the key that the experiment was submitted with; empty: of an
    experiment of a former version, any key.
    """
    return certifiers(policy) or ([governance.signer] if governance.signer else [])


def parents_signers(policy: CompiledPolicy, config: Resolved, parent: str) -> list[str]:
    """As ``signers``, of the ledgers of a trial's parent.

    Trials and forks of an experiment have its run key. That of another one, whose checkpoint the
    config names to begin from, is not known here.

    Args:
        config: of the experiment, which has a policy.
        parent: as the trial's record has it.
    """
    assert config.governance is not None
    named = Parent.parse(parent)
    begun = named is not None and named.experiment == ORIGIN.experiment
    if begun and config.searcher.begin_from is not None:
        return certifiers(policy)
    return signers(policy, config.governance)


def refuse_unable(policy: CompiledPolicy, key: str) -> None:
    """Refuse a key that a policy does not trust with certificates.

    Args:
        key: public key, 64 hex digits.

    Raises:
        PolicyRefused: P10.
    """
    if key not in certifiers(policy):
        named = _named(policy)
        raise PolicyRefused(
            "P10",
            f"the policy does not trust the key {key[:16]}… with certificates",
            where=f"policy {policy.name}",
            hint=f"it trusts {named}" if named else "its `trust` has no key of role run or site",
        )


def _named(policy: CompiledPolicy) -> str:
    names = [f"{one.id} ({one.key[:16]}…)" for one in policy.trust if one.role in CERTIFIERS]
    return " or ".join(names)
