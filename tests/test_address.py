"""HOST:PORT as it is read everywhere."""

from __future__ import annotations

import pytest

from mainstem.address import Address, AddressError, parsed
from mainstem.errors import ConfigError, MainstemError
from mainstem.nameserver.config import NameserverConfig
from mainstem.rpc.blocking import parse_address
from mainstem.rpc.errors import RpcError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", Address("127.0.0.1", 9092)),
        ("node-1.example:1", Address("node-1.example", 1)),
        ("[::1]:65535", Address("::1", 65535)),
        ("[fe80::1%eth0]:9092", Address("fe80::1%eth0", 9092)),
    ],
)
def test_addresses_are_read_and_written_alike(text: str, address: Address) -> None:
    assert parsed(text) == address
    assert str(address) == text


def test_port_0_is_read_where_it_picks_a_free_one() -> None:
    assert parsed("localhost:0", port_min=0) == ("localhost", 0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the port is missing"),
        ("localhost", "the port is missing"),
        ("localhost:", "the port is missing"),
        (":9092", "the host is missing"),
        ("localhost:0", "the port is a number from 1 to 65535"),
        ("localhost:65536", "the port is a number from 1 to 65535"),
        ("localhost:-1", "the port is a number"),
        ("localhost:９０", "the port is a number"),
        ("localhost:" + "9" * 5000, "the port is a number"),
        ("::1:9092", "an IPv6 host stands in brackets"),
        ("[localhost]:9092", "only an IPv6 host stands in brackets"),
        ("[::1:9092", "an IPv6 host stands in brackets"),
        ("local host:9092", "'local host' is not a host"),
        ("me@host:9092", "'me@host' is not a host"),
        ("http://localhost:9080", "leave out http://"),
    ],
)
def test_what_is_not_an_address_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(AddressError) as refused:
        parsed(text)
    assert repr(text) in str(refused.value)
    assert reason in str(refused.value)
    assert str(refused.value).endswith("expected HOST:PORT, or [HOST]:PORT for IPv6")
    assert isinstance(refused.value, MainstemError)


def test_rooms_refuse_it_in_their_own_words() -> None:
    with pytest.raises(RpcError, match="expected HOST:PORT"):
        parse_address("nowhere")
    with pytest.raises(ConfigError, match="peers: node 2 = '::1:9093' is not an address: an IPv6 host"):
        NameserverConfig(peers={"2": "::1:9093"}).validate()
