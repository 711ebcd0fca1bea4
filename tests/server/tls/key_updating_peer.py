"""A TLS 1.3 client that writes its records itself, so that it can do what OpenSSL's API offers no way to: change its
keys as often as it likes (RFC 8446, sections 4.6.3, 5.2 and 7.2)."""

from __future__ import annotations

import asyncio
import ssl
import struct
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from mainstem.address import Address

_HANDSHAKE, _DATA = b"\x16", b"\x17"
_KEY_UPDATE = b"\x18\x00\x00\x01\x00"
_RECEIVED_BYTES = 64 * 1024


class KeyUpdatingPeer:
    """Its handshake and what it receives are OpenSSL's; what it sends from then on are records of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object: ssl.SSLObject
        self._secret = b""
        self._sequence = 0

    @classmethod
    async def connect(cls, address: Address, tls: ssl.SSLContext, secrets: Path) -> KeyUpdatingPeer:
        """`secrets`: a file that does not exist yet, for the secrets of the handshake."""
        tls.keylog_filename = str(secrets)
        peer = cls(*await asyncio.open_connection(address.host, address.port))
        peer._object = tls.wrap_bio(peer._incoming, peer._outgoing, server_hostname="localhost")
        while True:
            try:
                peer._object.do_handshake()
                break
            except ssl.SSLWantReadError:
                peer.writer.write(peer._outgoing.read())
                peer._incoming.write(await peer._reader.read(_RECEIVED_BYTES))
        peer.writer.write(peer._outgoing.read())
        assert (peer._object.cipher() or ("",))[0] == "TLS_AES_256_GCM_SHA384"
        peer._secret = _client_secret(secrets)
        return peer

    def data(self, content: bytes) -> bytes:
        """A record with these bytes, to be sent in its turn."""
        return self._record(content + _DATA)

    def key_updates(self, size: int) -> bytes:
        """At least `size` bytes of records, each of which changes the keys of the next."""
        records: list[bytes] = []
        total = 0
        while total < size:
            records.append(self._record(_KEY_UPDATE + _HANDSHAKE))
            total += len(records[-1])
            self._secret = self._expanded("traffic upd", SHA384.digest_size)
            self._sequence = 0
        return b"".join(records)

    async def receive(self, size: int) -> bytes:
        """The next `size` bytes of data. Raises EOFError when the node ends the connection."""
        received = b""
        while len(received) < size:
            try:
                received += self._object.read(size - len(received))
            except ssl.SSLWantReadError:
                more = await self._reader.read(_RECEIVED_BYTES)
                if not more:
                    raise EOFError from None
                self._incoming.write(more)
        return received

    def _record(self, inner: bytes) -> bytes:
        header = b"\x17\x03\x03" + struct.pack(">H", len(inner) + 16)
        key, start = self._expanded("key", 32), self._expanded("iv", 12)
        nonce = (int.from_bytes(start, "big") ^ self._sequence).to_bytes(12, "big")
        self._sequence += 1
        return header + AESGCM(key).encrypt(nonce, inner, header)

    def _expanded(self, label: str, size: int) -> bytes:
        name = b"tls13 " + label.encode()
        info = struct.pack(">HB", size, len(name)) + name + b"\x00"
        return HKDFExpand(SHA384(), size, info).derive(self._secret)


def _client_secret(secrets: Path) -> bytes:
    """From a file in the format of SSLKEYLOGFILE: label, random of the client, secret."""
    lines = (line.split() for line in secrets.read_text().splitlines())
    (secret,) = [words[2] for words in lines if words[0] == "CLIENT_TRAFFIC_SECRET_0"]
    return bytes.fromhex(secret)
