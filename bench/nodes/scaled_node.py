"""A node whose merges come together at a part of the usual bytes: `python -m bench.nodes.scaled_node 64 serve …`.

Everything else is the node of `mainstem serve`, and so are the arguments behind the scale. Months of a large store
fit a small disk in this way: runs, packed files, segments and the bytes that a merge waits for have a 64th of their
size, and a 64th of a TiB has as many files as a TiB has otherwise. `64/whole` leaves packed files as large as they
are: each span has a 64th of its files then, each of them with the queues and the index that it has in a large store.
With `64/512` merges come together at a 512th of the usual bytes: they are shorter, and their files have the same size.
"""

from __future__ import annotations

import sys

from mainstem.cli.main import main as command_line
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.split import merge_log

WHOLE = "/whole"
GATHERED = ("level_one_bytes", "wait_bytes_max", "level_two_bytes")
"""The lines that runs or spans come together to before they are merged."""


def bytes_of(lines: MergeLines) -> dict[str, int]:
    """The lines in bytes, by their names."""
    return {name: line for name, line in lines._asdict().items() if "bytes" in name}


def scaled(scale: str) -> MergeLines:
    """The lines of a node's merges, each divided by the number `scale`; but for that of packed files where `WHOLE` is
    behind it, and for those of `GATHERED` where another number is."""
    lines = MergeLines()
    by, _, gathered = scale.removesuffix(WHOLE).partition("/")
    least = lines._replace(**{name: line // int(by) for name, line in bytes_of(lines).items()})
    if scale.endswith(WHOLE):
        return least._replace(packed_bytes=lines.packed_bytes)
    return least._replace(**{name: getattr(lines, name) // int(gathered or by) for name in GATHERED})


def main() -> None:
    lines = scaled(sys.argv[1])
    lines.validate()
    setattr(merge_log, MergeLines.__name__, lambda: lines)  # where the node takes its lines from
    command_line(sys.argv[2:])


if __name__ == "__main__":
    main()
