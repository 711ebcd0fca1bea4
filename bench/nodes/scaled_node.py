"""A node whose merges come together at a part of the usual bytes: `python -m bench.nodes.scaled_node 64 serve …`.

Everything else is the node of `mainstem serve`, and so are the arguments behind the scale. Months of a large store
fit a small disk in this way: runs, packed files, segments and the bytes that a merge waits for have a 64th of their
size, and a 64th of a TiB has as many files as a TiB has otherwise. `64/whole` leaves packed files as large as they
are: each span has a 64th of its files then, each of them with the queues and the index that it has in a large store.
"""

from __future__ import annotations

import sys

from mainstem.cli.main import main as command_line
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.split import merge_log

WHOLE = "/whole"


def bytes_of(lines: MergeLines) -> dict[str, int]:
    """The lines in bytes, by their names."""
    return {name: line for name, line in lines._asdict().items() if "bytes" in name}


def scaled(scale: str) -> MergeLines:
    """The lines of a node's merges, each divided by `scale`, but for that of packed files where it ends in `WHOLE`."""
    lines = MergeLines()
    least = lines._replace(**{name: line // int(scale.removesuffix(WHOLE)) for name, line in bytes_of(lines).items()})
    return least._replace(packed_bytes=lines.packed_bytes) if scale.endswith(WHOLE) else least


def main() -> None:
    lines = scaled(sys.argv[1])
    lines.validate()
    setattr(merge_log, MergeLines.__name__, lambda: lines)  # where the node takes its lines from
    command_line(sys.argv[2:])


if __name__ == "__main__":
    main()
