"""Every API in every version against two other codecs, byte for byte and value for value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.protocol.generated import messages
from tests.protocol.oracles import (
    field_names,
    kafka_python_class,
    kafka_python_plain,
    kafka_python_read,
    kio_class,
    kio_plain,
    kio_read,
    kio_write,
    plain,
    without_nulls,
)

from mainstem.protocol.codec import read, write, write_parts
from mainstem.protocol.messages import API_MESSAGES, ApiVersionsResponse
from mainstem.protocol.schema import declaration_of

CASES = [
    pytest.param(api.api_key, message_class, version, id=f"{message_class.__name__}-{version}")
    for api in API_MESSAGES.values()
    for message_class in (api.request, api.response)
    for version in range(declaration_of(message_class).versions.first, declaration_of(message_class).versions.last + 1)
]

KIO_ALONE = frozenset({38, 39, 40, 41, 64, 68, 69, 71, 72, *range(76, 82), *range(83, 93)})
"""APIs that kafka-python has no messages of: those of delegation tokens, of nodes and voters that come and go, of
share groups, streams groups, of consumer groups that the coordinator assigns, and of telemetry."""

few_examples = settings(
    max_examples=settings().max_examples // 6,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],  # shrinking nested messages takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize(("api_key", "message_class", "version"), CASES)
@few_examples
@given(data=st.data())
def test_round_trip_and_oracles(api_key: int, message_class: type[Any], version: int, data: Any) -> None:
    message = data.draw(messages(message_class, version))
    encoded = write(message, version)

    decoded = read(message_class, version, encoded)
    assert plain(decoded, version) == plain(message, version)
    assert write(decoded, version) == encoded
    assert b"".join(write_parts(message, version)) == encoded
    assert read(message_class, version, memoryview(b"xy" + encoded), 2) == decoded

    entity = kio_class(api_key, message_class.__name__, version)
    from_kio, size = kio_read(entity, encoded)
    assert size == len(encoded)
    assert without_nulls(kio_plain(from_kio)) == without_nulls(plain(message, version))
    assert kio_write(from_kio) == encoded

    if message_class is ApiVersionsResponse and message.error_code != 0:
        return  # kafka-python reads those in version 0, whatever their version
    if api_key in KIO_ALONE:
        return
    from_kafka_python = kafka_python_read(kafka_python_class(message_class.__name__), encoded, version)
    assert kafka_python_plain(message_class, from_kafka_python, version) == plain(message, version)
    assert bytes(from_kafka_python.encode(version=version)) == encoded


@pytest.mark.parametrize(("api_key", "message_class", "version"), CASES)
def test_fields_are_kafkas(api_key: int, message_class: type[Any], version: int) -> None:
    """Same names in the same order; kio drops the unit of names that end in `_ms`."""
    entity = kio_class(api_key, message_class.__name__, version)
    theirs = [name for name in entity.__dataclass_fields__ if not name.startswith("__")]
    ours = field_names(message_class, version)
    assert [name.removesuffix("_ms") for name in ours] == [name.removesuffix("_ms") for name in theirs]
