"""Whether a bearer token is valid: a JWT (RFC 7519), signed with one of the keys that its issuer publishes (RFC 7517).

Only signatures with public keys are taken: `none` and the HS family, for which a public key would be the secret, are
refused whatever the key set says. A token names its key (`kid`) if the set has more than one. `exp` has to be there;
issuer and audience have to be the expected ones where such are configured. Needs the extra `security`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mainstem.security.sasl.errors import AuthenticationFailed, KeysUnavailable

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")

TOKEN_BYTES_MAX = 16 * 1024
KEYS_MAX = 100
"""Issuers publish a handful: the present key, and those before and after it."""
KEY_SET_BYTES_MAX = 1024 * 1024
RSA_BITS_MAX = 8192
"""A larger key takes milliseconds per token."""
USER_CHARACTERS_MAX = 256

_JWT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
MISSING = "OAUTHBEARER needs the extra: pip install 'mainstem[security]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The claims that a token has to make."""

    issuer: str = ""
    audiences: tuple[str, ...] = ()
    """It is for one of these; none: for anybody."""
    scopes: tuple[str, ...] = ()
    """It has all of these."""
    user_claim: str = "sub"
    scope_claim: str = "scope"
    clock_skew_seconds: int = 30


class TokenIdentity(NamedTuple):
    """Whom a valid token names, and until when (ms since the Unix epoch)."""

    user: str
    expires_ms: int


class UnknownKey(AuthenticationFailed):
    """The token names a key that is not in the set: perhaps the issuer has a new one."""


def read_keys(text: bytes) -> KeySet:
    """The public keys of a JWKS document. Keys of kinds that sign nothing here are left out. Raises
    `KeysUnavailable`."""
    try:
        from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey
    except ImportError:
        raise KeysUnavailable(MISSING) from None
    if len(text) > KEY_SET_BYTES_MAX:
        raise KeysUnavailable(f"the key set has more than {KEY_SET_BYTES_MAX} bytes")
    kinds: dict[str, Any] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
    keys: list[Any] = []
    try:
        for row in json.loads(text)["keys"][:KEYS_MAX]:
            kind = kinds.get(row.get("kty"))
            if kind is None or row.get("use", "sig") != "sig":
                continue
            key = kind.import_key(row)
            if kind is RSAKey and key.public_key.key_size > RSA_BITS_MAX:
                continue
            keys.append(key)
    except Exception as error:
        raise KeysUnavailable(f"the key set is malformed: {type(error).__name__}") from None
    if not keys:
        raise KeysUnavailable("the key set has no key that signs tokens")
    return KeySet(keys)


def check_token(token: str, keys: KeySet, expected: Expected, now_seconds: float) -> TokenIdentity:
    """Raises `AuthenticationFailed` with the reason, `UnknownKey` where other keys may help."""
    try:
        from joserfc import jws, jwt
        from joserfc.errors import JoseError
    except ImportError:
        raise AuthenticationFailed(MISSING) from None
    if len(token) > TOKEN_BYTES_MAX:
        raise AuthenticationFailed(f"a token of {len(token)} bytes")
    if _JWT.fullmatch(token) is None:
        raise AuthenticationFailed("the token is no signed JWT")
    try:
        header = jws.extract_compact(token.encode()).headers()
    except Exception:
        raise AuthenticationFailed("the token's header is malformed") from None
    if header.get("alg") not in ALGORITHMS:
        raise AuthenticationFailed("the token's algorithm is not taken")
    if "crit" in header:
        raise AuthenticationFailed("the token has a critical header")
    kid = header.get("kid")
    if kid is None and len(keys.keys) > 1:
        raise AuthenticationFailed("the token names no key")
    if kid is not None and not any(key.kid == kid for key in keys.keys):
        raise UnknownKey("the token names a key that the key set does not have")
    try:
        claims = jwt.decode(token, keys, algorithms=list(ALGORITHMS)).claims
    except JoseError as error:
        raise AuthenticationFailed(f"the token's signature is wrong: {type(error).__name__}") from None
    except Exception as error:
        raise AuthenticationFailed(f"the token is malformed: {type(error).__name__}") from None
    return _judged(claims, expected, now_seconds)


def _judged(claims: Mapping[str, Any], expected: Expected, now_seconds: float) -> TokenIdentity:
    skew = expected.clock_skew_seconds
    expires = _seconds(claims, "exp")
    if expires is None:
        raise AuthenticationFailed("the token does not expire")
    if now_seconds >= expires + skew:
        raise AuthenticationFailed("the token has expired")
    for name in ("nbf", "iat"):
        begins = _seconds(claims, name)
        if begins is not None and now_seconds + skew < begins:
            raise AuthenticationFailed(f"the token's {name} lies ahead")
    if expected.issuer and claims.get("iss") != expected.issuer:
        raise AuthenticationFailed("the token has another issuer")
    if expected.audiences and not set(_texts(claims.get("aud"))) & set(expected.audiences):
        raise AuthenticationFailed("the token is for another audience")
    scopes = claims.get(expected.scope_claim)
    given = set(scopes.split()) if isinstance(scopes, str) else set(_texts(scopes))
    if not given >= set(expected.scopes):
        raise AuthenticationFailed("the token lacks a scope")
    user = claims.get(expected.user_claim)
    if not isinstance(user, str) or not user.strip() or len(user) > USER_CHARACTERS_MAX or "\0" in user:
        raise AuthenticationFailed(f"the token's claim {expected.user_claim} names nobody")
    return TokenIdentity(user, int((expires + skew) * 1000))


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**53:
        raise AuthenticationFailed(f"the token's {name} is no time")
    return float(value)


def _texts(value: Any) -> Sequence[str]:
    if isinstance(value, str):
        return (value,)
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else ()
