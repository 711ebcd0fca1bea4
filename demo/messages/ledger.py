"""The messages that were sent, and those that a reading got: compared by count, per aircraft in order, and per offset.

The sender's book is written when a row is handed to the client, in the order of the file; it trusts no
acknowledgement. A key lives in one partition, so a reading that is complete, in order and free of repeats
gives the same digest for every key.
"""

from __future__ import annotations

import hashlib
from typing import Any

_TOMBSTONE = b"\xff" * 4
"""In a digest, where other records have the length of their value: none is that long."""


class Sent:
    """Rows handed to the producer: how many, and one order-sensitive digest per key."""

    def __init__(self) -> None:
        self.rows = 0
        self._digests: dict[bytes, Any] = {}

    def add(self, key: bytes, value: bytes | None) -> None:
        self.rows += 1
        _add(self._digests, key, value)

    def digests(self) -> dict[bytes, bytes]:
        return {key: digest.digest() for key, digest in self._digests.items()}


class Reading:
    """The messages that readers got: one fingerprint per partition and offset."""

    def __init__(self) -> None:
        self.fingerprints: dict[tuple[int, int], bytes] = {}
        self.repeated = 0
        """Messages that came more than once, as at-least-once allows a group after a crash."""
        self.contradictions = 0
        """Offsets that had two different values: never allowed."""
        self.latest: dict[bytes, bytes | None] = {}
        """Key -> the value that was read last; None: a tombstone."""
        self._digests: dict[bytes, Any] = {}

    def add(self, message: Any) -> None:
        """Take one consumed message. Digests and latest values per key count first readings only."""
        key, value = message.key(), message.value()
        place = message.partition(), message.offset()
        content = key + b"\1" if value is None else key + b"\0" + value
        fingerprint = hashlib.blake2b(content, digest_size=8).digest()
        known = self.fingerprints.setdefault(place, fingerprint)
        if known is not fingerprint:
            self.repeated += 1
            self.contradictions += known != fingerprint
            return
        self.latest[key] = value
        _add(self._digests, key, value)

    def digests(self) -> dict[bytes, bytes]:
        return {key: digest.digest() for key, digest in self._digests.items()}

    def is_exactly(self, sent: Sent) -> bool:
        """Whether this is what was sent: complete, in order per key, nothing twice."""
        return self.digests() == sent.digests() and self.is_gapless() and not self.repeated

    def merge(self, other: Reading) -> None:
        """Take in what another reader of the same topic got; digests and latest values per key stay, as nothing is
        known of the order across readers."""
        for place, fingerprint in other.fingerprints.items():
            known = self.fingerprints.setdefault(place, fingerprint)
            if known is not fingerprint:
                self.repeated += 1
                self.contradictions += known != fingerprint
        self.repeated += other.repeated
        self.contradictions += other.contradictions

    def is_gapless(self) -> bool:
        """Whether every partition's offsets are 0, 1, 2, … without a hole."""
        ends: dict[int, int] = {}
        counts: dict[int, int] = {}
        for partition, offset in self.fingerprints:
            ends[partition] = max(ends.get(partition, -1), offset)
            counts[partition] = counts.get(partition, 0) + 1
        return all(counts[partition] == end + 1 for partition, end in ends.items())


def _add(digests: dict[bytes, Any], key: bytes, value: bytes | None) -> None:
    digest = digests.get(key)
    if digest is None:
        digest = digests[key] = hashlib.blake2b(digest_size=16)
    if value is None:
        digest.update(_TOMBSTONE)
        return
    digest.update(len(value).to_bytes(4, "big"))
    digest.update(value)
