"""The settings of SASL. Kafka's name of a setting, where it has one, stands beside it."""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError
from mainstem.model import SCRAM_MECHANISMS
from mainstem.security.sasl import bearer, plain

MECHANISMS = (*SCRAM_MECHANISMS, plain.NAME, bearer.NAME)


class SaslConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How clients of listeners with SASL show who they are. `validate` raises ConfigError."""

    mechanisms: tuple[str, ...] = tuple(SCRAM_MECHANISMS)
    """sasl.enabled.mechanisms: of listeners that name none of their own."""

    failed_delay_ms: int = 100
    """connection.failed.authentication.delay.ms: the client hears so late that it has failed."""

    session_ms_max: int = 0
    """connections.max.reauth.ms: clients have to authenticate again within this time, and those that do not are cut
    off; 0: never, unless their token expires."""

    bootstrap_user: str = ""
    """`kafka-storage format --add-scram`: this user gets a password when the cluster has never had a user."""

    bootstrap_password_file: str = ""
    """The first line of this file (mode 0600) is that password; empty: MAINSTEM_BOOTSTRAP_PASSWORD has it."""

    plain_users_file: str = ""
    """A file of `name:password` lines, mode 0600, that PLAIN goes by; empty: PLAIN goes by the users of the cluster."""

    oauth_jwks: str = ""
    """sasl.oauthbearer.jwks.endpoint.url: where the issuer publishes its keys, a URL (https, http, file) or a path."""

    oauth_issuer: str = ""
    """sasl.oauthbearer.expected.issuer; empty: any."""

    oauth_audiences: tuple[str, ...] = ()
    """sasl.oauthbearer.expected.audience: a token is for one of these."""

    oauth_scopes: tuple[str, ...] = ()
    """A token has all of these."""

    oauth_user_claim: str = "sub"
    """sasl.oauthbearer.sub.claim.name: the claim that names the user."""

    oauth_scope_claim: str = "scope"
    """sasl.oauthbearer.scope.claim.name."""

    oauth_clock_skew_seconds: int = 30
    """sasl.oauthbearer.clock.skew.seconds: how far the issuer's clock may be from this node's."""

    def validate(self) -> None:
        for name in self.mechanisms:
            if name not in MECHANISMS:
                raise ConfigError(f"mechanisms: {name!r} is none; there are {', '.join(MECHANISMS)}")
        if len(set(self.mechanisms)) < len(self.mechanisms):
            raise ConfigError("mechanisms names one twice")
        bounds = {
            "failed_delay_ms": (0, 10_000),
            "session_ms_max": (0, 2**31 - 1),
            "oauth_clock_skew_seconds": (0, 3_600),
        }
        for key, (least, most) in bounds.items():
            value = getattr(self, key)
            if not least <= value <= most:
                raise ConfigError(f"{key} = {value}: it takes a whole number from {least} to {most}")
        if 0 < self.session_ms_max < 1_000:
            raise ConfigError(f"session_ms_max = {self.session_ms_max}: it takes 0, or 1000 at least")
        if bearer.NAME in self.mechanisms and not self.oauth_jwks:
            raise ConfigError(f"mechanisms has {bearer.NAME}, which needs oauth_jwks: where the issuer's keys are")
        if self.bootstrap_password_file and not self.bootstrap_user:
            raise ConfigError("bootstrap_password_file is given, and no bootstrap_user whose password it has")
        if not self.oauth_user_claim or not self.oauth_scope_claim:
            raise ConfigError("oauth_user_claim and oauth_scope_claim name claims")
