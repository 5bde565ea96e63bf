"""``checkpoint_storage``: which checkpoints are kept, and the object store that they are copied to.

A secret of the store is ``{env: NAME}`` or ``{file: PATH}``; of one that the config had as it is,
``{stored: NAME}`` is left, as of ``data.secrets`` (``store.config.data_secrets``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from hpcdet.store.fs.typed_fields import Bytes, Key

SECTION = "checkpoint_storage"
STORES = ("s3", "gcs", "azure")
"""Values of ``type`` that are object stores."""
SECRETS = ("access_key", "secret_key", "connection_string", "credential")
KEYS = {
    "s3": ("bucket", "prefix", "endpoint_url", "access_key", "secret_key"),
    "gcs": ("bucket", "prefix"),
    "azure": ("container", "prefix", "account_url", "connection_string", "credential"),
}
"""The keys of each store."""
OF_STORES = frozenset({"type", *(key for keys in KEYS.values() for key in keys)})
"""The keys that say where copies go."""

_Name = Annotated[str | None, Key(sparse=True, min_length=1)]
_Secret = Annotated[dict[str, str] | None, Key(kind=str | dict[str, str] | None, sparse=True)]


@dataclass(frozen=True)
class CheckpointStorage:
    type: Literal["shared_fs", "directory", "s3", "gcs", "azure"] = "shared_fs"
    """Checkpoints always lie in the experiment's folder, which is all that shared_fs and directory
    mean here. s3, gcs and azure: those that are kept are copied to an object store, too."""
    bucket: _Name = None
    """The bucket, of s3 and gcs."""
    container: _Name = None
    """The container, of azure."""
    prefix: _Name = None
    """The folder in the bucket or container; the experiment's id is added."""
    endpoint_url: _Name = None
    """Of s3: another server than Amazon's, as http://HOST:PORT."""
    access_key: _Secret = None
    """Of s3, with secret_key: {env: NAME} or {file: PATH}; absent: as the AWS tools find it."""
    secret_key: _Secret = None
    """Of s3: {env: NAME} or {file: PATH}. A key as it is leaves the config, as data.secrets."""
    account_url: _Name = None
    """Of azure: https://ACCOUNT.blob.core.windows.net, where there is no connection_string."""
    connection_string: _Secret = None
    """Of azure: {env: NAME} or {file: PATH}, as secret_key."""
    credential: _Secret = None
    """Of azure, with account_url: an account key or SAS token, as secret_key; absent: as the Azure
    tools find it."""
    host_path: str | None = None
    """Determined's; has no effect here, with a warning."""
    storage_path: str | None = None
    """Determined's; has no effect here, with a warning."""
    save_experiment_best: Annotated[int, Key(ge=0)] = 0
    """Keep this many checkpoints that are best over all trials."""
    save_trial_best: Annotated[int, Key(ge=0)] = 1
    """Keep this many best checkpoints of each trial."""
    save_trial_latest: Annotated[int, Key(ge=0)] = 1
    """Keep this many latest checkpoints of each trial."""
    local_staging: Annotated[str | None, Key(pattern="^[/$]")] = None
    """Commit checkpoints on the node's own disk first, below this folder ($TMPDIR, /dev/shm), and
    copy them from there beside the training. For trials on one node."""
    max_paused_bytes: Annotated[Bytes | None, Key(ge=0)] = None
    """Warn when checkpoints of paused trials hold more than this, in bytes or as '500G'."""

    @property
    def remote(self) -> bool:
        """True if what is kept is copied to an object store."""
        return self.type in STORES
