"""Finds classes and modules below src/mainstem that share a name: one thing, one name; one name, one thing.

`python -m tools.name_twins` prints them, and fails where there are any. Names that may be shared stand here, with the
reason; an entry that nothing needs any more fails, too. Classes that begin with an underscore are known in their own
module alone, and those of the compiled kernel have the names of their twins in `kernel/pure/`: neither are looked at.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

SOURCE = Path("src/mainstem")


class Allowed(NamedTuple):
    """Shared names, and why: modules in some folders (`cli`: also in those below it), and names."""

    folders: Mapping[str, str]
    modules: Mapping[str, str]
    classes: Mapping[str, str]


ALLOWED = Allowed(
    folders={
        "cli": "a command's module is called as people type the command",
        "rpc/messages": "what nodes say to each other about a thing is called as the thing",
        "broker/handlers": "a handler is called as the API that it answers, and so are the API's messages",
    },
    modules={
        "errors": "each room has one",
        "config": "each room has one",
        "fetch": "the kernel's scan of a request, and the request's messages",
        "produce": "the kernel's scan of a request, and the request's messages",
    },
    classes={
        "EpochEndOffset": "Kafka's name for a part of two of its messages",
        "LeaderIdAndEpoch": "Kafka's name for a part of two of its messages",
        "NodeEndpoint": "Kafka's name for a part of two of its messages",
        "HeartbeatResponse": "Kafka and Raft both have a message of this name",
    },
)


def twins(source: Path, allowed: Allowed) -> Iterator[str]:
    """One line per name that several have and may not share, and per entry of `allowed` that is not needed."""
    modules: dict[str, list[str]] = defaultdict(list)
    classes: dict[str, list[str]] = defaultdict(list)
    folders_met: set[str] = set()
    places = {path: path.relative_to(source).as_posix() for path in sorted(source.rglob("*.py"))}
    stems = [PurePosixPath(place).stem for place in places.values()]
    for path, place in places.items():
        for found in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(found, ast.ClassDef) and not found.name.startswith("_"):
                classes[found.name].append(place)
        folder = next((folder for folder in allowed.folders if place.startswith(f"{folder}/")), None)
        if path.stem == "__init__":
            continue
        if folder is None:
            modules[path.stem].append(place)
        elif stems.count(path.stem) > 1:
            folders_met.add(folder)
    for kind, found_by_name, may_share in (
        ("modules", modules, allowed.modules),
        ("classes", classes, allowed.classes),
    ):
        shared = {name: having for name, having in sorted(found_by_name.items()) if len(having) > 1}
        for name, having in shared.items():
            if name not in may_share:
                yield f"{kind} called {name}: {', '.join(having)}"
        for name in sorted(may_share.keys() - shared.keys()):
            yield f"{kind} called {name} may be several, and there are not"
    for folder in sorted(allowed.folders.keys() - folders_met):
        yield f"modules in {folder}/ may share their names with others, and none does"


def main() -> None:
    found = list(twins(SOURCE, ALLOWED))
    for line in found:
        print(line)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
