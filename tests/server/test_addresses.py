"""Addresses: what configuration may say, what is listened on, what clients are told."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.address import Address
from mainstem.errors import ConfigError
from mainstem.server.addresses import advertised_address, open_listeners, parse_address
from mainstem.server.config import ServerConfig
from mainstem.server.errors import ListenError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", Address("127.0.0.1", 9092)),
        ("localhost:0", Address("localhost", 0)),
        (":9092", Address("0.0.0.0", 9092)),
        ("[::1]:9092", Address("::1", 9092)),
    ],
)
def test_addresses_are_read(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "9092", "host", "host:port", "host:70000", "::1:9092", "host:-1"])
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(ListenError, match="HOST:PORT"):
        parse_address(text)
    with pytest.raises(ConfigError, match="HOST:PORT"):
        ServerConfig(listen=(text,)).validate()


def test_all_addresses_of_a_name_share_one_port() -> None:
    listeners = open_listeners(Address("localhost", 0), 1)
    try:
        assert len({listener.getsockname()[1] for listener in listeners}) == 1
    finally:
        for listener in listeners:
            listener.close()


def test_a_port_in_use_is_named() -> None:
    (listener,) = open_listeners(Address("127.0.0.1", 0), 1)
    with listener:
        port = listener.getsockname()[1]
        with pytest.raises(ListenError, match=f"127.0.0.1:{port}"):
            open_listeners(Address("127.0.0.1", port), 1)


def test_one_interface_is_advertised_as_itself() -> None:
    assert advertised_address(Address("127.0.0.1", 0), Address("127.0.0.1", 4711)) == ("127.0.0.1", 4711)
    assert advertised_address(Address("kafka.example", 0), Address("10.0.0.1", 4711)) == ("kafka.example", 4711)


def test_all_interfaces_are_advertised_as_one_that_can_be_reached() -> None:
    (listener,) = open_listeners(Address("0.0.0.0", 0), 1)
    with listener:
        advertised = advertised_address(Address("0.0.0.0", 0), Address(*listener.getsockname()))
        assert not ipaddress.ip_address(advertised.host).is_unspecified
        with socket.create_connection(advertised, timeout=PATIENCE_SECONDS):
            pass


@pytest.mark.parametrize(
    "wrong", [{"connections_max": 0}, {"frame_bytes_max": 10}, {"frame_bytes_max": 2**31}, {"listen": ()}]
)
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ServerConfig(**wrong).validate()  # type: ignore[arg-type]


def test_the_default_configuration_is_valid() -> None:
    ServerConfig().validate()
