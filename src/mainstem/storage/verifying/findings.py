"""The findings of a check of a store, and what their reader is to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from mainstem.storage.store_files.store_file import has_index_beside

FINDINGS_PER_FILE_MAX = 20
"""A file of zeros has a finding per extent; more than these say nothing new."""


class Affected(NamedTuple):
    """Offsets of a queue that a fault may take from readers."""

    queue_id: int
    first_offset: int
    last_offset: int | None
    """None: up to where is not known."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not what it should be."""

    path: str
    """Below the store's directory; of the manifest, whole."""
    position: int | None
    """Of the first wrong byte, or of the extent or entry that has it; None: `what` says more, or the whole file is."""
    what: str
    advice: str
    name: str = ""
    """The store file that it belongs to, as the manifest has it; empty: none."""
    affected: Sequence[Affected] = ()


class UnnamedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file in the store that the manifest does not name. It does not count, and harms nobody."""

    path: str
    bytes: int
    kind: str
    """`temporary`: written by a split or a merge, or left when one died; `orphan`: written and not recorded, or not
    removed yet; `unknown`: none of Mainstem's."""


MANIFEST_ADVICE = (
    "stop the node and have it made anew from its copy on disk 2 (`mainstem store repair --manifest`); or restore "
    "write_dir and store_dir as a whole, or have another node take the place of this one"
)
COPY_ADVICE = "no message is lost; `mainstem store repair` sets the copy aside, and the node writes a new one"
MARK_ADVICE = "`mainstem store repair` writes it anew from the manifest"
KAFKA_INDEX_ADVICE = "no message is lost, a node does not read this file; `mainstem store repair` makes it anew"
OBJECT_ADVICE = (
    "restore the object under its name, from a version that the bucket keeps or from a copy; until then reads of these "
    "offsets fail, and everything else is served. If it is lost for good: `mainstem store give-up`"
)
KAFKA_OBJECT_ADVICE = "no message is lost, and no node reads this object; what replaces its file brings a new one"
CHAIN_ADVICE = (
    "restore the object under its name, from a version that the bucket keeps or from a copy; while the cluster's own "
    "nodes live they do not need it"
)
HEAD_ADVICE = "no message is lost: it is a hint, and whoever reads the chain finds its end without it"
ORPHAN_ADVICE = "a running node removes these by itself, some time after it first saw them"


def file_advice(path: str) -> str:
    """The remedy for a store file whose content is not what it was."""
    return (
        "in a cluster: run the node, which takes what is damaged from another replica; `mainstem split status` names "
        f"it until then. A node alone: restore {path} from a copy"
    )


def extents_advice(name: str, path: str) -> str:
    """The same about a file's index."""
    if has_index_beside(name):
        return "`mainstem store repair` makes it anew from the .log; or " + file_advice(path)
    return file_advice(path)
