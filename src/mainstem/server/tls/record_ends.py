"""The ends of the records of a TLS stream, by the lengths in their headers, which are never encrypted.

OpenSSL is given record by record: it has data for whoever reads after each whole one, and need not be asked after a
part of one, which it answers with an exception. Which lengths may be is for OpenSSL to say: it refuses a stream that
lies about them.
"""

from __future__ import annotations

PIECE_BYTES = 16 * 1024 + 256 + 5
"""Given to OpenSSL at once: the largest record. OpenSSL keeps as much memory for each connection as it was ever given
at once; four times as much makes reading a tenth cheaper."""

_HEADER_BYTES = 5
"""A kind, two bytes of a version, and two of the length of what follows."""


class RecordEnds:
    """Of one stream, whose pieces come in their order."""

    __slots__ = ("_header", "_left")

    def __init__(self) -> None:
        self._left = 0
        """Bytes that the last record begun lacks, once its header is known."""
        self._header = b""
        """The first bytes of the next record, as long as that has no header."""

    @property
    def whole(self) -> bool:
        """Whether the last piece ended with its record."""
        return not self._left and not self._header

    def end_of(self, received: memoryview, at: int, bytes_max: int = PIECE_BYTES) -> int:
        """The end of the piece that begins there: that of its record if that is short enough, that of what has come
        otherwise."""
        come = len(received) - at
        if not self._left:
            missing = _HEADER_BYTES - len(self._header)
            self._header += bytes(received[at : at + min(missing, bytes_max)])
            if len(self._header) < _HEADER_BYTES:
                return at + min(come, missing, bytes_max)
            self._left = missing + (self._header[3] << 8 | self._header[4])
            self._header = b""
        size = min(self._left, come, bytes_max)
        self._left -= size
        return at + size

    def pass_over(self, received: memoryview) -> None:
        """These bytes have been taken."""
        at = 0
        while at < len(received):
            at = self.end_of(received, at)
