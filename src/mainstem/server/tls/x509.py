"""What certificates say, read from their DER: the subject as Java writes it, and when they expire.

Kafka's principal of a certificate is its subject as `X500Principal.getName()` has it (RFC 2253): the last part first,
attributes by short names where the RFC has one, else by number with their encoded value. Access rules compare that
text, so it has to be the same to the letter.

Nothing here checks signatures: OpenSSL has verified what a client shows before it is read here. Whatever is not
understood is a `ValueError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

SEQUENCE, SET, OBJECT_IDENTIFIER = 0x30, 0x31, 0x06
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
    names = []
    for tag, _, relative, _ in reversed(list(_parts(_fields(certificate)[4]))):
        _expect(tag, SET)
        attributes = [_attribute(value) for _, _, value, _ in _parts(relative)]
        names.append("+".join(attributes))
    return ",".join(names)


def expires_at(certificate: bytes) -> float:
    """When a certificate in DER form ends, in seconds since the epoch. Raises ValueError."""
    _, (tag, _, value, _) = _parts(_fields(certificate)[3])
    text = value.decode("ascii")
    if tag == UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    else:
        _expect(tag, GENERALIZED_TIME)
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _fields(certificate: bytes) -> list[bytes]:
    """Serial number, algorithm, issuer, validity, subject and what follows."""
    ((tag, _, content, _),) = _parts(certificate)
    _expect(tag, SEQUENCE)
    tag, _, signed, _ = next(_parts(content))
    _expect(tag, SEQUENCE)
    fields = [value for tag, _, value, _ in _parts(signed) if tag != VERSION]
    if len(fields) < 6:
        raise ValueError("a certificate with too few fields")
    return fields


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
