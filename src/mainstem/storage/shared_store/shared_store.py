"""The place of a cluster's shared store, and the way to it: a node tells both to its splitters."""

from __future__ import annotations

import msgspec

from mainstem.storage.object_stores.config import ObjectStoreConfig


class SharedStore(msgspec.Struct, frozen=True, kw_only=True):
    """An object store that all files of a cluster's queue store lie in, written once for all replicas."""

    url: str
    """As `object_stores/urls.py` takes it; a path is the same for all nodes and executors."""
    folder: str
    """The cluster's, in the store: names of objects (`store_files/object_names.py`) begin there."""
    config: ObjectStoreConfig = ObjectStoreConfig()
