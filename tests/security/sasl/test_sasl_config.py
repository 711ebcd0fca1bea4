"""Settings of SASL that make no sense are refused, and the message names the key."""

from __future__ import annotations

from typing import Any

import pytest

from mainstem.errors import ConfigError
from mainstem.node.config import NodeConfig
from mainstem.security.sasl.config import SaslConfig
from mainstem.server.config import ServerConfig
from mainstem.server.listener_config import ListenerConfig


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"mechanisms": ("GSSAPI",)}, "mechanisms"),
        ({"mechanisms": ("PLAIN", "PLAIN")}, "mechanisms"),
        ({"mechanisms": ("OAUTHBEARER",)}, "oauth_jwks"),
        ({"failed_delay_ms": -1}, "failed_delay_ms"),
        ({"session_ms_max": 999}, "session_ms_max"),
        ({"bootstrap_password_file": "/somewhere"}, "bootstrap_user"),
        ({"oauth_user_claim": ""}, "oauth_user_claim"),
        ({"oauth_clock_skew_seconds": 4000}, "oauth_clock_skew_seconds"),
    ],
    ids=str,
)
def test_refused(settings: dict[str, Any], named: str) -> None:
    SaslConfig().validate()
    with pytest.raises(ConfigError, match=named):
        SaslConfig(**settings).validate()


def listening(**listener: Any) -> NodeConfig:
    settings = {"listen": "127.0.0.1:9094", "protocol": "SASL_PLAINTEXT", **listener}
    return NodeConfig(server=ServerConfig(listeners={"OUTSIDE": ListenerConfig(**settings)}))


def test_a_listener_offers_what_the_node_has() -> None:
    assert NodeConfig().sasl_mechanisms == {}
    assert listening().sasl_mechanisms == {"OUTSIDE": ("SCRAM-SHA-256", "SCRAM-SHA-512")}
    narrow = listening(mechanisms=("SCRAM-SHA-512",))
    narrow.validate()
    assert narrow.sasl_mechanisms == {"OUTSIDE": ("SCRAM-SHA-512",)}
    with pytest.raises(ConfigError, match="PLAIN is not in"):
        listening(mechanisms=("PLAIN",)).validate()
    with pytest.raises(ConfigError, match="has no SASL"):
        listening(protocol="PLAINTEXT", mechanisms=("PLAIN",)).server.validate()
    with pytest.raises(ConfigError, match="certificate is missing"):
        listening(protocol="SASL_SSL").server.validate()
