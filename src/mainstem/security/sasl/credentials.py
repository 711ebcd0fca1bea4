"""SCRAM credentials: made of passwords, checked against passwords, and made up for users that do not exist.

A credential has what RFC 5802 keeps of a password: a salt, a count of iterations, and two keys. A thief of them can try
passwords at the price of the iterations, and can pretend to be the server; they are as secret as a password file.
"""

from __future__ import annotations

import hashlib
import hmac

from mainstem.model import SCRAM_MECHANISMS, ScramCredential, ScramMechanism
from mainstem.security.sasl.errors import InvalidCredential

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16_384
"""Kafka's bounds. With PLAIN the node hashes as often itself: 16,384 rounds of SHA-512 take some 9 ms."""
ITERATIONS_USUAL = 4096
"""Kafka's own default: users that are made without a count look like users that do not exist."""
SALT_BYTES = 32
SALT_BYTES_MAX = 256
"""Kafka takes a salt of any length, and clients choose theirs: some send a word of few letters. An empty one is
refused: SCRAM has no way to tell it to clients."""
USER_BYTES_MAX = 256
"""Kafka bounds names nowhere; those of the longest LDAP names have fewer."""

_ABSENT = b"mainstem: a user that does not exist"


def keys_of(mechanism: ScramMechanism, salted_password: bytes) -> tuple[bytes, bytes]:
    """The stored key and the server key."""
    digest = mechanism.digest
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    return hashlib.new(digest, client_key).digest(), hmac.digest(salted_password, b"Server Key", digest)


def made_of(
    mechanism: ScramMechanism, password: bytes, salt: bytes, iterations: int = ITERATIONS_USUAL
) -> ScramCredential:
    """The credential of a password: takes milliseconds."""
    salted = hashlib.pbkdf2_hmac(mechanism.digest, password, salt, iterations)
    return of_salted(mechanism, salted, salt, iterations)


def of_salted(mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of a password that somebody else salted (AlterUserScramCredentials)."""
    stored_key, server_key = keys_of(mechanism, salted_password)
    return ScramCredential(mechanism, salt, iterations, stored_key, server_key)


def fits(credential: ScramCredential, password: bytes) -> bool:
    """Whether that is the password. Takes milliseconds, in which other threads may run."""
    mechanism = credential.mechanism
    salted = hashlib.pbkdf2_hmac(mechanism.digest, password, credential.salt, credential.iterations)
    stored_key, _ = keys_of(mechanism, salted)
    return hmac.compare_digest(stored_key, credential.stored_key)


def absent(mechanism: ScramMechanism, user: str, secret: bytes) -> ScramCredential:
    """A credential that stands for that of a user that does not exist: the same each time and on each node, as long as
    the cluster's secret stays, and no password fits it that anybody could find."""
    name = user.encode()

    def made_up(what: bytes, size: int) -> bytes:
        return hmac.digest(secret, b"\0".join((_ABSENT, what, mechanism.value.encode(), name)), "sha512")[:size]

    size = mechanism.key_bytes
    return ScramCredential(
        mechanism, made_up(b"salt", SALT_BYTES), ITERATIONS_USUAL, made_up(b"stored", size), made_up(b"server", size)
    )


def check(user: str, credential: ScramCredential) -> None:
    """Raises `InvalidCredential` for a credential that is not to be kept."""
    check_name(user)
    check_cost(credential.salt, credential.iterations)
    size = credential.mechanism.key_bytes
    if len(credential.stored_key) != size or len(credential.server_key) != size:
        raise InvalidCredential(f"the keys of {credential.mechanism.value} have {size} bytes each")


def check_name(user: str) -> None:
    """Raises `InvalidCredential`."""
    if not user:
        raise InvalidCredential("a user needs a name")
    if len(user.encode()) > USER_BYTES_MAX:
        raise InvalidCredential(f"a user's name has {USER_BYTES_MAX} bytes at most")
    if "\0" in user:
        raise InvalidCredential("a user's name has no zero byte")


def check_cost(salt: bytes, iterations: int) -> None:
    """Raises `InvalidCredential`."""
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise InvalidCredential(f"{iterations} iterations: they are from {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    if not 1 <= len(salt) <= SALT_BYTES_MAX:
        raise InvalidCredential(f"a salt of {len(salt)} bytes: it has from 1 to {SALT_BYTES_MAX}")


def mechanism_named(name: str) -> ScramMechanism | None:
    """None: there is none of that name."""
    return SCRAM_MECHANISMS.get(name)
