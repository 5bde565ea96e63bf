"""Docs that lead somewhere: links, anchors, paths of code, commands that exist."""

from __future__ import annotations

import ast
import re
import unicodedata
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from hpcdet.cli import main
from tests import TOP

DOCS = TOP / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), TOP / "README.md", TOP / "CONTRIBUTING.md"])
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`((?:hpcdet|tests|scripts|examples|templates)/[a-z0-9_./-]+)`")
YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        text = unicodedata.normalize("NFKD", text).lower()
        text = re.sub(r"[^\w\s-]", "", text).strip()
        found.add(re.sub(r"[-\s]+", "-", text))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{page.name}: {target}"
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{page.name}: {target}#{anchor}"


def test_every_page_is_in_the_navigation() -> None:
    text = (TOP / "mkdocs.yml").read_text()
    named = set(re.findall(r"[\w/-]+\.md", text))
    there = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert named == {one for one in there if not re.match(r"decisions/\d", one)}
    listed = set(LINK.findall((DOCS / "decisions" / "index.md").read_text()))
    assert {name for name, _ in listed} == {page.name for page in DOCS.glob("decisions/0*.md")}


def test_the_glossary_knows_where_things_are() -> None:
    rows = re.findall(
        r"^\| .* \| `([^`]*)` \|$", (DOCS / "reference" / "glossary.md").read_text(), re.M
    )
    assert len(rows) > 40
    for path in rows:
        assert (TOP / path).exists(), path


def test_paths_of_code_exist() -> None:
    for page in PAGES:
        for path in CODE.findall(prose(page)):
            assert (TOP / path).exists(), f"{page.name}: {path}"


def test_commands_in_examples_exist() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for line in re.findall(r"^ *\$ (?:\w+=\S+ )*hpcdet ([a-z-]+)", text, re.MULTILINE):
            assert line in main.VERBS, f"{page.name}: hpcdet {line}"


def test_yaml_examples_are_yaml() -> None:
    for page in PAGES:
        for block in YAML.findall(page.read_text(encoding="utf-8")):
            yaml.safe_load(block)


def test_class_names_that_are_used_twice_are_listed_with_their_reason() -> None:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in (TOP / "hpcdet").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(str(path.relative_to(TOP)))
    twice = {name for name, paths in found.items() if len(paths) > 1}
    listed = re.findall(r"^\| `(\w+)` \|", (TOP / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(twice)
