"""Bugs to plant where brokers have no storage, by `cluster.planted`. Those of write groups, which take an append of a
coordinator whom another one has followed, say, are planted there."""

from __future__ import annotations

from typing import Any

from tests.simulation.cluster.planted import Plant, undecided

from mainstem.model import Buffer, Outcome, QueueSlice, slot_of
from mainstem.nameserver.waits import MetadataWaits
from mainstem.storage.serving.tail_sessions import TailSession


def _tails_beyond_what_is_confirmed() -> tuple[type, str, Any]:
    """A leader tells brokers what its log has, confirmed or not."""
    read = TailSession._read

    async def beyond(session: TailSession) -> list[QueueSlice]:
        slices = await read(session)
        store: Any = session._messages
        queue_ids = list(session.positions)
        for queue_id, offsets in zip(queue_ids, await store.offsets(queue_ids), strict=True):
            position = session.positions.get(queue_id)
            if offsets is None or position is None or position != offsets.high_watermark:
                continue
            batches = undecided(store._groups[store._slots[slot_of(queue_id)]], queue_id, position)
            if batches:
                session.positions[queue_id] = end = next_offset(batches[-1])
                told = offsets._replace(high_watermark=end)
                slices.append(QueueSlice(queue_id, Outcome.OK, batches, told, None, end))
        return slices

    return TailSession, "_read", beyond


def next_offset(batch: Buffer) -> int:
    """The offset behind a batch: its base, and the delta of its last record."""
    return int.from_bytes(bytes(batch[:8]), "big") + int.from_bytes(bytes(batch[23:27]), "big") + 1


def _offsets_of_deleted_topics_told() -> tuple[type, str, Any]:
    """A coordinator does not wait for the metadata that the leader knows."""

    async def followed(_waits: MetadataWaits, _index: int) -> None:
        return

    return MetadataWaits, "followed", followed


BROKER_PLANTS: dict[str, Plant] = {
    "tails-beyond-what-is-confirmed": _tails_beyond_what_is_confirmed,
    "offsets-of-deleted-topics-told": _offsets_of_deleted_topics_told,
}

BROKER_BREAKS = {"tails-beyond-what-is-confirmed": "B", "offsets-of-deleted-topics-told": "H"}
"""As `cluster.planted.BREAKS`."""
