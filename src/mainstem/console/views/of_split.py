"""Views of the split, and of what is damaged."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class SplitWriteGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """The positions of one write group, as block indexes: `pruned` <= `split` <= `committed`."""

    committed: int
    split: int
    pruned: int
    lag_bytes: int
    lag_seconds: float
    """Age of the oldest unsplit block; 0 when there is none."""
    files: int
    waits_for: str = ""
    """Why the write group's finished splits cannot be recorded now; empty: they can."""


class DamagedFileView(msgspec.Struct, frozen=True, kw_only=True):
    """A run on disk 2 that is missing or cannot be read as it should."""

    name: str
    reason: str
    since_ms: int
    """When it was found, ms since the epoch."""


class LeaseView(msgspec.Struct, frozen=True, kw_only=True):
    holder: str
    fence: int
    expires_in_seconds: float


class DamagedBlockView(msgspec.Struct, frozen=True, kw_only=True):
    """A damaged block of the journal before which the split of its write group waits."""

    group: int
    block: int
    fault: str
    """The block's place, its fault, and the remedy."""
    seconds: float
    """How long ago it was found."""


class DamagedProducersView(msgspec.Struct, frozen=True, kw_only=True):
    """A damaged page of a file of idempotent producers: other replicas are asked for the producers, or no
    longer have some."""

    group: int
    fault: str
    """Its place."""
    lost: int
    """Producers that no replica knows; 0 while replicas are asked."""
    seconds: float
    """How long ago it was found."""


class SplitView(msgspec.Struct, frozen=True, kw_only=True):
    groups: dict[str, SplitWriteGroupView]
    """By the write group's number."""
    splitter: str
    """The state of the embedded splitter, in words: off, waiting, starting, running, failed (why)."""
    lease: LeaseView | None
    last_error: str | None
    last_progress: dict[str, object] | None
    """The last StreamingQueryProgress figures; None before the first trigger."""
    damaged_files: Sequence[DamagedFileView] = ()
    """Not mended yet."""
    damaged_blocks: Sequence[DamagedBlockView] = ()
    """The damaged blocks before which the splits of write groups wait."""
    damaged_producers: Sequence[DamagedProducersView] = ()
    """Damaged pages of producers that are not read back yet, or lost."""


class SharedStoreView(msgspec.Struct, frozen=True, kw_only=True):
    """The object store that all files of the cluster's queue store lie in."""

    url: str
    folder: str
    """The cluster's, in the store. How the store is reached is told over node RPC alone."""


class SplitEndpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The address of the node's split service (node RPC), and the directory for runs."""

    host: str
    port: int
    store_dir: str
    """The queue store's directory, absolute, as the node sees it."""
    shared_store: SharedStoreView | None = None
    """None: files lie in `store_dir`, and the answer has no such field, as those of earlier versions."""
