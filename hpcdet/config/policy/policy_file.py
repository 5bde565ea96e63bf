"""Policy files: those of users, and those that hpcdet ships, by their names."""

from __future__ import annotations

import datetime
import difflib
from pathlib import Path
from typing import Any

from hpcdet import shipped
from hpcdet.config.policy.compile_policy import compile_policy
from hpcdet.errors import ConfigError, IntegrityError
from hpcdet.policy.codes import PolicyRefused
from hpcdet.policy.compiled import PolicyText
from hpcdet.store.folder import trust
from hpcdet.store.fs import bounded_json, files, yaml12

SUFFIX = ".yaml"


def read_policy(name: str, folder: Path | None = None) -> PolicyText:
    """Read and compile a policy.

    Args:
        name: a path, or the name of a shipped policy: one without a slash or an ending.
        folder: where a relative path begins; None: the present folder.

    Raises:
        PolicyRefused: it is wrong (P01 and others), not there, or one that others may write.
    """
    path = find(name, folder)
    hint = "a path begins at the config's folder; hpcdet policy ls lists what hpcdet ships"
    try:
        with trust.open_trusted(path, "policy") as file:
            text = yaml12.text_of(file, str(path))
    except OSError as error:
        what = f"cannot read the policy: {error.strerror}"
        raise PolicyRefused("P01", what, where=str(path), hint=hint) from error
    except IntegrityError as error:
        raise PolicyRefused("P01", error.what, where=str(path), hint=hint) from error
    except ConfigError as error:
        raise PolicyRefused("P01", error.what, where=error.where, hint=error.hint) from error
    today = datetime.datetime.now(datetime.UTC).date()

    def load(name: str) -> Any:
        with trust.open_trusted(path.parent / name, "reference of the policy") as file:
            return bounded_json.json_value(files.bounded_read(file, path.parent / name))

    return PolicyText(text, compile_policy(text, str(path), today, load))


def find(name: str, folder: Path | None = None) -> Path:
    """Return the path of a policy, as ``read_policy`` takes it.

    Raises:
        PolicyRefused: hpcdet ships none of that name.
    """
    if "/" in name or Path(name).suffix:
        return (folder or Path()) / Path(name).expanduser()
    known = shipped_policies()
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}"
    what = f"hpcdet ships no policy named {name!r}"
    raise PolicyRefused("P01", what, where=name, hint=f"{hint}; a file is ./{name}{SUFFIX}")


def shipped_policies() -> dict[str, Path]:
    """The files of shipped policies, by their names, in order."""
    return {path.stem: path for path in sorted(shipped.folder("governance").glob(f"*{SUFFIX}"))}
