"""Redaction of reports: users, hosts, paths and environments by other words, one for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from hpcdet.read.experiment.gather import Gathered
from hpcdet.read.sections.origins import ReproduceSection
from hpcdet.read.sections.whole import ReportView
from hpcdet.store.config import overrides

KINDS = ("user", "host", "path", "env")
_PART = r"[^\s/'\"<>:,;()\[\]{}]"
# behind colons and options as well, as in PATH=/a/b:/c/d and -I/e/f; not in addresses of the web
_PATH = re.compile(
    rf"(?:(?<=file://)|(?<=-[A-Z])|(?<![\w./~])(?:~[\w.-]*|(?<!:)/(?=/))?)/(?:{_PART}+/+)+({_PART}*)"
)
_MAIL = re.compile(r"(?<![\w.+-])(?!git@)[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_DOMAIN = r"(?:\.[A-Za-z][\w-]*)*"
Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]
T = TypeVar("T")


@dataclass(frozen=True)
class Redaction:
    """Replacements in all texts of a report.

    Attributes:
        rules: what is replaced in texts, and by what, one after the other.
        env: variables of environments are left out.
        anonymous: name, id, project, labels and repository are left out.
    """

    rules: Sequence[Rule] = ()
    env: bool = False
    anonymous: bool = False

    def __call__(self, value: T) -> T:
        """Return a value with all texts in it redacted."""
        return self._mapped(value) if self.rules else value

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

    def _mapped(self, value: Any) -> Any:
        if isinstance(value, str):
            for pattern, word in self.rules:
                value = pattern.sub(word, value)
            return value
        if isinstance(value, list | tuple):
            found = [self._mapped(each) for each in value]
            return found if isinstance(value, list) else tuple(found)
        if isinstance(value, dict):
            return {self._mapped(key): self._mapped(each) for key, each in value.items()}
        if is_dataclass(value) and not isinstance(value, type):
            changed = {
                one.name: self._mapped(getattr(value, one.name))
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
    rules: list[Rule] = []
    if "path" in asked:
        rules.append((_PATH, lambda found: f"…/{found[1]}"))
    if "user" in asked:
        rules.append((_MAIL, lambda _: "…@…"))
    if anonymous:
        rules += _words(dict.fromkeys(_names(gathered), "experiment"))
    if "user" in asked:
        rules += _words(_numbered("user", _users(gathered)))
    if "host" in asked:
        rules += _words(_numbered("host", map(_short, _hosts(gathered))), _DOMAIN)
    return Redaction(rules, "env" in asked, anonymous)


def _words(words: Mapping[str, str], more: str = "") -> list[Rule]:
    """Return the rule that puts words in the place of names, and of what may follow these."""
    names = "|".join(map(re.escape, sorted(filter(None, words), key=len, reverse=True)))
    # the id of a local job ends with its host and task: @host_3
    pattern = re.compile(rf"(?<![\w-])({names}){more}(?:(?![\w-])|(?=_\d+\b))")
    return [(pattern, lambda found: words[found[1]])] if names else []


def _numbered(kind: str, names: Iterable[str]) -> dict[str, str]:
    known = [name for name in dict.fromkeys(names) if name]
    return {name: f"{kind}-{n}" for n, name in enumerate(known, 1)}


def _short(host: str) -> str:
    """Return a host's name without its domain; an address as it is."""
    first = host.partition(".")[0]
    return host if first.isdigit() else first


def _names(gathered: Gathered) -> list[str]:
    """Return the id, and every name that the experiment has had."""
    said = (overrides.about(one.verb, one.arguments) for _, one in gathered.commands)
    later = [str(words["name"]) for words in said if words.get("name")]
    return [name for name in (gathered.id, gathered.submitted.name, *later) if name]


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
            summary=replace(shown.summary, commit="", dirty=None, project="", labels=[]),
            reproduce=replace(shown.reproduce, facts=facts, commands=commands),
        ),
    )
