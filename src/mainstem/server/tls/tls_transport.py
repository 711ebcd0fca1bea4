"""TLS over a plain transport: to the event loop a protocol, to a connection its transport.

Strategy: OpenSSL works on memory alone. Bytes from the socket lie in memory that all connections share, until they are
decrypted, straight into the connection's own buffer; bytes of responses are encrypted into memory that all connections
share, and given to the plain transport within the same call. So a connection that is idle holds little more than
OpenSSL's own state: asyncio's TLS would reserve 256 KiB for each.

Invariants:

* Cleartext is never held: what is read is what the connection's buffer has room for, what is written is encrypted at
once. The received bytes are decrypted as far as that buffer has room, which is charged for, even where the connection
reads no more since its first bytes: so does a plain transport, which hands over a whole read. Of ciphertext a record at
most is held beyond that, and more only where the buffer was made smaller meanwhile, as memory is short. The plain
transport's limits are those of the connection. * The shared memory is empty whenever anybody else is called. * A peer
that sends records with next to no data gets one small piece of them decrypted in a turn of the loop. * Until the
handshake is done there is no connection: the peer has only what `handshakes` allows it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any, cast

from mainstem.address import Address
from mainstem.certificate_files import x509
from mainstem.kernel import TlsRecords
from mainstem.ports import ANONYMOUS
from mainstem.server.tls import handshakes as admission
from mainstem.server.tls.certificates import ListenerCertificate
from mainstem.server.tls.handshakes import Handshakes
from mainstem.server.tls.principals import PrincipalMapping

RECEIVED_BYTES_MAX = 256 * 1024
"""The most that one read from a socket usefully returns."""

SHARED_BYTES_MAX = 32 * 1024
"""The most that a connection has decrypted in a turn of the event loop while clients take turns: some sixty
microseconds, for which all others wait. Reading takes a tenth more of the node's CPU time than with the most there
is."""

RECEIVED_BYTES_LEAST = 16 * 1024
"""Read at least so much, a record, even when the connection's buffer has room for less."""

HELLO_BYTES_MAX = 8 * 1024
"""Read so much at once before the handshake is done: a usual hello is a tenth of it."""

HANDSHAKE_BYTES_MAX = 128 * 1024
"""OpenSSL takes a client's certificates up to 100 KiB."""

PIECE_BYTES = 16 * 1024 + 256 + 5
"""Given to OpenSSL at once: the largest record. OpenSSL keeps as much memory for each connection as it was ever given
at once; reading costs no less with more."""

BARREN = 4
"""Records are barren when less than one part in so many of them is data. New keys (27 bytes, 6 µs each) carry none; a
request in a record of its own is more than half of it."""

BARREN_PIECE_BYTES = 2 * 1024
"""Of a peer that sends barren records, no more than this is decrypted in a turn of the loop: new keys take half a
millisecond, during which nobody else is served."""

BARREN_BYTES_MAX = 256 * 1024
"""A peer that sends so much of them, beyond what its data make up for, is cut off: it has changed its keys ten thousand
times, where a client does so every few gigabytes."""

JOINED_BYTES = 16 * 1024
"""Buffers smaller than a record on average are joined before they are encrypted."""

UNASKED_BYTES_MAX = 1024 * 1024
"""A peer that has OpenSSL answer on its own (new keys) and does not read is cut off at this: four times what the
connection lets the plain transport hold."""

_HANDSHAKE_RECORD = 0x16


class SharedMemory:
    """For all connections of one event loop, empty between two calls."""

    def __init__(self) -> None:
        self.received = memoryview(bytearray(RECEIVED_BYTES_MAX))
        self.outgoing = ssl.MemoryBIO()


class TlsListener:
    """Shared by the connections of one listener."""

    def __init__(
        self,
        certificate: ListenerCertificate,
        mapping: PrincipalMapping,
        handshakes: Handshakes,
        memory: SharedMemory,
        refused: Callable[[str], object],
        done: Callable[[], object],
        shared: Callable[[], bool] = lambda: False,
    ) -> None:
        """`refused` is told in words why a connection ends, `done` of each handshake that succeeded. `shared` says
        whether connections take turns at bringing batches, and read in short ones."""
        self.certificate = certificate
        self.mapping = mapping
        self.handshakes = handshakes
        self.memory = memory
        self.refused = refused
        self.done = done
        self.shared = shared


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    def __init__(self, listener: TlsListener, connection: Callable[[], asyncio.BaseProtocol]) -> None:
        """`connection` makes the protocol that is behind the handshake."""
        super().__init__()
        self._listener = listener
        self._memory = listener.memory
        self._make_protocol = connection
        self._protocol: asyncio.BufferedProtocol | None = None
        """The connection's; None until the handshake is done."""
        self._plain: asyncio.Transport
        self._ssl: ssl.SSLObject | None = None
        self._incoming = ssl.MemoryBIO()
        self._deadline: asyncio.TimerHandle | None = None
        self._handshake_bytes = 0
        self._principal = ANONYMOUS
        self.host, self.port = "unknown", 0
        self._held = b""
        """Ciphertext that has come and waits until the connection reads again."""
        self._records = TlsRecords(self._incoming, PIECE_BYTES, BARREN_PIECE_BYTES, BARREN)
        self._is_reading = True
        self._catching_up = False
        self._drops = False
        """Later bytes of the peer are not looked at any more."""
        self._ended = False
        """Nothing is written any more."""

    # the event loop's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._plain = cast(asyncio.Transport, transport)  # uvloop's are only like it
        address = transport.get_extra_info("peername") or ("unknown", 0)
        self.host, self.port = str(address[0]), int(address[1])
        if not self._listener.handshakes.begin(self):
            self.abort()
            return
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(admission.SECONDS_MAX, self._too_late)

    def get_buffer(self, sizehint: int) -> memoryview:
        received = self._memory.received
        if self._drops:
            return received
        if self._protocol is None:
            return received[:HELLO_BYTES_MAX]
        room = len(cast(memoryview, self._protocol.get_buffer(sizehint)))
        if self._listener.shared():
            room = min(room, SHARED_BYTES_MAX)
        return received[: max(RECEIVED_BYTES_LEAST, room)]

    def buffer_updated(self, nbytes: int) -> None:
        if self._drops:
            return
        received = self._memory.received[:nbytes]
        if self._protocol is None:
            self._shake_hands(received)
        else:
            self._receive(received)
            if nbytes >= SHARED_BYTES_MAX and self._listener.shared():
                self._end_turn()

    def eof_received(self) -> bool:
        if self._protocol is None:
            if self._handshake_bytes and not self._ended:
                self._refuse("the peer ended the TLS handshake: most likely it does not accept the node's certificate")
            return False
        if self._drops and not self._ended:
            return True  # the connection knows: the peer has ended the TLS stream before
        if self._protocol.eof_received():
            return True
        self.close()
        return True

    def pause_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drops = self._ended = True
        self._handshake_over()
        if self._listener.certificate.revocations is not None:
            self._listener.certificate.revocations.forget(self._revoked)
        self._held = b""
        if self._protocol is not None:
            self._protocol.connection_lost(exc)
        self._ssl = None

    # the connection's side

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "principal":
            return self._principal
        if name == "ssl_object":
            return self._ssl
        return self._plain.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.BufferedProtocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False
        if not self._plain.is_closing():
            self._plain.pause_reading()

    def resume_reading(self) -> None:
        self._is_reading = True
        if self._drops:
            if not self._plain.is_closing():
                self._plain.resume_reading()
        else:
            # by way of the loop: the connection may be in the middle of what it does with the last bytes
            self._catch_up_soon()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """As `writelines`."""
        if self._ended or not len(data):
            return
        assert self._ssl is not None
        try:
            self._ssl.write(data)
        except ssl.SSLError as error:
            self._memory.outgoing.read()
            self._broken(error)
            return
        self._plain.write(self._memory.outgoing.read())

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Encrypt the bytes, a chunk of the connection's at most, and hand them on."""
        if self._ended:
            return
        assert self._ssl is not None
        parts = [part for part in list_of_data if len(part)]
        if len(parts) > 1 and sum(map(len, parts)) < JOINED_BYTES * len(parts):
            parts = [b"".join(parts)]
        try:
            for part in parts:
                self._ssl.write(part)
        except ssl.SSLError as error:
            self._broken(error)
            return
        finally:
            leaving = self._memory.outgoing.read()
        self._plain.write(leaving)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._plain.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._plain.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """End the stream behind what was written. Nothing that comes from the peer is looked at any more."""
        self._say_goodbye()
        self._drops = True
        self._held = b""
        self._plain.write_eof()

    def is_closing(self) -> bool:
        return self._plain.is_closing()

    def close(self) -> None:
        """End both streams behind what was written."""
        self._say_goodbye()
        self._drops = True
        self._plain.close()

    def abort(self) -> None:
        self._drops = self._ended = True
        self._plain.abort()

    # the handshake

    def _shake_hands(self, received: memoryview) -> None:
        if not self._handshake_bytes and received[0] != _HANDSHAKE_RECORD:
            self._refuse("the peer speaks no TLS: its security.protocol has to be as the listener's")
            return
        self._handshake_bytes += len(received)
        if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
            self._refuse(f"a TLS handshake of more than {HANDSHAKE_BYTES_MAX} bytes")
            return
        self._records.pass_over(received)
        self._incoming.write(received)
        self._plain.pause_reading()
        self._listener.handshakes.wait(self)

    def step(self) -> None:
        """Go on with what has come from the peer, unless that has reset the connection while it waited for its turn."""
        if self._drops or self._plain.is_closing():
            return
        outgoing = self._memory.outgoing
        if self._ssl is None:
            self._ssl = self._listener.certificate.context.wrap_bio(self._incoming, outgoing, server_side=True)
        failure = None
        done = False
        try:
            self._ssl.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            failure = error
        leaving = outgoing.read()
        if leaving:
            self._plain.write(leaving)
        if self._plain.is_closing():
            return  # the write found that the peer has gone: `connection_lost` is on its way
        if failure is not None:
            self._refuse(f"no TLS handshake: {in_words(failure)}")
        elif done:
            self._shaken()
        else:
            self._plain.resume_reading()

    def _shaken(self) -> None:
        principal = self._principal_of_peer()
        if principal is None:
            self._refuse("no rule of principal_mapping_rules matches the subject of the peer's certificate")
            return
        if not self._is_admitted():
            self._refuse("the certificate that the peer shows is revoked")
            return
        self._principal = principal
        self._handshake_over()
        self._listener.done()
        self._records.unread = True  # some may have come with the end of the handshake
        protocol = self._protocol = cast(asyncio.BufferedProtocol, self._make_protocol())
        protocol.connection_made(self)
        if not self._drops:  # else it may not stay
            self.resume_reading()

    def _principal_of_peer(self) -> str | None:
        assert self._ssl is not None
        certificate = self._ssl.getpeercert(binary_form=True)
        if certificate is None:
            return ANONYMOUS
        try:
            return self._listener.mapping.principal(x509.subject(certificate))
        except ValueError:
            return None

    def _is_admitted(self) -> bool:
        """Whether the certificate of the peer is not revoked; it is looked at again whenever the list changes."""
        assert self._ssl is not None
        certificate, revocations = self._ssl.getpeercert(binary_form=True), self._listener.certificate.revocations
        if certificate is None or revocations is None:
            return True
        try:
            return revocations.admits(certificate, self._revoked)
        except ValueError:
            return False

    def _revoked(self) -> None:
        self._cut_off("its certificate was revoked meanwhile")

    def _too_late(self) -> None:
        if not self._drops:
            self._refuse(f"no TLS handshake within {admission.SECONDS_MAX:.0f} s")
            self.abort()

    def _refuse(self, why: str) -> None:
        self._handshake_over()
        self._tell(why)
        self._drops = self._ended = True
        self._plain.close()  # behind the alert

    def _handshake_over(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._listener.handshakes.end(self)

    # the stream

    def _receive(self, received: memoryview) -> None:
        """Decrypt what has come as far as the connection takes it, and as far as one turn may go; the rest is held."""
        taken = self._decrypt(received)
        if self._drops:
            return
        if self._records.barren_bytes > BARREN_BYTES_MAX:
            self._cut_off(f"{self._records.barren_bytes} bytes of TLS records with next to no data in them")
        elif taken < len(received):
            self._held = bytes(received[taken:])
            if self._takes_more():
                self._plain.pause_reading()
                self._catch_up_soon()

    def _end_turn(self) -> None:
        """Read on in the next turn of the loop: there may be more, and the event loop would read that at once."""
        if self._is_reading and not self._catching_up and not self._drops and not self._plain.is_closing():
            self._plain.pause_reading()
            self._catch_up_soon()

    def _catch_up_soon(self) -> None:
        if not self._catching_up:
            self._catching_up = True
            asyncio.get_running_loop().call_soon(self._catch_up)

    def _catch_up(self) -> None:
        """Go on with what is held, and then with the socket."""
        self._catching_up = False
        if self._drops or not self._takes_more():
            return
        held, self._held = self._held, b""
        self._receive(memoryview(held))
        if self._is_reading and not self._catching_up and not self._plain.is_closing():
            self._plain.resume_reading()

    def _takes_more(self) -> bool:
        """Whether the connection reads, or has room for more of what has come."""
        assert self._protocol is not None
        return self._is_reading or len(cast(memoryview, self._protocol.get_buffer(-1))) > 0

    def _decrypt(self, received: memoryview) -> int:
        """Hand the connection the data of the records that OpenSSL has and of those that have come, as many together as
        its buffer takes, until that is full or this turn is over. How much of what has come OpenSSL has now."""
        records = self._records
        records.begin_turn()
        while self._takes_more() and not self._drops:
            protocol = self._protocol
            assert self._ssl is not None
            assert protocol is not None
            buffer = cast(memoryview, protocol.get_buffer(-1))
            assert len(buffer), "a connection without room reads on"
            filled = records.read(self._ssl, received, buffer)
            self._answer_unasked()
            if filled:
                protocol.buffer_updated(filled)
            if records.failure is not None:
                self._broken(records.failure)
                break
            if records.ended:
                self._peer_ended()
                break
            if records.over:
                break
        return records.at

    def _answer_unasked(self) -> None:
        """Send what OpenSSL has to say on its own: alerts, new keys."""
        outgoing = self._memory.outgoing
        if outgoing.pending:
            self._plain.write(outgoing.read())
            if self._plain.get_write_buffer_size() > UNASKED_BYTES_MAX:
                self.abort()

    def _peer_ended(self) -> None:
        if self._drops:
            return
        self._drops = True
        assert self._protocol is not None
        if not self._protocol.eof_received():
            self.close()

    def _broken(self, error: ssl.SSLError) -> None:
        if not (self._drops and self._ended):
            self._cut_off(in_words(error))

    def _cut_off(self, why: str) -> None:
        self._tell(why)
        self.abort()

    def _tell(self, why: str) -> None:
        self._listener.refused(f"{Address(self.host, self.port)} on listener {self._listener.certificate.name}: {why}")

    def _say_goodbye(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._protocol is None or self._ssl is None:
            return
        try:
            self._ssl.unwrap()
        except ssl.SSLError:
            pass  # the peer's goodbye is not awaited
        leaving = self._memory.outgoing.read()
        if leaving and not self._plain.is_closing():
            self._plain.write(leaving)


def in_words(error: ssl.SSLError) -> str:
    """The finding of OpenSSL, an alert of the peer included, by its name."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate that the peer shows is not accepted ({error.verify_message})"
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "http request" in reason:
        return "the peer sends an HTTP request"
    return f"the peer sends an alert: {reason}" if "alert" in reason else reason
