"""The table of APIs in the documentation is what a node advertises, and what other people know of Kafka."""

from __future__ import annotations

import asyncio

import pytest
from kio.index import load_payload_module
from kio.static.constants import EntityType
from tests.broker.harness import serving
from tools.api_table import KAFKA, MISSING, PAGE, PARTLY, REFUSED, KafkaApi, page

from mainstem.protocol.messages import API_MESSAGES
from mainstem.protocol.messages.api_versions import ApiVersionsRequest


def test_the_page_is_what_is_served() -> None:
    assert PAGE.read_text() == page(), "python -m tools.api_table --write"


@pytest.mark.parametrize("api", KAFKA, ids=lambda api: api.name)
def test_kafkas_apis_are_those_that_others_know(api: KafkaApi) -> None:
    newest = load_payload_module(api.key, api.last, EntityType.request)
    assert hasattr(newest, f"{api.name}Request")
    assert hasattr(load_payload_module(api.key, api.first, EntityType.request), f"{api.name}Request")


def test_a_node_advertises_kafkas_apis_in_kafkas_versions() -> None:
    """Over a socket. A node may lack an API; it has none that Kafka does not have, and no version less."""

    async def advertised() -> dict[int, tuple[int, int]]:
        async with serving() as node:
            client = await node.connect()
            answer = await client.call(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4)
            await client.close()
            return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    found = asyncio.run(advertised())
    kafkas = {api.key: api for api in KAFKA}
    assert len(kafkas) == len(KAFKA) == 77
    for key, (first, last) in found.items():
        api = kafkas[key]
        assert (first, last) == (0 if api.name == "Produce" else min(first, api.first), api.last), api
        assert API_MESSAGES[key].name == api.name


def test_what_is_said_of_an_api_is_said_of_one_that_is_answered_so() -> None:
    known = {api.key for api in KAFKA}
    assert not REFUSED.keys() & PARTLY.keys()
    assert REFUSED.keys() | PARTLY.keys() <= known & API_MESSAGES.keys()
    assert MISSING.keys() <= known
