"""Names of the objects of the remote tier and of shared stores, below the folder that a cluster has in its store.

    groups/<write group>/files/<path of the file>     a file of the tier, and what lies beside it
    groups/<write group>/chain/<number, 20 digits>    a change, as the log has it
    groups/<write group>/images/<number, 20 digits>   all that counted with that change
    groups/<write group>/head                         a hint at the newest change
    topics/lists/<version, 20 digits>                 the topics of the cluster, as of this entry of the metadata's log
    topics/head                                       a hint at the newest list
    owner                                             changes while the cluster lives
    owners/<number, 20 digits>                        in its place, where the store replaces no objects

A topic may have a name that no object can have: one that begins with a dot, or is longer than a part of a name. Such
a part of a path is written with `=`, which no topic's name has: `=2E` for the dot, and cut in two, the first of which
ends in `=`.
"""

from __future__ import annotations

from mainstem.storage.store_files.store_file import paths_of

PART_LENGTH_MAX = 200
"""Of what lies between two slashes, as `object_stores/names.py` has it."""

GROUPS = "groups"
TOPICS = "topics"
"""The two folders of a cluster."""

TOPIC_LISTS = f"{TOPICS}/lists"
"""The prefix of the lists of topics."""

TOPIC_HEAD = f"{TOPICS}/head"

OWNER = "owner"

OWNERS = "owners"
"""The prefix of what takes its place."""

_DOT = "=2E"


def group_folder(group: int) -> str:
    """The prefix of all objects of a write group."""
    return f"{GROUPS}/{group}"


def file_objects(group: int, name: str) -> list[str]:
    """The objects of a file: itself, and last those of what lies beside it. Raises `StorageError` for what cannot be a
    file's name."""
    return [object_of(group, path) for path in paths_of(name)]


def object_of(group: int, path: str) -> str:
    """The object of a path below the root of the queue store (`store_file.paths_of`)."""
    return f"{group_folder(group)}/files/" + "/".join(map(_as_part, path.split("/")))


def write_group_of(name: str) -> int:
    """The write group in whose folder an object of a file lies."""
    return int(name.split("/", 2)[1])


def change_object(group: int, number: int) -> str:
    return f"{group_folder(group)}/chain/{number:020d}"


def image_object(group: int, number: int) -> str:
    return f"{group_folder(group)}/images/{number:020d}"


def head_object(group: int) -> str:
    return f"{group_folder(group)}/head"


def topic_list_object(version: int) -> str:
    return f"{TOPIC_LISTS}/{version:020d}"


def owner_object(number: int) -> str:
    return f"{OWNERS}/{number:020d}"


def _as_part(part: str) -> str:
    """A part of a path, as an object's name may have it."""
    if len(part) > PART_LENGTH_MAX:
        cut = PART_LENGTH_MAX - len(_DOT)
        return f"{_as_part(part[:cut])}=/{_as_part(part[cut:])}"
    return _DOT + part[1:] if part.startswith(".") else part
