"""The contents of certificates, read from their DER: the subject as Java writes it, and when they expire; and what
lists of revoked certificates say.

Kafka's principal of a certificate is its subject as `X500Principal.getName()` has it (RFC 2253): the last part first,
attributes by short names where the RFC has one, else by number with their encoded value. Access rules compare that
text, so it has to be the same to the letter.

Nothing here checks signatures: OpenSSL has verified what a client shows before it is read here. Everything that is not
understood is a `ValueError`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

SEQUENCE, SET, OBJECT_IDENTIFIER = 0x30, 0x31, 0x06
BOOLEAN, INTEGER = 0x01, 0x02
UTC_TIME, GENERALIZED_TIME = 0x17, 0x18
VERSION = 0xA0

_SHORT_NAMES = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_TEXTS = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1B: "ascii", 0x1C: "utf-32-be",
          0x1E: "utf-16-be"}  # fmt: skip
"""The encodings of strings, by tag."""

_ESCAPED = frozenset(',=+<>#;"\\')


def subject(certificate: bytes) -> str:
    """The subject of a certificate in DER form. Raises ValueError."""
    return _name(_fields(certificate)[4])


def identity(certificate: bytes) -> tuple[str, int]:
    """The issuer of a certificate in DER form, as text, and its serial number. Raises ValueError."""
    serial, _, issuer, *_ = _fields(certificate)
    return _name(issuer), int.from_bytes(serial, signed=True)


def _name(encoded: bytes) -> str:
    names = []
    for tag, _, relative, _ in reversed(list(_parts(encoded))):
        _expect(tag, SET)
        attributes = [_attribute(value) for _, _, value, _ in _parts(relative)]
        names.append("+".join(attributes))
    return ",".join(names)


def expires_at(certificate: bytes) -> float:
    """When a certificate in DER form ends, in seconds since the epoch. Raises ValueError."""
    _, (tag, _, value, _) = _parts(_fields(certificate)[3])
    return _moment(tag, value)


class RevocationList(NamedTuple):
    """Which certificates of an issuer are revoked, by serial number. `next_update_at`: when another list takes its
    place, in seconds since the epoch; None: it does not say."""

    issuer: str
    serials: frozenset[int]
    next_update_at: float | None


def revocation_list(encoded: bytes) -> RevocationList:
    """Reads a list (CRL) in DER form. Raises ValueError; also for one with a critical extension."""
    signed = _signed(encoded)
    fields = [(tag, value) for tag, _, value, _ in _parts(signed)]
    if fields and fields[0][0] == INTEGER:  # the version
        del fields[0]
    if len(fields) < 3 or [fields[0][0], fields[1][0]] != [SEQUENCE, SEQUENCE]:
        raise ValueError("a list of revoked certificates with too few fields")
    _, (_, issuer), _, *rest = fields  # the algorithm, the issuer, when it was made
    next_update_at, serials = None, frozenset[int]()
    for tag, value in rest:
        if tag in (UTC_TIME, GENERALIZED_TIME):
            next_update_at = _moment(tag, value)
        elif tag == SEQUENCE:
            serials = frozenset(_revoked(entry) for _, _, entry, _ in _parts(value))
        elif tag == VERSION:  # as the version of certificates, the extensions have number 0
            ((_, _, extensions, _),) = _parts(value)
            _refuse_critical(extensions)
    return RevocationList(_name(issuer), serials, next_update_at)


def _revoked(entry: bytes) -> int:
    (tag, _, serial, _), _, *more = _parts(entry)
    _expect(tag, INTEGER)
    for _, _, extensions, _ in more:
        _refuse_critical(extensions)
    return int.from_bytes(serial, signed=True)


def _refuse_critical(extensions: bytes) -> None:
    for _, _, extension, _ in _parts(extensions):
        if any(tag == BOOLEAN and any(value) for tag, _, value, _ in _parts(extension)):
            raise ValueError("a list of revoked certificates with a critical extension, which changes what it means")


def _moment(tag: int, value: bytes) -> float:
    """In seconds since the epoch."""
    text = value.decode("ascii")
    if tag == UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    else:
        _expect(tag, GENERALIZED_TIME)
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _fields(certificate: bytes) -> list[bytes]:
    """Serial number, algorithm, issuer, validity, subject and what follows."""
    signed = _signed(certificate)
    fields = [value for tag, _, value, _ in _parts(signed) if tag != VERSION]
    if len(fields) < 6:
        raise ValueError("a certificate with too few fields")
    return fields


def _signed(encoded: bytes) -> bytes:
    """The signed part of a certificate or a list."""
    ((tag, _, content, _),) = _parts(encoded)
    _expect(tag, SEQUENCE)
    for first, _, signed, _ in _parts(content):
        _expect(first, SEQUENCE)
        return signed
    raise ValueError("DER of which nothing is signed")


def _attribute(encoded: bytes) -> str:
    (tag, _, number, _), (kind, _, value, whole) = _parts(encoded)
    _expect(tag, OBJECT_IDENTIFIER)
    dotted = _dotted(number)
    short = _SHORT_NAMES.get(dotted)
    if short is None or kind not in _TEXTS:
        return f"{short or dotted}=#{whole.hex()}"
    return f"{short}={_escaped(value.decode(_TEXTS[kind]))}"


def _escaped(text: str) -> str:
    escaped = ["\\00" if each == "\0" else f"\\{each}" if each in _ESCAPED else each for each in text]
    # spaces at both ends
    for at in range(len(escaped)):
        if escaped[at] != " ":
            break
        escaped[at] = "\\ "
    for at in reversed(range(len(escaped))):
        if escaped[at] != " ":
            break
        escaped[at] = "\\ "
    return "".join(escaped)


def _dotted(number: bytes) -> str:
    values, value = [], 0
    for byte in number:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            values.append(value)
            value = 0
    if not values:
        raise ValueError("an empty object identifier")
    first = min(2, values[0] // 40)
    return ".".join(map(str, (first, values[0] - 40 * first, *values[1:])))


def _parts(encoded: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
    """The elements that lie one behind the other: tag, position, value, and all of it."""
    at = 0
    while at < len(encoded):
        if at + 2 > len(encoded):
            raise ValueError("DER that ends early")
        tag, size, start = encoded[at], encoded[at + 1], at + 2
        if size >= 0x80:
            count = size & 0x7F
            if not 0 < count <= 4:
                raise ValueError("DER with a length of no known form")
            size, start = int.from_bytes(encoded[start : start + count]), start + count
        stop = start + size
        if stop > len(encoded):
            raise ValueError("DER that ends early")
        yield tag, at, encoded[start:stop], encoded[at:stop]
        at = stop


def _expect(tag: int, expected: int) -> None:
    if tag != expected:
        raise ValueError(f"DER with tag {tag:#x} where {expected:#x} belongs")
