"""A node does not start with a port that strangers reach and nobody has allowed."""

from __future__ import annotations

import logging

import msgspec
import pytest

from mainstem.console.config import ConsoleConfig
from mainstem.errors import ConfigError
from mainstem.node.access.open_ports import open_ports, refuse_open_ports
from mainstem.node.config import NodeConfig
from mainstem.rpc.wire.tls import RpcTlsConfig
from mainstem.security.acls.config import AuthorizerConfig
from mainstem.server.config import ServerConfig
from mainstem.server.listener_config import ListenerConfig

TLS = RpcTlsConfig(certificate="c", key="k", ca="a")
ALL = ("kafka", "http", "rpc")


def with_listener(protocol: str, **settings: str) -> NodeConfig:
    listener = ListenerConfig(listen="10.0.0.7:9094", protocol=protocol, **settings)  # type: ignore[arg-type]
    return NodeConfig(server=ServerConfig(listeners={"OUTSIDE": listener}))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (NodeConfig(), []),
        (NodeConfig(listen=("localhost:9092", "[::1]:9092"), http="127.9.9.9:1", rpc="localhost:9093"), []),
        (NodeConfig(listen=("127.0.0.1:9092", "0.0.0.0:9092")), ["listen"]),
        (NodeConfig(listen=("10.0.0.7:9092",)), ["listen"]),
        (NodeConfig(listen=("node-1:9092",), http="[::]:9080", rpc="node-1:9093"), ["listen", "http", "rpc"]),
        (NodeConfig(rpc="0.0.0.0:9093", rpc_tls=TLS), []),
        (NodeConfig(http="0.0.0.0:9080", console=ConsoleConfig(users=True)), []),
        (NodeConfig(roles=("nameserver",), listen=("0.0.0.0:9092",)), []),
        (NodeConfig(listen=("0.0.0.0:9092",), authorizer=AuthorizerConfig(enabled=True)), []),
        (
            NodeConfig(
                listen=("0.0.0.0:9092",),
                authorizer=AuthorizerConfig(enabled=True, allow_everyone_if_no_acl_found=True),
            ),
            ["listen"],
        ),
        (with_listener("PLAINTEXT"), ["server.listeners.OUTSIDE.listen"]),
        (with_listener("SSL"), ["server.listeners.OUTSIDE.listen"]),
        (with_listener("SSL", client_auth="requested"), ["server.listeners.OUTSIDE.listen"]),
        (with_listener("SSL", client_auth="required"), []),
        (with_listener("SASL_SSL"), []),
        (with_listener("SASL_PLAINTEXT"), []),
    ],
)
def test_ports_that_ask_nobody_and_are_reached_are_open(config: NodeConfig, expected: list[str]) -> None:
    assert [port.key for port in open_ports(config)] == expected
    if expected:
        with pytest.raises(ConfigError) as refused:
            refuse_open_ports(config)
        for key in expected:
            assert f"{key} = " in str(refused.value)
    refuse_open_ports(msgspec.structs.replace(config, allow_open=ALL))


def test_the_refusal_names_what_allows_it_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    config = NodeConfig(listen=("0.0.0.0:9092",), http="0.0.0.0:9080", rpc="0.0.0.0:9093", allow_open=("http",))
    with pytest.raises(ConfigError, match=r"--allow-open kafka,rpc starts it"):
        refuse_open_ports(config)
    caplog.clear()
    refuse_open_ports(msgspec.structs.replace(config, allow_open=ALL))
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
    assert "delete all topics" in caplog.text


def test_kinds_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="allow_open = 'grpc'"):
        NodeConfig(allow_open=("grpc",)).validate()
