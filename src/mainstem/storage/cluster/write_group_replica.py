"""One write group as the exchange of Raft messages sees it: blocks to send, and blocks received."""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.raft import Entry, Membership, Message
from mainstem.raft.messages import InstallSnapshot
from mainstem.rpc.raft.raft_member import Carried
from mainstem.storage.errors import FormatError
from mainstem.storage.journal.encoding.format import DIRECTORY_ROW_BYTES, KIND_DATA, KINDS
from mainstem.storage.journal.encoding.framing import size_of
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal.stored_block import StoredPlace, read_block
from mainstem.storage.write_groups.log_block import LogBlock, encode_membership, received_block
from mainstem.storage.write_groups.write_group import WriteGroup
from mainstem.storage.write_groups.write_group_blocks import BlockPlace


class WriteGroupReplica:
    """The `rpc.Member` of one write group: gives the exchange blocks to send, and takes in those received. On the wire
    a block is (creation time, rows of its directory), with its directory and payload attached as they are."""

    def __init__(self, group: WriteGroup, journal: Journal) -> None:
        self._group = group
        self._journal = journal

    def received(self, messages: Sequence[Message]) -> None:
        """Step the core with messages. Snapshots come another way, with their content."""
        self._group.consensus.received([message for message in messages if not isinstance(message, InstallSnapshot)])

    def unreachable(self, node_id: int) -> None:
        self._group.consensus.unreachable(node_id)

    def gone(self, node_id: int) -> None:
        self._group.consensus.gone(node_id)

    def carried(self, entry: Entry) -> Carried | None:
        block = entry.data
        if isinstance(block, BlockPlace):
            return None
        if isinstance(block, Membership):
            return Carried((0, 0), (encode_membership(block),))
        if block is None:  # a no-op
            return Carried((0, 0), ())
        assert isinstance(block, LogBlock), block
        if block.payload is None:
            return None
        return Carried((block.created_ms, block.batch_count), (block.directory, block.payload))

    async def load(self, entries: Sequence[Entry]) -> list[Carried]:
        return [self.carried(entry) or await self._read(entry) for entry in entries]

    async def _read(self, entry: Entry) -> Carried:
        """Read a block from the journal. Raises `StorageError` when it is gone or damaged."""
        place = entry.data
        if isinstance(place, LogBlock):
            assert place.header is not None, "only a block in the journal has left memory"
            place = BlockPlace(place.header.position, place.header.length)
        assert isinstance(place, BlockPlace), place
        found = await read_block(
            self._journal,
            StoredPlace(self._group.group, entry.term, entry.index, place.position, place.length),
        )
        header = found.header  # checked, so that damage here is not copied to other replicas
        return Carried((header.created_ms, header.batch_count), [found.directory, found.payload])

    def entry(self, term: int, index: int, kind: int, numbers: tuple[int, ...], attachment: memoryview) -> Entry:
        """Make an entry of a received block. Raises ValueError when the attachment is no block."""
        if len(numbers) != 2 or kind not in KINDS:
            raise ValueError(f"block {index}: kind {kind} with {len(numbers)} numbers")
        created_ms, batch_count = numbers
        directory_bytes = batch_count * DIRECTORY_ROW_BYTES
        if not 0 <= directory_bytes <= size_of(attachment) or (batch_count and kind != KIND_DATA):
            raise ValueError(f"block {index}: {batch_count} batches in {size_of(attachment)} bytes")
        try:
            block = received_block(
                kind,
                term,
                index,
                created_ms,
                batch_count,
                attachment[:directory_bytes],
                attachment[directory_bytes:],
            )
        except FormatError as error:
            raise ValueError(str(error)) from error
        data: object = block.membership if block.membership is not None else block
        return Entry(term, index, kind, block.size, data)
