"""Every kind of file, damaged in every way, under a node that starts on it. The result is one of three things:

    NO_EFFECT   the file is not needed, or is made again from others: everything acknowledged is read, byte by byte
    REFUSED     the node does not start, and says which file it is and what to do
    ERROR       it starts; whoever reads what is damaged hears an error, and nobody anything else

Never is something served that is not what was acknowledged, nor left out without a word. (Where there are replicas a
node gets blocks and runs back from them; here there are none.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.damage.damaged_node import Directories, Fate, Lives, fate, lives, taken_ahead
from tests.examples import examples

NO_EFFECT, REFUSED, ERROR = "no effect", "refused", "error"

FLIPS = examples(24)
"""Per file, spread over what is in it; and as many in its first bytes."""
PAGE_BYTES = 4096

KINDS: dict[str, Callable[[str], bool]] = {
    "sealed segment": lambda name: name.endswith(".wal"),
    "open segment": lambda name: name.endswith(".wal"),
    "segment index": lambda name: name.endswith(".idx"),
    "pool file": lambda name: name.endswith(".free"),
    "journal lock": lambda name: name == "journal/lock",
    "checkpoint": lambda name: name.endswith(".checkpoint"),
    "hard_states": lambda name: name == "hard_states",
    "starts": lambda name: name == "starts",
    "vote": lambda name: name == "metadata/vote",
    "metadata log": lambda name: name.startswith("metadata/") and name.endswith(".log"),
    "metadata snapshot": lambda name: name.endswith(".snapshot"),
    "metadata lock": lambda name: name == "metadata/lock",
    "manifest": lambda name: name == "manifest.sqlite",
    "manifest log": lambda name: name == "manifest.sqlite-wal",
    "store mark": lambda name: name == "store.mark",
    "manifest copy": lambda name: name.startswith("manifest/"),
    "run": lambda name: name.endswith(".run"),
    "packed file": lambda name: name.endswith(".pack"),
    "queue segment": lambda name: name.endswith(".log") and name.startswith("queues/"),
    "index of a queue segment": lambda name: name.endswith(".extents"),
    "Kafka's index": lambda name: name.endswith((".index", ".timeindex")),
}

DAMAGES = ("bit flip", "truncated", "zeroed", "older copy", "neighbour's")

NOT_NEEDED = {damage: {NO_EFFECT} for damage in DAMAGES}

OUTCOMES: dict[str, dict[str, set[str]]] = {
    "sealed segment": {  # behind its blocks, and in what is split or dead, there is nothing to miss
        "bit flip": {ERROR, NO_EFFECT},
        "truncated": {ERROR},
        "zeroed": {ERROR, NO_EFFECT},
        "older copy": {ERROR},
        "neighbour's": {ERROR},
    },
    "open segment": {
        "bit flip": {ERROR, NO_EFFECT, REFUSED},
        "truncated": {ERROR, NO_EFFECT, REFUSED},
        "zeroed": {NO_EFFECT, REFUSED},  # where it is the segment's header only, the blocks are all there
        "older copy": {REFUSED},
        "neighbour's": {REFUSED},
    },
    "segment index": NOT_NEEDED,
    "pool file": NOT_NEEDED,
    "journal lock": NOT_NEEDED,
    "metadata lock": NOT_NEEDED,
    "checkpoint": {damage: {REFUSED} for damage in DAMAGES},
    # Who is alone has promised its votes to nobody, and nobody knows its starts.
    "hard_states": NOT_NEEDED | {"neighbour's": {REFUSED}},
    "starts": NOT_NEEDED | {"neighbour's": {REFUSED}},
    "vote": {  # twice there
        "bit flip": {NO_EFFECT},
        "truncated": {NO_EFFECT, REFUSED},
        "zeroed": {NO_EFFECT, REFUSED},
        "older copy": {NO_EFFECT},
        "neighbour's": {REFUSED},
    },
    "metadata log": {  # where only the mark at its end is cut off, no entry is; a neighbour of its cluster has the same
        "bit flip": {REFUSED},
        "truncated": {NO_EFFECT, REFUSED},
        "zeroed": {REFUSED},
        "older copy": {REFUSED},
        "neighbour's": {NO_EFFECT},
    },
    "metadata snapshot": {
        "bit flip": {REFUSED},
        "truncated": {REFUSED},
        "zeroed": {REFUSED},
        "older copy": set(),  # the first life made it, and it is the newest
        "neighbour's": {REFUSED},
    },
    "manifest": {  # in pages that sqlite does not use there is nothing to miss
        "bit flip": {NO_EFFECT, REFUSED},
        "truncated": {REFUSED},
        "zeroed": {NO_EFFECT, REFUSED},
        "older copy": {REFUSED},
        "neighbour's": {REFUSED},
    },
    "manifest log": {damage: {REFUSED} for damage in DAMAGES} | {"older copy": set()},
    "store mark": {  # twice there
        "bit flip": {NO_EFFECT},
        "truncated": {NO_EFFECT, REFUSED},
        "zeroed": {NO_EFFECT, REFUSED},
        "older copy": {NO_EFFECT},
        "neighbour's": {REFUSED},
    },
    "manifest copy": NOT_NEEDED,
    "run": {damage: {ERROR} for damage in DAMAGES},
    # The first life merged nothing.
    "packed file": {damage: {ERROR} for damage in DAMAGES} | {"older copy": set()},
    "queue segment": {damage: {ERROR} for damage in DAMAGES} | {"older copy": set()},
    "index of a queue segment": {damage: {ERROR} for damage in DAMAGES} | {"older copy": set()},
    "Kafka's index": NOT_NEEDED,  # Kafka's tools alone read it
}
"""The results allowed of each damage, which depends on where in the file it is, and nothing else. Empty: there is no
such damage."""

REMEDY = re.compile(
    r"restore|put th|take the place|correct node_id|give their addresses|Check that|start the version|reads",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lives, Lives]:
    place = tmp_path_factory.mktemp("lives")
    return lives(place / "node", 1), lives(place / "neighbour", 2)


def name_of(directories: Directories, kind: str) -> str:
    """The file of a kind that is damaged; empty: there is none."""
    names = sorted(
        name
        for tree in (directories.disk1, directories.disk2, directories.manifest)
        for name in tree
        if KINDS[kind](name) and name != taken_ahead(directories)
    )
    if kind == "sealed segment":
        names.pop()
    return names[-1] if names else ""


def damaged(kind: str, damage: str, own: Lives, neighbour: Lives) -> Iterator[tuple[str, bytes]]:
    """The damage done to the file, and its content then."""
    directories = own.killed if kind == "manifest log" else own.second
    name = name_of(directories, kind)
    content = directories.tree(name)[name]
    length = len(content.rstrip(b"\0")) or len(content)
    match damage:
        case "bit flip":
            spread = [place * length // FLIPS for place in range(FLIPS)]
            for at in sorted({*spread, *range(0, min(length, 3 * FLIPS), 3)}) if content else ():
                flipped = bytearray(content)
                flipped[at] ^= 1 << at % 8
                yield f"bit {at % 8} of byte {at}", bytes(flipped)
        case "truncated":
            for size in sorted({0, length // 2, len(content) // 2, max(0, length - 1)}) if content else ():
                yield f"cut at {size}", content[:size]
        case "zeroed":
            for first in range(0, length, PAGE_BYTES):
                end = min(first + PAGE_BYTES, len(content))
                yield f"page at {first}", content[:first] + bytes(end - first) + content[end:]
            if content:
                yield "as a whole", bytes(len(content))
        case "older copy":
            older = name_of(own.first, kind)
            if older and own.first.tree(older)[older] != content:
                yield f"that of {older}", own.first.tree(older)[older]
        case "neighbour's":
            other = neighbour.killed if kind == "manifest log" else neighbour.second
            theirs = name_of(other, kind)
            yield f"that of {theirs}", other.tree(theirs)[theirs]


def outcome(result: Fate, what: str, name: str) -> str:
    assert not result.wrong, f"{what}: {result.wrong}"
    assert not result.changed, f"{what}: refused, and yet changed: {result.changed}"
    if result.refused:
        assert REMEDY.search(result.refused), f"{what}: no remedy: {result.refused}"
        assert "node" in result.refused or Path(name).stem in result.refused, f"{what}: no name: {result.refused}"
        return REFUSED
    return ERROR if result.unread else NO_EFFECT


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_refused_by_name_answered_with_an_error_or_without_effect(
    kind: str, damage: str, nodes: tuple[Lives, Lives], tmp_path: Path
) -> None:
    own, neighbour = nodes
    came_of_it: dict[str, str] = {}
    for what, content in damaged(kind, damage, own, neighbour):
        directories = (own.killed if kind == "manifest log" else own.second).copy()
        name = name_of(directories, kind)
        directories.tree(name)[name] = content
        came_of_it[what] = outcome(fate(tmp_path / "node", directories), f"{kind}, {what}", name)
    if came_of_it or not OUTCOMES[kind][damage]:
        assert bool(came_of_it) == bool(OUTCOMES[kind][damage]), came_of_it
        assert set(came_of_it.values()) <= OUTCOMES[kind][damage], came_of_it
    else:
        assert OUTCOMES[kind] is NOT_NEEDED, f"{kind}: nothing was damaged"


def test_without_damage_everything_is_there(nodes: tuple[Lives, Lives], tmp_path: Path) -> None:
    own, _neighbour = nodes
    for directories in (own.second, own.killed):
        assert fate(tmp_path / "node", directories.copy()) == Fate()
