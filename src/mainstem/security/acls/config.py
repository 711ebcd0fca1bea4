"""The settings of the authorizer. Kafka's name of a setting, where it has one, stands beside it."""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError


class AuthorizerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of access control. `validate` raises ConfigError."""

    enabled: bool = False
    """authorizer.class.name: whether clients may do only what access control lists allow. Otherwise everybody may do
    everything."""

    super_users: str = ""
    """super.users: principals that may do everything, whatever the rules say: "User:admin;User:operator"."""

    allow_everyone_if_no_acl_found: bool = False
    """allow.everyone.if.no.acl.found: whether everybody may do everything with a resource that no rule is about."""

    staleness_ms: int = 30_000
    """A node that has not heard from the metadata's leader for so long refuses everybody but super users: rules may
    have been revoked meanwhile."""

    def validate(self) -> None:
        if not 1_000 <= self.staleness_ms <= 3_600_000:
            raise ConfigError(f"staleness_ms = {self.staleness_ms} is out of range; it is 1000 to 3600000")
        for principal in self.super_users_named:
            if ":" not in principal:
                raise ConfigError(f"super_users names {principal!r}: a principal has a type, as in User:{principal}")

    @property
    def super_users_named(self) -> frozenset[str]:
        return frozenset(name.strip() for name in self.super_users.split(";") if name.strip())
