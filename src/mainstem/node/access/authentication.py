"""Puts together what finds out who clients are, and makes the first user of a new cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from mainstem.errors import ConfigError, MainstemError
from mainstem.model import ScramChange, ScramMechanism
from mainstem.nameserver.errors import CredentialRefused
from mainstem.node.config import NodeConfig
from mainstem.node.node_ports import NodePorts
from mainstem.ports import Credentials
from mainstem.security.sasl import bearer, credentials, plain
from mainstem.security.sasl.authenticator import Authenticator
from mainstem.security.sasl.config import SaslConfig
from mainstem.security.sasl.key_source import KeySource, reader_of
from mainstem.security.sasl.plain_users import read_password, read_users
from mainstem.security.sasl.token_check import Expected
from mainstem.security.tokens.token_admin import TokenAdmin, TokenService
from mainstem.security.tokens.token_logins import TokenLogins
from mainstem.security.tokens.token_secrets import TokenSecrets

TOKEN_KEY = "delegation_token.secret_key_file"
TOKEN_KEY_BYTES_MIN = 16
"""A holder of one token can try keys at the speed of a hash."""

PASSWORD_VARIABLE = "MAINSTEM_BOOTSTRAP_PASSWORD"

log = logging.getLogger(__name__)


def token_service_of(config: NodeConfig, ports: NodePorts, admin: TokenAdmin) -> TokenService | None:
    """None: delegation tokens are switched off. Raises ConfigError."""
    settings = config.delegation_token
    if not settings.secret_key_file:
        return None
    key = read_password(Path(settings.secret_key_file), TOKEN_KEY)
    if len(key) < TOKEN_KEY_BYTES_MIN:
        raise ConfigError(
            f"{TOKEN_KEY}: the first line of {settings.secret_key_file} has {len(key)} bytes; it takes "
            f"{TOKEN_KEY_BYTES_MIN} at least, such as those of `openssl rand -base64 32`"
        )
    secrets = TokenSecrets(key, ports.password_work)
    return TokenService(admin, secrets, settings.max_lifetime_ms, settings.expiry_time_ms)


def authenticator_of(
    config: NodeConfig, ports: NodePorts, kept: Credentials, tokens: TokenService | None
) -> Authenticator | None:
    """None: neither a listener nor the HTTP port asks who clients are. Raises ConfigError."""
    offered = {name for mechanisms in config.sasl_mechanisms.values() for name in mechanisms}
    if config.console.users:
        offered |= {plain.NAME} if not config.sasl.oauth_jwks else {plain.NAME, bearer.NAME}
    if not offered:
        return None
    sasl = config.sasl
    users = None
    if plain.NAME in offered and sasl.plain_users_file:
        users = read_users(Path(sasl.plain_users_file))
    keys = None
    if bearer.NAME in offered:
        keys = KeySource(reader_of(sasl.oauth_jwks), ports.key_work, ports.clock)
    return Authenticator(
        kept,
        ports.clock,
        ports.password_work,
        ports.random_bytes,
        plain_users=users,
        keys=keys,
        tokens=None if tokens is None else TokenLogins(tokens.admin.tokens, tokens.secrets, ports.clock.now_ms),
        expected=Expected(
            issuer=sasl.oauth_issuer,
            audiences=sasl.oauth_audiences,
            scopes=sasl.oauth_scopes,
            user_claim=sasl.oauth_user_claim,
            scope_claim=sasl.oauth_scope_claim,
            clock_skew_seconds=sasl.oauth_clock_skew_seconds,
        ),
        failed_delay_seconds=sasl.failed_delay_ms / 1000,
        session_seconds_max=sasl.session_ms_max / 1000,
    )


async def make_first_user(
    config: SaslConfig, kept: Credentials, ports: NodePorts, current: Callable[[], Awaitable[None]]
) -> None:
    """Give the configured first user its credentials, if the cluster has never had a user. Raises ConfigError where
    there is no password. `current`: returns once this node knows all that was committed before the call."""
    variable = os.environ.pop(PASSWORD_VARIABLE, None)  # the splitter, a process of its own, does not get it
    if not config.bootstrap_user or kept.absent_users_secret():
        return
    password = _password(config, variable)
    try:
        await current()
        if kept.absent_users_secret():
            return
        make: Callable[[], list[ScramChange]] = partial(_changes, config.bootstrap_user, password, ports.random_bytes)
        refusals = await kept.change_scram(await ports.password_work.run(make), first=True)
        refused = next((refusal for refusal in refusals if refusal is not None), None)
        if kept.absent_users_secret() and isinstance(refused, CredentialRefused):
            return  # another node was faster
        if refused is not None:
            raise refused
    except MainstemError as error:
        log.error("the first user was not made, and is when the node starts again: %s", error)
    else:
        log.info("the first user was made: %s", config.bootstrap_user)


def _password(config: SaslConfig, variable: str | None) -> bytes:
    if config.bootstrap_password_file:
        return read_password(Path(config.bootstrap_password_file))
    if variable:
        return variable.encode()
    raise ConfigError(
        f"sasl.bootstrap_user = {config.bootstrap_user!r} needs a password: give its file, "
        f"sasl.bootstrap_password_file, or the variable {PASSWORD_VARIABLE}"
    )


def _changes(user: str, password: bytes, random_bytes: Callable[[int], bytes]) -> list[ScramChange]:
    return [
        ScramChange(user, mechanism, credentials.made_of(mechanism, password, random_bytes(credentials.SALT_BYTES)))
        for mechanism in ScramMechanism
    ]
