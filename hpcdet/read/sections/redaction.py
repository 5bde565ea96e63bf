"""Redaction of reports: users, hosts, paths and environments by other words, one for each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.sections.origins import ReproduceSection
from hpcdet.read.sections.whole import ReportView

KINDS = ("user", "host", "path", "env")
_PATH = re.compile(r"(?<![\w./:~-])~?/(?:[^\s/'\"<>:,;()\[\]{}]+/)+([^\s/'\"<>:,;()\[\]{}]*)")
T = TypeVar("T")


@dataclass(frozen=True)
class Redaction:
    """Replacements in all texts of a report.

    Attributes:
        words: what stands for each name.
        paths: absolute paths become their last part.
        env: variables of environments are left out.
        anonymous: name, id, labels and repository are left out.
    """

    words: Mapping[str, str]
    paths: bool = False
    env: bool = False
    anonymous: bool = False

    def __call__(self, value: T) -> T:
        """Return a value with all texts in it redacted."""
        if not (self.words or self.paths):
            return value
        return self._mapped(value, self._pattern())  # type: ignore[no-any-return]

    def report(self, whole: ReportView) -> ReportView:
        """Return a report redacted."""
        if self.env:
            own = replace(whole.sections.reproduce, **self._environment(whole.sections.reproduce))
            whole = replace(whole, sections=replace(whole.sections, reproduce=own))
        whole = self(whole)
        return _anonymous(whole) if self.anonymous else whole

    @staticmethod
    def _environment(shown: ReproduceSection) -> dict[str, Any]:
        facts = [
            fact
            for fact in shown.facts
            if not fact.name.startswith(("environment", "variables", "modules"))
        ]
        environments = [
            replace(one, parts={k: v for k, v in one.parts.items() if not k.startswith("$")})
            for one in shown.environments
        ]
        return {"facts": facts, "environments": environments}

    def _pattern(self) -> re.Pattern[str] | None:
        if not self.words:
            return None
        names = sorted(self.words, key=len, reverse=True)
        return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])")

    def _mapped(self, value: Any, pattern: re.Pattern[str] | None) -> Any:
        if isinstance(value, str):
            if self.paths:
                value = _PATH.sub(lambda found: f"…/{found[1]}", value)
            return pattern.sub(lambda found: self.words[found[0]], value) if pattern else value
        if isinstance(value, list | tuple):
            found = [self._mapped(each, pattern) for each in value]
            return found if isinstance(value, list) else tuple(found)
        if isinstance(value, dict):
            return {
                self._mapped(key, pattern): self._mapped(each, pattern)
                for key, each in value.items()
            }
        if is_dataclass(value) and not isinstance(value, type):
            changed = {
                one.name: self._mapped(getattr(value, one.name), pattern)
                for one in fields(value)
                if one.init
            }
            return replace(value, **changed)
        return value


def redaction(gathered: Gathered, kinds: Iterable[str], anonymous: bool = False) -> Redaction:
    """Return the redaction of an experiment's report.

    Args:
        kinds: some of ``KINDS``.
        anonymous: all of them, and what names the experiment.
    """
    asked = set(KINDS) if anonymous else set(kinds)
    words: dict[str, str] = {}
    if anonymous:
        words |= dict.fromkeys([gathered.id, gathered.config.name], "experiment")
    if "user" in asked:
        words |= _numbered("user", _users(gathered))
    if "host" in asked:
        words |= _numbered("host", _hosts(gathered))
    return Redaction(words, "path" in asked, "env" in asked, anonymous)


def _numbered(kind: str, names: Iterable[str]) -> dict[str, str]:
    known = [name for name in dict.fromkeys(names) if name]
    return {name: f"{kind}-{n}" for n, name in enumerate(known, 1)}


def _users(gathered: Gathered) -> list[str]:
    return [
        str(gathered.provenance.get("user", "")),
        *(command.user for _, command in gathered.commands),
    ]


def _hosts(gathered: Gathered) -> list[str]:
    found = [str(gathered.provenance.get("host", ""))]
    for worker in gathered.workers:
        if worker.claim is not None:
            found += [worker.claim.host, *worker.claim.nodes]
    for attempt in (attempt for trial in gathered.trials for attempt in trial.attempts):
        if attempt.claim is not None:
            found += [attempt.claim.host, *attempt.claim.nodes]
        found += attempt.end.nodes if attempt.end else []
        found += [str(line.get("host", "")) for line in attempt.profiles]
    return found


def _anonymous(whole: ReportView) -> ReportView:
    shown = whole.sections
    facts = [fact for fact in shown.reproduce.facts if not fact.name.startswith("git")]
    commands = [line for line in shown.reproduce.commands if not line.startswith("git ")]
    return replace(
        whole,
        sections=replace(
            shown,
            summary=replace(shown.summary, commit="", dirty=None, labels=[]),
            reproduce=replace(shown.reproduce, facts=facts, commands=commands),
        ),
    )
