"""Makes random requests that meet what a node has: they take names, ids, epochs and offsets from its answers, and from
each other, by the names of fields. So they get further than noise does, which ends at the first look-up."""

from __future__ import annotations

import random
import uuid
from typing import Any

from mainstem.protocol.records import NewRecord, build_batch
from mainstem.protocol.schema import (
    ArrayKind,
    FixedKind,
    Kind,
    StructKind,
    WireField,
    boolean,
    declaration_of,
    float64,
    records,
    string,
)
from mainstem.protocol.schema import uuid as uuid_kind

REMEMBERED_MAX = 64
"""Values of each field."""

WAITS_MS = (0, 1, 50, 200, -1)
"""For all that ends with `_ms`: no answer takes long…"""

LIFETIMES_MS = (0, 200, 6_000, 45_000)
"""…but what these words are in, which nobody waits for."""
LIFETIMES = ("session", "heartbeat", "expir", "renew", "life", "retention")

NAMES: dict[str, tuple[str | None, ...]] = {
    "name": ("t0", "t1", "t2", "g0", "u0"),
    "topic": ("t0", "t1", "t2"),
    "group_id": ("g0", "g1", ""),
    "transactional_id": ("x0", "x1", None),
    "key": ("g0", "x0"),
    "member_id": ("", "m0"),
    "protocol_type": ("consumer", "share", ""),
    "resource_name": ("t0", "g0", "1", ""),
    "group_instance_id": (None, "i0", "i1"),
    "subscribed_topic_regex": (None, "", "t.*", "("),
    "server_assignor": (None, "uniform", "range", "nobody"),
}
ODD_NAMES = ("", "t9", "a" * 249, "a" * 300, "..", "__consumer_offsets", "\x1b[2J", "é\u202e", "a b", "*", "x" * 3000)
ODD_BYTES = (b"", b"\0\0", b"\0\1\0\0\0\1\0\2t0\0\0\0\1\0\0\0\0\xff\xff\xff\xff")
BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
PARTITIONS = ("partition", "partition_index", "index", "partitions")


class PlausibleRequests:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._known: dict[str, list[Any]] = {}

    def learn(self, message: Any) -> None:
        """Remember the values of a request or an answer."""
        for field in declaration_of(type(message)).fields:
            value = getattr(message, field.name)
            if isinstance(field.kind, ArrayKind):
                for item in list(value or ())[:20]:
                    self._learn_value(field.name, field.kind.element, item)
            elif value is not None:
                self._learn_value(field.name, field.kind, value)

    def _learn_value(self, name: str, kind: Kind[Any], value: Any) -> None:
        if isinstance(kind, StructKind):
            self.learn(value)
        elif value not in ("", b"") and not isinstance(value, (bool, ArrayKind)):
            known = self._known.setdefault(name, [])
            if len(known) < REMEMBERED_MAX:
                known.append(value)
            else:
                known[self._random.randrange(REMEMBERED_MAX)] = value

    def make(self, message_class: type[Any], version: int) -> Any:
        """A message that this version can carry."""
        values = {}
        for field in declaration_of(message_class).fields:
            if version in field.versions and not (field.has_default and self._random.random() < 0.3):
                values[field.name] = self._field(field, version)
        return message_class(**values)

    def _field(self, field: WireField, version: int) -> Any:
        may_be_null = version in field.nullable
        if may_be_null and self._random.random() < 0.15:
            return None
        value = self._value(field.kind, field.name, version)
        return "" if value is None and not may_be_null else value

    def _value(self, kind: Kind[Any], name: str, version: int) -> Any:
        rng = self._random
        if isinstance(kind, StructKind):
            return self.make(kind.struct_class, version)
        if isinstance(kind, ArrayKind):
            return tuple(self._value(kind.element, name, version) or "" for _ in range(rng.choice([0, 1, 1, 1, 2, 3])))
        if kind is boolean:
            return rng.random() < 0.5
        if kind is float64:
            return rng.choice([0.0, 1.0, -1.0, 1e300])
        if isinstance(kind, FixedKind):
            return self._number(kind.name, name)
        if kind is string:
            return self._text(name)
        if kind is uuid_kind:
            known = [*self._known.get("topic_id", ()), uuid.UUID(int=0), uuid.UUID(int=1)]
            return rng.choice(known)
        return self._batch() if kind is records else self._bytes(name)

    def _number(self, kind: str, name: str) -> int:
        rng = self._random
        if kind not in BITS:
            return rng.choice([0, 1, 2, 9])
        if name.endswith("_ms") and not name.startswith(("log_", "timestamp")):
            return rng.choice(LIFETIMES_MS if any(word in name for word in LIFETIMES) else WAITS_MS)
        if name in PARTITIONS and rng.random() < 0.9:
            return rng.choice([0, 0, 0, 1, 2, -1, 99])
        most: int = 2 ** BITS[kind] - 1
        known: list[int] = [it for it in self._known.get(name, ()) if isinstance(it, int) and abs(it) <= most]
        if known and rng.random() < 0.45:
            return rng.choice(known)
        if rng.random() < 0.8 or name in ("num_partitions", "count"):
            return rng.choice([0, 0, 1, 1, 2, 3, 5, -1])
        return rng.choice([most, -most - 1, -2, -3, -4, -5, min(most, 1000), rng.randint(-most - 1, most)])

    def _text(self, name: str) -> str | None:
        rng = self._random
        if name in NAMES and rng.random() < 0.6:
            return rng.choice(NAMES[name])
        anything = self._known[rng.choice(list(self._known))] if self._known else []
        texts = [it for it in [*self._known.get(name, ()), *anything] if isinstance(it, str)]
        return rng.choice(texts) if texts and rng.random() < 0.7 else rng.choice(ODD_NAMES)

    def _bytes(self, name: str) -> bytes:
        known = [it for it in self._known.get(name, ()) if isinstance(it, bytes)]
        if known and self._random.random() < 0.5:
            return self._random.choice(known)
        return self._random.choice([*ODD_BYTES, self._random.randbytes(20), self._random.randbytes(2000)])

    def _batch(self) -> bytes:
        rng = self._random
        count = rng.choice([1, 1, 2, 20])
        sent = [NewRecord(timestamp=1, key=rng.choice([None, b"k"]), value=rng.randbytes(9)) for _ in range(count)]
        data = bytearray(build_batch(sent).data)
        if rng.random() < 0.4:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(data) if rng.random() < 0.8 else bytes(data[: rng.randrange(len(data))])
