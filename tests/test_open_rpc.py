"""A node whose RPC others can reach, without TLS, says so at its start."""

from __future__ import annotations

import pytest

from mainstem.node.config import NodeConfig
from mainstem.node.node import warn_of_open_rpc
from mainstem.rpc.wire.tls import RpcTlsConfig

TLS = RpcTlsConfig(certificate="c", key="k", ca="a")


@pytest.mark.parametrize(
    ("rpc", "tls", "warns"),
    [
        ("0.0.0.0:9093", RpcTlsConfig(), True),
        ("10.0.0.7:9093", RpcTlsConfig(), True),
        ("node-1:9093", RpcTlsConfig(), True),
        ("0.0.0.0:9093", TLS, False),
        ("127.0.0.1:9093", RpcTlsConfig(), False),
        ("localhost:9093", RpcTlsConfig(), False),
        ("[::1]:9093", RpcTlsConfig(), False),
    ],
)
def test_rpc_that_others_reach_without_tls_is_warned_of(
    rpc: str, tls: RpcTlsConfig, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_open_rpc(NodeConfig(rpc=rpc, rpc_tls=tls))
    assert ["WITHOUT TLS" in record.getMessage() for record in caplog.records] == [True] * warns
