"""Reading of a Git repository without running any program that it names.

Git runs programs for the one who reads, too: file system monitors, hooks, filters, textconv and
external diff drivers, helpers of submodules; a repository's own configuration names them, and it
comes along with any copied or unpacked folder. So Git is given a view: a folder of ours with a
configuration of ours and links to the repository's objects, references and index. Nothing of the
repository's, the user's or the system's configuration is in force.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcdet.store.folder import trust

GIT_S = 20
"""Seconds that one call of Git may take."""
_MOST_BYTES = 64 * 1024
_SHARED = ("objects", "refs", "packed-refs", "reftable", "shallow")
_OWN = ("HEAD", "index")
_PLAIN = (
    *("core.filemode", "core.autocrlf", "core.eol"),
    *("extensions.objectformat", "extensions.refstorage"),
)
"""Of the repository's configuration: how its files are to be read. None names a program."""
_WORD = re.compile(r"[A-Za-z0-9]+")


@dataclass(frozen=True)
class Repository:
    """A repository, and a view of it for Git.

    Attributes:
        top: the folder that is under version control.
        view: the folder that Git takes for its own (``GIT_DIR``).
        owner: whose the repository is, where it is another user's; "" else.
        remote: the URL of ``origin``; "" if it has none.
    """

    top: Path
    view: Path
    owner: str
    remote: str

    def git(self, folder: Path, *arguments: str) -> str | None:
        """Return Git's output for a folder; None if Git fails, is missing or takes too long."""
        where = {"GIT_DIR": str(self.view), "GIT_WORK_TREE": str(self.top)}
        return _git(self.view, *arguments, cwd=folder, more=where)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Repository | None]:
    """The repository that a folder belongs to; None if there is none that can be read."""
    found = _found(folder.resolve())
    if found is None:
        yield None
        return
    top, own, shared = found
    with tempfile.TemporaryDirectory(prefix="hpcdet-git-") as name:
        view = Path(name)
        try:
            values = _configuration(view, shared / "config")
            _show(view, own, shared, values)
            owner = "" if trust.is_trusted(own.stat().st_uid) else trust.user(own.stat().st_uid)
        except OSError:
            yield None
            return
        yield Repository(top, view, owner, values.get("remote.origin.url", ""))


def _found(folder: Path) -> tuple[Path, Path, Path] | None:
    """The folder under control, the repository's folder, and that of the clone it belongs to.

    The two differ in a worktree, where ``.git`` is a file that names the first, which has a file
    that names the second.
    """
    for top in (folder, *folder.parents):
        mark = top / ".git"
        try:
            mode = mark.stat().st_mode
            if stat.S_ISREG(mode):
                named = _first_line(mark)
                if not named.startswith("gitdir: "):
                    return None
                own = (top / named.removeprefix("gitdir: ")).resolve()
            elif stat.S_ISDIR(mode):
                own = mark.resolve()
            else:
                continue
            common = own / "commondir"
            shared = (own / _first_line(common)).resolve() if common.is_file() else own
            return (top, own, shared) if (own / "HEAD").is_file() else None
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def _first_line(path: Path) -> str:
    with path.open("rb") as file:
        return os.fsdecode(file.read(_MOST_BYTES)).partition("\n")[0].strip()


def _configuration(view: Path, config: Path) -> dict[str, str]:
    """Return a repository's configuration without the files that it includes."""
    said = None
    if config.is_file():
        listing = ("config", "--file", str(config), "--no-includes", "--null", "--list")
        said = _git(view, *listing, cwd=view)
    pairs = (entry.partition("\n") for entry in (said or "").split("\0"))
    return {key: value for key, _, value in pairs}


def _show(view: Path, own: Path, shared: Path, values: Mapping[str, str]) -> None:
    """Make the view: links to data, and a configuration without any program."""
    for name, place in (*((name, shared) for name in _SHARED), *((name, own) for name in _OWN)):
        mode = 0
        with contextlib.suppress(FileNotFoundError):
            mode = (place / name).stat().st_mode
        if name == "HEAD":
            (view / name).write_text(_first_line(own / name) + "\n")
        elif stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            (view / name).symlink_to(place / name)
    for part in own.glob("sharedindex.*"):
        (view / part.name).symlink_to(part)
    lines = ["[core]", "\trepositoryformatversion = 1", "\tbare = false"]
    for key in _PLAIN:
        if _WORD.fullmatch(values.get(key, "")):
            section, _, name = key.partition(".")
            lines += [f"[{section}]", f"\t{name} = {values[key]}"]
    (view / "config").write_text("\n".join(lines) + "\n")


def _git(
    home: Path, *arguments: str, cwd: Path, more: Mapping[str, str] | None = None
) -> str | None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    alone = {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1",
    }
    try:
        done = subprocess.run(
            ["git", "--no-pager", "--no-optional-locks", *arguments],
            capture_output=True,
            cwd=cwd,
            env={**environ, **alone, **(more or {})},
            stdin=subprocess.DEVNULL,
            timeout=GIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
