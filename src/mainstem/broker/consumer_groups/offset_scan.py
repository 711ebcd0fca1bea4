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

VALUE_START = b"\x00\x04"
"""The version of a value with a topic id."""
ONE_TAG = b"\x01\x00\x10"
"""Behind the timestamp of such a value: one tagged field, tag 0, of 16 bytes."""
TOPIC_ID_BYTES = 16
_METADATA_AT = 14
_TIMESTAMP_BYTES = 8
_OFFSET = struct.Struct(">q")
_OFFSET_AT = 2
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
    if value[:2] != VALUE_START or len(value) <= _METADATA_AT:
        return False
    length = value[_METADATA_AT]  # of the metadata and one
    tags_at = _METADATA_AT + length + _TIMESTAMP_BYTES
    return (
        0 < length < _ONE_BYTE_MAX
        and len(value) == tags_at + len(ONE_TAG) + TOPIC_ID_BYTES
        and value[tags_at : tags_at + len(ONE_TAG)] == ONE_TAG
        and (length == 1 or value[_METADATA_AT + 1 : _METADATA_AT + length].isascii())
    )


def written_offset(body: bytes, start: int, stop: int) -> WrittenOffset | None:
    """What the record between two positions of a batch's records says, if it is a committed offset in today's form."""
    try:
        position = start + 1  # behind the attributes
        for _ in range(2):  # the deltas of timestamp and offset
            while body[position] >= _ONE_BYTE_MAX:
                position += 1
            position += 1
        key_size, key_at = _size(body, position)
        key_stop = key_at + key_size
        value_size, value_at = _size(body, key_stop)
        value_stop = value_at + value_size
        if min(key_size, value_size) < 0 or value_stop + 1 != stop or body[value_stop] != 0:
            return None  # a deletion, or with headers
        if body[key_at] != 0 or body[key_at + 1] > 1:
            return None
        group_stop = key_at + 4 + (body[key_at + 2] << 8 | body[key_at + 3])
        topic_stop = group_stop + 2 + (body[group_stop] << 8 | body[group_stop + 1])
        value = body[value_at:value_stop]
        if topic_stop + 4 != key_stop or not is_todays(value):
            return None
        found = WrittenOffset(
            body[key_at + 4 : group_stop].decode(),
            body[group_stop + 2 : topic_stop].decode(),
            int.from_bytes(body[topic_stop:key_stop], "big", signed=True),
            value,
        )
        untrack(found)  # of texts and numbers; some hundred thousand are read together while a node starts
        return found
    except (IndexError, UnicodeDecodeError):
        return None


def _size(body: bytes, position: int) -> tuple[int, int]:
    """A length of one or two bytes, with the position behind it; -1 for any other."""
    first = body[position]
    if first < _ONE_BYTE_MAX:
        return (-1 if first & 1 else first >> 1), position + 1
    second = body[position + 1]
    if first & 1 or second >= _ONE_BYTE_MAX:
        return -1, position + 2
    return (first & 0x7F | second << 7) >> 1, position + 2
