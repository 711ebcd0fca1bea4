"""A replica that starts from the journal alone knows the members of its write group at each block of its log."""

from __future__ import annotations

import random

from tests.storage.write_groups.test_replicated_write_group import Cluster, Member, told

from mainstem.raft import Entry, HardState, Membership, RaftConfig
from mainstem.raft.messages import Append
from mainstem.storage.journal.encoding.format import KIND_MEMBERSHIP, KIND_NO_OP, BlockHeader
from mainstem.storage.write_groups.log_block import LogBlock, encode_membership, received_block, recovered_block
from mainstem.storage.write_groups.write_group import WriteGroup

BEGAN = Membership.of((1, 2, 3))
WITH_A_GUEST = Membership.of((1, 2, 3), (4,))


def _block(index: int, membership: Membership | None = None) -> LogBlock:
    """As the journal has it, in term 1."""
    kind, payload = (KIND_NO_OP, b"") if membership is None else (KIND_MEMBERSHIP, encode_membership(membership))
    header = BlockHeader(kind, 0, 1, index, 80, 0, len(payload), 0, 4096 + 80 * index, 0, 0, 1)
    return recovered_block(header, b"", payload, f"block {index}")


def _started(member: Member) -> WriteGroup:
    """The write group after a start without a checkpoint: four blocks are read back, the third adds a learner."""
    group = WriteGroup(0, member.table, member.applied, member, block_bytes_max=5000, batch_bytes_max=1 << 20)
    for block in (_block(1), _block(2), _block(3, WITH_A_GUEST), _block(4)):
        group.blocks.read_back(block)
    group.consensus.join(RaftConfig(node_id=1), HardState(1, 2), BEGAN, random.Random(1))
    return group


def test_a_leader_replaces_the_first_membership_that_was_logged() -> None:
    async def story(cluster: Cluster) -> None:
        group = _started(cluster.members[1])
        assert group.consensus.learners == {4}, "it counts from the moment that it is logged"
        assert not group.consensus.committed_membership.learners, "it is not known to be committed"
        no_op = received_block(KIND_NO_OP, 2, 3, 1, 0, memoryview(b""), memoryview(b""))
        entry = Entry(2, 3, KIND_NO_OP, no_op.size, no_op)
        group.consensus.received([Append(3, 1, 2, previous_index=2, previous_term=1, commit_index=2, entries=(entry,))])
        assert group.consensus.failure is None
        assert (group.last_index, group.blocks.term(3)) == (3, 2)
        assert (group.consensus.voters, group.consensus.learners) == (BEGAN.voters, frozenset())

    told(story)


def test_a_snapshot_may_stand_before_the_first_membership_that_was_logged() -> None:
    async def story(cluster: Cluster) -> None:
        group = _started(cluster.members[1])
        for split, membership in ((0, BEGAN), (2, BEGAN), (3, WITH_A_GUEST), (4, WITH_A_GUEST)):
            group.blocks.snapshots_come_from(lambda split=split: split)  # type: ignore[misc]
            assert group.blocks.snapshot().membership == membership

    told(story)
