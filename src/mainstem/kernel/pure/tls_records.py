"""A stream of TLS is given to OpenSSL record by record, and its data are taken into a buffer together.

Pure-Python twin of the compiled class, which spares the interpreter's work for each record of 16 KiB. The ends of
records are known by the lengths in their headers, which are never encrypted: OpenSSL has data for whoever reads after
each whole record, and need not be asked after a part of one, which it answers with an exception. Which lengths may be
is for OpenSSL to say: it refuses a stream that lies about them.

Records may carry no data, or next to none (new keys do, and each costs OpenSSL some microseconds): a stream of such is
barren, and a small piece of it is taken in a turn.
"""

from __future__ import annotations

import ssl
from typing import Final, cast

HEADER_BYTES: Final = 5
"""A kind, two bytes of a version, and two of the length of what follows."""


class TlsRecords:
    """Of one stream, whose pieces come in their order."""

    __slots__ = ("_barren", "_barren_piece_bytes", "_header", "_incoming", "_left", "_piece_bytes", "at",
                 "barren_bytes", "ended", "failure", "over", "turn_over", "unread")  # fmt: skip

    def __init__(self, incoming: ssl.MemoryBIO, piece_bytes: int, barren_piece_bytes: int, barren: int) -> None:
        """OpenSSL is given `piece_bytes` at once at the most. When it has been given more than that without data in it,
        it gets another `barren_piece_bytes` in a turn. A byte of data makes up for `barren` bytes of records."""
        self._incoming = incoming
        self._piece_bytes = piece_bytes
        self._barren_piece_bytes = barren_piece_bytes
        self._barren = barren
        self._left = 0
        """Bytes that the last record begun lacks, once its header is known."""
        self._header = b""
        """The first bytes of the next record, as long as that has no header."""
        self.unread = False
        """Whether OpenSSL may have data that nobody has read."""
        self.barren_bytes = 0
        """Ciphertext that OpenSSL was given, less what the data in it make up for."""
        self.at = 0
        """How much of what has come OpenSSL has."""
        self.turn_over = False
        """Whether no more of it is given to OpenSSL until the next `begin_turn`."""
        self.over = False
        """Whether `read` returned as there is nothing more to read in this turn."""
        self.ended = False
        """Whether the peer has ended the stream."""
        self.failure: ssl.SSLError | None = None
        """The finding of OpenSSL on which `read` returned."""

    @property
    def whole(self) -> bool:
        """Whether the last piece ended with its record."""
        return not self._left and not self._header

    def pass_over(self, received: memoryview) -> None:
        """These bytes have been taken."""
        at = 0
        while at < len(received):
            at = self.end_of(received, at, self._piece_bytes)

    def begin_turn(self) -> None:
        """Another turn begins: `read` is given what has come from its beginning."""
        self.at = 0
        self.turn_over = self.over = False

    def read(self, decrypting: ssl.SSLObject, received: memoryview, buffer: memoryview) -> int:
        """Fill the buffer with the data of the records that OpenSSL has and of those in `received`, behind `at`, until
        it is full, or `over`, `ended` or `failure` says why not. The bytes filled."""
        incoming = self._incoming
        size, room, filled = len(received), len(buffer), 0
        while filled < room:
            if not self.unread:
                if self.at == size or self.turn_over:
                    self.over = True
                    break
                # a record of the largest size has no data until its last byte is there
                self.turn_over = self.barren_bytes > self._piece_bytes
                end = self.end_of(received, self.at, self._barren_piece_bytes if self.turn_over else self._piece_bytes)
                incoming.write(received[self.at : end])
                self.barren_bytes += end - self.at
                self.at = end
                if not self.whole:  # to be told so by OpenSSL costs an exception
                    continue
            wanted = room - filled
            try:
                count = cast(int, decrypting.read(wanted, buffer[filled:]))
            except ssl.SSLWantReadError:
                self.unread = False
                continue
            except ssl.SSLError as error:
                self.failure = error.with_traceback(None)  # which would hold this object
                break
            if not count:
                self.ended = True
                break
            filled += count
            self.barren_bytes = max(0, self.barren_bytes - self._barren * count)
            self.unread = incoming.pending > 0 or (count == wanted and decrypting.pending() > 0)
        return filled

    def end_of(self, received: memoryview, at: int, bytes_max: int) -> int:
        """The end of the piece that begins there: that of its record if that is short enough, that of what has come
        otherwise."""
        come = len(received) - at
        if not self._left:
            missing = HEADER_BYTES - len(self._header)
            self._header += bytes(received[at : at + min(missing, bytes_max)])
            if len(self._header) < HEADER_BYTES:
                return at + min(come, missing, bytes_max)
            self._left = missing + (self._header[3] << 8 | self._header[4])
            self._header = b""
        size = min(self._left, come, bytes_max)
        self._left -= size
        return at + size
