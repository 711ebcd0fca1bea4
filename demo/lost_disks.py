"""The last chapter of `make demo-tiers`: both disks of the node are lost, and an empty one goes on from S3.

The node is killed, and its two directories are deleted. `mainstem store adopt --list` says what S3 still has, `--into`
makes a new disk 1 of it, and the node starts on that with an empty disk 2. The tiered topic is read whole, at the
offsets it had, and takes new messages far behind them. The topic that was on disk 2 alone is empty, and that is said.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping

from demo.cold_reader import ColdReader
from demo.commands import run
from demo.messages.ledger import Reading
from demo.messages.readers import read_whole
from demo.messages.sender import Sender
from demo.node_process import NodeProcess
from demo.summary import Check, say, show
from demo.waiting import wait_until

CHAINED_SECONDS_MAX = 30.0
"""The node writes within some seconds what counts in the store."""
READING_SECONDS_MAX = 60.0


class LostDisks:
    """The loss, what is adopted, and how it goes on; `tell` goes through them."""

    def __init__(self, node: NodeProcess, url: str, reader: ColdReader, topics: Mapping[str, int]) -> None:
        """`url`: of the store; `topics`: name -> partitions, the tiered one first."""
        self._node = node
        self._url = url
        self._reader = reader
        self._topics = topics
        self._tiered, self._local = topics

    def tell(self, before: Mapping[str, Reading], send: Callable[[Sender], None]) -> list[Check]:
        """`before`: all topics as they were read last; `send` sends some more to the tiered one. Raises NodeFailed,
        DemoFailed, TimeoutError."""
        self._lose()
        adopted = self._adopt()
        sender = Sender(self._node.addresses["kafka"], [self._tiered], compression="none")
        send(sender)
        after = read_whole(self._node.addresses["kafka"], self._topics, READING_SECONDS_MAX)[self._tiered]
        old, new = before[self._tiered].fingerprints, after.fingerprints
        behind = set(new) - set(old)
        ends: dict[int, int] = {}
        for partition, offset in old:
            ends[partition] = max(offset, ends.get(partition, -1))
        return [
            Check(
                "both disks lost: every message that was in S3 is there, at its offset",
                adopted[self._tiered].fingerprints == old and not adopted[self._tiered].repeated,
                f"{len(old):,} messages, read by a node that began with an empty disk",
            ),
            Check(
                f"{self._local}, which S3 never had, is empty, as the docs say",
                not adopted[self._local].fingerprints,
                f"{len(before[self._local].fingerprints):,} messages lost with disk 2",
            ),
            Check(
                "the node goes on: new messages lie behind all old ones, no offset is given out twice",
                len(behind) == sender.rows == sender.acknowledged
                and all(offset > ends[partition] for partition, offset in behind)
                and not after.contradictions,
                f"{len(behind):,} flights from offset {min((offset for _, offset in behind), default=0):,} on",
            ),
        ]

    def _lose(self) -> None:
        wait_until(self._is_chained, "S3 was not told of the last files that count", CHAINED_SECONDS_MAX)
        self._node.kill()
        for directory in (self._node.write_dir, self._node.write_dir.with_name("disk2")):
            shutil.rmtree(directory)
        say("the node is killed, and both of its disks are gone")

    def _adopt(self) -> dict[str, Reading]:
        """The topics, as a node has them that began with what S3 has."""
        show("mainstem store adopt --list", run("store", "adopt", self._url, "--list", *self._node.settings))
        told = run("store", "adopt", self._url, "--into", str(self._node.write_dir), *self._node.settings)
        show("mainstem store adopt --into", told)
        return self._reader.read("the whole year, by a node with new disks")

    def _is_chained(self) -> bool:
        """Whether S3 was told of all that counts in it."""
        return self._node.metric("mainstem_remote_chain_behind_changes") == 0
