"""Kinds of records of an internal topic: the version in front of a key is the kind, and tells what its value is."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from mainstem.model import Buffer
from mainstem.protocol.messages.versioned import read_versioned, write_versioned
from mainstem.protocol.schema import declaration_of

K = TypeVar("K")
V = TypeVar("V")

_VALUE_VERSION = 0


class RecordKinds(Generic[K, V]):
    """Of one protocol. `values`: the classes of keys, each of which has one version, with those of their values, which
    have version 0. A null value deletes what the key names."""

    def __init__(self, values: Mapping[type[Any], type[Any]]) -> None:
        self._values = MappingProxyType(dict(values))
        self.keys: Mapping[int, type[K]] = MappingProxyType({_version_of(key): key for key in values})
        """The classes of keys by their kinds."""

    def write_key(self, key: K) -> bytes:
        return write_versioned(key, _version_of(type(key)))

    def read_value(self, key: K, buffer: Buffer) -> V:
        """Decode the value behind a key. Raises `ProtocolError`."""
        value: V = read_versioned(self._values[type(key)], buffer)
        return value

    def write_value(self, value: V) -> bytes:
        return write_versioned(value, _VALUE_VERSION)


def _version_of(key_class: type[Any]) -> int:
    return declaration_of(key_class).versions.last
