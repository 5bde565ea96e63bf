"""Record the public names of Determined: ``tests/recorded/determined-0.38-names.json``.

    python -m tests.determined_record REPOSITORY

Read from the syntax trees of a clone of its repository, so that nothing of it runs: by module,
each name that code can import, and for a class its public members, inherited ones included.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

RECORDED = Path(__file__).parent / "recorded" / "determined-0.38-names.json"
REEXPORTS = {"determined.experimental.client", "determined.experimental.core_v2"}
"""Modules that are no packages, and hand on what they import of Determined's."""

WORKINGS = {"logger", "T", "U"}
"""Assigned in modules, and meant for themselves."""


class Source:
    """The modules below a folder, by their dotted names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cache  # noqa: B019 - one object, for the length of a command
    def tree(self, module: str) -> ast.Module | None:
        """The syntax tree of a module; None of what is no module of Determined's."""
        path = self._folder / module.replace(".", "/")
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                return ast.parse(file.read_text())
        return None

    def hands_on(self, module: str) -> bool:
        """Whether what a module imports is meant to be imported from it."""
        return (self._folder / module.replace(".", "/")).is_dir() or module in REEXPORTS

    def names(self, module: str) -> dict[str, list[str]]:
        """The public names of a module, with the members of those that are classes."""
        found: dict[str, list[str]] = {}
        tree = self.tree(module)
        for node in _statements(tree.body if tree else []):
            if isinstance(node, ast.ImportFrom) and self.hands_on(module):
                for alias in node.names if _is_theirs(node) else ():
                    kind = self.kind(str(node.module), alias.name)
                    found[alias.asname or alias.name] = self._members(*kind) if kind else []
            elif isinstance(node, ast.ClassDef):
                found[node.name] = self._members(module, node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[node.name] = []
            else:
                found.update({name: [] for name in _assigned(node)})
        own = [name for name in found if not name.startswith("_") and name not in WORKINGS]
        return {name: found[name] for name in sorted(own)}

    def kind(self, module: str, name: str) -> tuple[str, ast.ClassDef] | None:
        """Where a class is defined that a module has under a name."""
        for node in _statements(getattr(self.tree(module), "body", [])):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return module, node
            if isinstance(node, ast.ImportFrom) and _is_theirs(node):
                for alias in node.names:
                    if (alias.asname or alias.name) == name and node.module != module:
                        return self.kind(str(node.module), alias.name)
        return None

    def _members(self, module: str, kind: ast.ClassDef) -> list[str]:
        found = set(_own_members(kind))
        for base in kind.bases:
            words = ast.unparse(base).split(".")
            parent = self.kind(module, words[0])
            if len(words) > 1:  # `pytorch.PyTorchTrial`: the class of a module that is imported
                parent = self._of_module(module, words)
            found |= set(self._members(*parent)) if parent else set()
        return sorted(found)

    def _of_module(self, module: str, words: list[str]) -> tuple[str, ast.ClassDef] | None:
        for node in _statements(getattr(self.tree(module), "body", [])):
            if isinstance(node, ast.ImportFrom | ast.Import):
                for alias in node.names:
                    if (alias.asname or alias.name) == words[0]:
                        before = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                        return self.kind(".".join([before + alias.name, *words[1:-1]]), words[-1])
        return None


def _is_theirs(node: ast.ImportFrom) -> bool:
    return str(node.module).partition(".")[0] == "determined"


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of a module, also under ``if``, ``with`` and ``try``."""
    for node in body:
        if isinstance(node, ast.If | ast.With | ast.Try):
            yield from _statements(node.body)
        else:
            yield node


def _assigned(node: ast.stmt) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id


def _own_members(kind: ast.ClassDef) -> Iterator[str]:
    for node in kind.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [node.name]
            if node.name == "__init__":
                names = [
                    part.attr
                    for part in ast.walk(node)
                    if isinstance(part, ast.Attribute)
                    and isinstance(part.ctx, ast.Store)
                    and isinstance(part.value, ast.Name)
                    and part.value.id == "self"
                ]
        else:
            names = list(_assigned(node))
        yield from (name for name in names if not name.startswith("_"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.determined_record", description=__doc__)
    parser.add_argument("repository", type=Path)
    source = Source(parser.parse_args().repository / "harness")
    before = json.loads(RECORDED.read_text())
    opaque = {module for module, names in before.items() if not names}
    found = {module: {} if module in opaque else source.names(module) for module in before}
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
