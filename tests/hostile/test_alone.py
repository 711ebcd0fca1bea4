"""The ground of the other tests: with nobody beside it, the honest client is served and the node gives all back."""

from __future__ import annotations

from tests.hostile.conftest import StartNode
from tests.hostile.honest import HonestClient
from tests.hostile.memory import resident_bytes, resident_bytes_most


def test_an_honest_client_alone_is_served_from_any_address(start_node: StartNode) -> None:
    node = start_node()
    with HonestClient(node.kafka, source="127.0.0.3") as honest:
        honest.goes_on(50)
        assert 0 < resident_bytes(node.pid) <= resident_bytes_most(node.pid)
    assert node.metric("mainstem_server_connections_failed_total") == 0
