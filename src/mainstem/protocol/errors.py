"""The errors of Kafka's wire protocol, by whose fault they are.

The peer's faults: `MalformedMessage`, `UnsupportedVersion` when it comes from reading, and the record
errors. This program's: `UnwritableMessage`, and `UnsupportedVersion` when it comes from writing.
"""

from __future__ import annotations

from mainstem.errors import MainstemError


class ProtocolError(MainstemError):
    """Base of every error of this room."""


class MalformedMessage(ProtocolError):
    """Bytes that are no message. `position` is the index, in the buffer read, of the first byte that made no
    sense."""

    def __init__(self, what: str, position: int) -> None:
        super().__init__(f"{what}, at byte {position}")
        self.what = what
        self.position = position


class UnsupportedVersion(ProtocolError):
    """A version that the message does not have, or a value that the version cannot carry."""


class UnwritableMessage(ProtocolError):
    """A value that does not fit its type on the wire: a number too large, a string too long, a null."""


class CorruptBatch(ProtocolError):
    """A record batch whose structure or checksum is wrong. `position` is where, in the buffer read."""

    def __init__(self, what: str, position: int) -> None:
        super().__init__(f"{what}, at byte {position}")
        self.what = what
        self.position = position


class UnsupportedMagic(ProtocolError):
    """Records in a format other than batch v2 (message formats 0 and 1 ended with Kafka 4)."""

    def __init__(self, magic: int, position: int) -> None:
        super().__init__(f"record format {magic} is not supported, at byte {position}")
        self.magic = magic
        self.position = position


class UnsupportedCompression(ProtocolError):
    """A batch whose attributes name a compression that does not exist."""


class RecordsTooLarge(ProtocolError):
    """Records that decompress to more than the caller allows."""
