"""OAUTHBEARER: its messages, and tokens that are and are not valid."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey
from tests.fakes.clock import FakeClock

from mainstem.security.sasl.bearer import Bearer
from mainstem.security.sasl.errors import AuthenticationFailed, KeysUnavailable
from mainstem.security.sasl.key_source import FRESH_SECONDS, PAUSE_SECONDS, KeySource, reader_of
from mainstem.security.sasl.steps import Accepted, BearerTokenGiven, Challenge
from mainstem.security.sasl.token_check import Expected, TokenIdentity, UnknownKey, check_token, read_keys
from mainstem.side_thread import AtOnce

NOW = 1_700_000_000
RSA_KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
EC_KEY = ECKey.generate_key("P-256", {"kid": "two", "use": "sig"})
OTHER_KEY = RSAKey.generate_key(2048, {"kid": "one"})
EXPECTED = Expected(issuer="https://issuer", audiences=("mainstem", "kafka"), scopes=("write",))


def document(*keys: RSAKey | ECKey) -> bytes:
    return json.dumps(KeySet(list(keys or (RSA_KEY, EC_KEY))).as_dict(private=False)).encode()


KEYS = read_keys(document())


def token(key: RSAKey | ECKey = RSA_KEY, header: dict[str, Any] | None = None, **claims: Any) -> str:
    usual = {"iss": "https://issuer", "aud": ["kafka"], "sub": "an", "exp": NOW + 60, "scope": "read write"}
    algorithm = "RS256" if isinstance(key, RSAKey) else "ES256"
    said = {name: value for name, value in {**usual, **claims}.items() if value is not None}
    return jwt.encode({"alg": algorithm, "kid": key.kid, **(header or {})}, said, key)


def unsigned(header: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps({"sub": "an", "exp": NOW + 60}).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


@pytest.mark.parametrize("key", [RSA_KEY, EC_KEY])
def test_a_valid_token_names_its_user(key: RSAKey | ECKey) -> None:
    found = check_token(token(key), KEYS, EXPECTED, NOW)
    assert found == TokenIdentity("an", (NOW + 60 + 30) * 1000)


def test_claims_are_chosen() -> None:
    chosen = Expected(user_claim="email", scope_claim="scp", scopes=("a",))
    assert check_token(token(email="an@example", scp=["a", "b"]), KEYS, chosen, NOW).user == "an@example"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (lambda: token(exp=NOW - 31), "expired"),
        (lambda: token(exp=None), "does not expire"),
        (lambda: token(exp="soon"), "no time"),
        (lambda: token(exp=True), "no time"),
        (lambda: token(nbf=NOW + 31), "nbf lies ahead"),
        (lambda: token(iat=NOW + 3600), "iat lies ahead"),
        (lambda: token(iss="https://other"), "issuer"),
        (lambda: token(iss=None), "issuer"),
        (lambda: token(aud="other"), "audience"),
        (lambda: token(aud=None), "audience"),
        (lambda: token(scope="read"), "scope"),
        (lambda: token(sub=None), "names nobody"),
        (lambda: token(sub="  "), "names nobody"),
        (lambda: token(sub="x" * 300), "names nobody"),
        (lambda: token(OTHER_KEY), "signature is wrong"),
        (lambda: token(header={"kid": "three"}), "does not have"),
        (lambda: token(header={"crit": ["exp"]}), "critical|signature|malformed"),
        (lambda: unsigned({"alg": "none", "kid": "one"}), "no signed JWT"),
        (lambda: unsigned({"alg": "none", "kid": "one"}, b"x"), "algorithm"),
        (lambda: token()[:-8] + "AAAAAAAA", "signature is wrong"),
        (lambda: "x" * 20_000, "20000 bytes"),
        (lambda: "a.b.c", "malformed"),
        (lambda: "", "no signed JWT"),
    ],
)
def test_tokens_that_are_refused(given: Callable[[], str], why: str) -> None:
    try:
        text = given()
    except Exception:  # the maker refuses some headers itself
        text = unsigned({"alg": "RS256", "kid": "one", "crit": ["exp"]}, b"x")
    with pytest.raises(AuthenticationFailed, match=why):
        check_token(text, KEYS, EXPECTED, NOW)


def test_a_public_key_is_no_shared_secret() -> None:
    said = unsigned({"alg": "HS256", "kid": "one"}).rstrip(".").encode()
    signature = hmac.digest(RSA_KEY.as_pem(private=False), said, "sha256")
    forged = unsigned({"alg": "HS256", "kid": "one"}, signature)
    with pytest.raises(AuthenticationFailed, match="algorithm"):
        check_token(forged, KEYS, Expected(), NOW)


def test_a_token_without_a_key_id_is_taken_if_there_is_one_key() -> None:
    one = read_keys(document(RSA_KEY))
    nameless = jwt.encode({"alg": "RS256"}, {"sub": "an", "exp": NOW + 60}, RSA_KEY)
    assert check_token(nameless, one, Expected(), NOW).user == "an"
    with pytest.raises(AuthenticationFailed, match="names no key"):
        check_token(nameless, KEYS, Expected(), NOW)


@pytest.mark.parametrize("text", [b"", b"[]", b'{"keys": []}', b'{"keys": [{"kty": "oct", "k": "AAAA"}]}', b"{" * 9999])
def test_documents_without_keys(text: bytes) -> None:
    with pytest.raises(KeysUnavailable):
        read_keys(text)


def test_keys_that_change_are_found_and_the_issuer_is_not_asked_too_often() -> None:
    clock, documents, reads = FakeClock(NOW * 1000), [document(RSA_KEY)], []

    def read() -> bytes:
        reads.append(clock.monotonic())
        if not documents:
            raise OSError("the issuer is away")
        return documents[-1]

    async def story() -> None:
        source = KeySource(read, AtOnce(), clock)
        first = await source.keys()
        with pytest.raises(UnknownKey):
            check_token(token(EC_KEY), first, EXPECTED, NOW)
        documents.append(document())
        assert await source.keys(missed=True) is first  # asked a moment ago
        clock.advance(PAUSE_SECONDS)
        check_token(token(EC_KEY), await source.keys(missed=True), EXPECTED, NOW)
        for _ in range(100):
            await source.keys(missed=True)
        assert len(reads) == 2
        documents.clear()
        clock.advance(FRESH_SECONDS)
        assert (await source.keys()).keys  # old keys are better than none
        assert len(reads) == 3

    asyncio.run(story())


def test_without_any_keys_nobody_is_let_in(tmp_path: Any) -> None:
    async def story() -> None:
        source = KeySource(reader_of(str(tmp_path / "missing.json")), AtOnce(), FakeClock())
        with pytest.raises(KeysUnavailable):
            await source.keys()

    asyncio.run(story())
    (tmp_path / "keys.json").write_bytes(document())
    assert reader_of(f"file://{tmp_path}/keys.json")() == document()


def test_messages() -> None:
    mechanism = Bearer()
    assert mechanism.step(b"n,,\x01auth=Bearer abc.def.ghi\x01x=1\x01\x01") == BearerTokenGiven("abc.def.ghi")
    assert mechanism.valid("an", 5) == Accepted("an", expires_ms=5)
    mechanism = Bearer()
    assert mechanism.step(b"n,a=root,\x01auth=bearer abc\x01\x01") == BearerTokenGiven("abc", "root")
    assert mechanism.valid("an", 5) == Challenge(b'{"status":"invalid_token"}')
    with pytest.raises(AuthenticationFailed, match="somebody else"):
        mechanism.step(b"\x01")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"p=x,,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer " + b"a" * 40_000 + b"\x01\x01",
    ],
)
def test_messages_that_are_refused(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        Bearer().step(message)
