"""Reads committed offsets out of batches of the internal topic, many at once.

A node that begins to coordinate a million offsets reads each of them, and is asked for few: so nothing is made of an
offset but its place (group, topic, partition) and the bytes of its value, which are read when somebody asks. That takes
a third of the time, and of the memory, of messages.

Only records in the form that nodes write today are read here: key of version 0 or 1, value of version 4 with nothing
behind its topic id. Records of any other form, and damaged ones, are left to the reader of all.
"""

from __future__ import annotations

import struct

from mainstem.broker.consumer_groups.step import WrittenOffset
from mainstem.kernel import untrack
from mainstem.protocol.errors import CorruptBatch
from mainstem.protocol.records.record import read_signed_varint

VALUE_VERSION = 4
"""That of a value with a topic id, below a byte of zero."""
ONE_TAG = b"\x01\x00\x10"
"""Behind the timestamp of such a value: one tagged field, tag 0, of 16 bytes."""
TOPIC_ID_BYTES = 16
_METADATA_AT = 14
_TIMESTAMP_BYTES = 8
_OFFSET = struct.Struct(">q")
_OFFSET_AT = 2
_KEY_VERSION = 1
_SHORT, _INDEX = struct.Struct(">h"), struct.Struct(">i")
_ONE_BYTE_MAX = 0x80
"""Lengths below take one byte."""


def offset_in(value: bytes) -> int:
    """The committed offset, of a value in today's form."""
    offset: int = _OFFSET.unpack_from(value, _OFFSET_AT)[0]
    return offset


def topic_id_in(value: bytes) -> bytes:
    """The 16 bytes of the topic's id, of a value in today's form."""
    return value[-TOPIC_ID_BYTES:]


def is_todays(value: bytes) -> bool:
    """Whether a value has today's form, and can be read."""
    try:
        return _stands_in(value, 0, len(value))
    except IndexError:
        return False


def key_bytes(offset: WrittenOffset) -> bytes:
    """The key of its record."""
    group, topic = offset.group.encode(), offset.topic.encode()
    return b"".join(
        (_SHORT.pack(_KEY_VERSION), _SHORT.pack(len(group)), group, _SHORT.pack(len(topic)), topic,
         _INDEX.pack(offset.partition))
    )  # fmt: skip


def _stands_in(body: bytes, start: int, stop: int) -> bool:
    """Whether a value in today's form stands between two positions. Raises IndexError where the bytes end before it."""
    length = body[start + _METADATA_AT]  # of the metadata and one
    metadata_stop = start + _METADATA_AT + length
    tags_at = metadata_stop + _TIMESTAMP_BYTES
    return (
        body[start] == 0
        and body[start + 1] == VALUE_VERSION
        and 0 < length < _ONE_BYTE_MAX
        and tags_at + len(ONE_TAG) + TOPIC_ID_BYTES == stop
        and body.startswith(ONE_TAG, tags_at)
        and (length == 1 or body[start + _METADATA_AT + 1 : metadata_stop].isascii())
    )


def written_offset(body: bytes, start: int, stop: int) -> WrittenOffset | None:
    """The committed offset that the record between two positions of a batch's records is, if it has today's form."""
    try:
        position = start + 1  # behind the attributes
        while body[position] >= _ONE_BYTE_MAX:  # the delta of the timestamp
            position += 1
        position += 1
        while body[position] >= _ONE_BYTE_MAX:  # that of the offset
            position += 1
        size, key_at = read_signed_varint(body, position + 1)
        key_stop = key_at + size
        if size < 0 or body[key_at] != 0 or body[key_at + 1] > 1:
            return None
        size, value_at = read_signed_varint(body, key_stop)
        value_stop = value_at + size
        if size < 0 or value_stop + 1 != stop or body[value_stop] != 0:
            return None  # a deletion, or with headers
        group_stop = key_at + 4 + (body[key_at + 2] << 8 | body[key_at + 3])
        topic_stop = group_stop + 2 + (body[group_stop] << 8 | body[group_stop + 1])
        if topic_stop + 4 != key_stop or not _stands_in(body, value_at, value_stop):
            return None
        found = WrittenOffset(
            body[key_at + 4 : group_stop].decode(),
            body[group_stop + 2 : topic_stop].decode(),
            int.from_bytes(body[topic_stop:key_stop], "big", signed=True),
            body[value_at:value_stop],
        )
    except (IndexError, UnicodeDecodeError, CorruptBatch):
        return None  # the reader of all says what is wrong, if anything is
    untrack(found)  # of texts and numbers; some hundred thousand are read together while a node starts
    return found
