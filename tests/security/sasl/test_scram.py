"""SCRAM against another implementation of it (scramp), and against clients that keep to no rule."""

from __future__ import annotations

import base64
import hashlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramClient
from scramp import ScramMechanism as Oracle
from tests.simulation.find import more_at_length

from mainstem.model import ScramMechanism
from mainstem.security.sasl.credentials import ITERATIONS_USUAL, absent, fits, made_of
from mainstem.security.sasl.errors import AuthenticationFailed
from mainstem.security.sasl.scram import Scram
from mainstem.security.sasl.steps import Accepted, CredentialWanted

NONCE = bytes(range(24))
MECHANISMS = list(ScramMechanism)
# what SASLprep leaves as it is: scramp applies it, Kafka does not
TEXTS = st.text(st.sampled_from("abcXYZ019 ,=!\"'/\\äöß字"), min_size=1, max_size=40).map(lambda text: f"u{text}u")


class Talk:
    """Our server and scramp's client."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, nonce: bytes = NONCE) -> None:
        self.client = ScramClient([mechanism.value], user, password, c_nonce="rOprNGfwEbeRWgbNEkqO")
        self.server = Scram(mechanism, nonce)

    def first(self, password: str, iterations: int = 4096, *, exists: bool = True) -> bytes:
        wanted = self.server.step(self.client.get_client_first().encode())
        assert isinstance(wanted, CredentialWanted)
        credential = made_of(wanted.mechanism, password.encode(), b"salt and much more", iterations)
        answer = self.server.found(credential, exists=exists).token
        self.client.set_server_first(answer.decode())
        return answer

    def final(self) -> bytes:
        return str(self.client.get_client_final()).encode()


@given(st.sampled_from(MECHANISMS), TEXTS, TEXTS, st.integers(4096, 5000))
@settings(max_examples=25, deadline=None)
def test_a_client_with_the_right_password_is_let_in_and_believes_the_server(
    mechanism: ScramMechanism, user: str, password: str, iterations: int
) -> None:
    talk = Talk(mechanism, user, password)
    talk.first(password, iterations)
    accepted = talk.server.step(talk.final())
    assert isinstance(accepted, Accepted)
    assert accepted.user == user
    talk.client.set_server_final(accepted.token.decode())  # raises unless the signature is right


@given(st.sampled_from(MECHANISMS), TEXTS, st.binary(min_size=12, max_size=64), st.integers(4096, 5000))
@settings(max_examples=15, deadline=None)
def test_credentials_are_those_that_another_implementation_keeps(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> None:
    kept = made_of(mechanism, password.encode(), salt, iterations)
    theirs = Oracle(mechanism.value).make_auth_info(password, iteration_count=iterations, salt=salt)
    assert (kept.salt, kept.stored_key, kept.server_key, kept.iterations) == tuple(theirs)
    assert fits(kept, password.encode())
    assert not fits(kept, password.encode() + b" ")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_server_says_what_another_server_says(mechanism: ScramMechanism) -> None:
    talk = Talk(mechanism, "an", "apple")
    theirs = Oracle(mechanism.value).make_server(
        lambda user: Oracle(mechanism.value).make_auth_info("apple", iteration_count=4096, salt=b"salt and much more"),
        s_nonce=base64.b64encode(NONCE).rstrip(b"=").decode(),
    )
    server_first = talk.first("apple")
    theirs.set_client_first("n,,n=an,r=rOprNGfwEbeRWgbNEkqO")
    assert server_first.decode() == theirs.get_server_first()
    final = talk.final()
    theirs.set_client_final(final.decode())
    accepted = talk.server.step(final)
    assert isinstance(accepted, Accepted)
    assert accepted.token.decode() == theirs.get_server_final()


def test_the_example_of_the_rfc() -> None:
    server = Scram(ScramMechanism.SHA_256, bytes(24))
    server._own_nonce = b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"  # noqa: SLF001
    assert server.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == CredentialWanted("user", ScramMechanism.SHA_256)
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    first = server.found(made_of(ScramMechanism.SHA_256, b"pencil", salt, 4096), exists=True)
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert first.token == b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = server.step(b"c=biws,r=" + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert final == Accepted("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_fails(mechanism: ScramMechanism) -> None:
    talk = Talk(mechanism, "an", "apple")
    talk.first("pear")
    with pytest.raises(AuthenticationFailed, match="credentials are wrong"):
        talk.server.step(talk.final())


def test_a_user_that_does_not_exist_fails_even_with_a_credential_that_fits() -> None:
    talk = Talk(ScramMechanism.SHA_256, "an", "apple")
    talk.first("apple", exists=False)
    with pytest.raises(AuthenticationFailed, match="credentials are wrong"):
        talk.server.step(talk.final())


def test_a_user_that_does_not_exist_looks_like_one_that_does() -> None:
    one, again = (absent(ScramMechanism.SHA_256, "nobody", b"secret") for _ in range(2))
    assert one == again
    assert one.iterations == ITERATIONS_USUAL
    others = [
        absent(ScramMechanism.SHA_256, "somebody", b"secret"),
        absent(ScramMechanism.SHA_256, "nobody", b"another secret"),
        absent(ScramMechanism.SHA_512, "nobody", b"secret"),
    ]
    assert len({one.salt, *(each.salt for each in others)}) == 4
    assert hashlib.sha256(one.server_key).digest() != one.stored_key


def test_a_message_cannot_be_used_in_another_conversation_nor_twice() -> None:
    talk = Talk(ScramMechanism.SHA_256, "an", "apple")
    talk.first("apple")
    final = talk.final()
    other = Talk(ScramMechanism.SHA_256, "an", "apple", nonce=bytes(24))
    other.first("apple")
    with pytest.raises(AuthenticationFailed, match="another nonce"):
        other.server.step(final)
    assert isinstance(talk.server.step(final), Accepted)
    with pytest.raises(AuthenticationFailed, match="not expected"):
        talk.server.step(final)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"p=tls-server-end-point,,n=an,r=0123456789abcdef", "channel binding"),
        (b"n,a=root,n=an,r=0123456789abcdef", "somebody else"),
        (b"n,,m=must,n=an,r=0123456789abcdef", "malformed"),
        (b"n,,n=,r=0123456789abcdef", "malformed"),
        (b"n,,n=a=n,r=0123456789abcdef", "malformed"),
        (b"n,,n=an,r=short", "malformed"),
        (b"n,,n=\xff\xfe,r=0123456789abcdef", "not UTF-8"),
        (b"n,,n=an,r=" + 5000 * b"x", "5010 bytes"),
        (b"", "malformed"),
    ],
)
def test_first_messages_that_are_refused(message: bytes, why: str) -> None:
    with pytest.raises(AuthenticationFailed, match=why):
        Scram(ScramMechanism.SHA_256, NONCE).step(message)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b"c=biws", b"c=eSws", "another header"),
        (b"c=biws", b"c=%%%", "malformed"),
        (b"c=biws", b"c=b", "not"),
        (b",p=", b",p=AAAA", "Base64|length|credentials"),
        (b",p=", b",q=", "malformed"),
    ],
)
def test_final_messages_that_are_refused(old: bytes, new: bytes, why: str) -> None:
    talk = Talk(ScramMechanism.SHA_256, "an", "apple")
    talk.first("apple")
    with pytest.raises(AuthenticationFailed, match=why):
        talk.server.step(talk.final().replace(old, new, 1))


@pytest.mark.parametrize("seed", more_at_length(range(40), always=12))
def test_no_altered_message_lets_anybody_in(seed: int) -> None:
    randomness = random.Random(seed)

    def altered(message: bytes) -> bytes:
        changed = bytearray(message)
        for _ in range(randomness.randint(1, 3)):
            place = randomness.randrange(len(changed))
            match randomness.randrange(3):
                case 0:
                    changed[place] ^= 1 << randomness.randrange(8)
                case 1:
                    del changed[place]
                case _:
                    changed.insert(place, randomness.randrange(256))
        return bytes(changed)

    talk = Talk(ScramMechanism.SHA_512, "an", "apple")
    talk.first("apple")
    final = talk.final()
    for message in {altered(final) for _ in range(20)} - {final}:
        again = Talk(ScramMechanism.SHA_512, "an", "apple")
        again.first("apple")
        with pytest.raises(AuthenticationFailed):
            again.server.step(message)
    with pytest.raises(AuthenticationFailed):  # the first message is never enough
        Scram(ScramMechanism.SHA_512, NONCE).step(randomness.randbytes(100))
