"""DescribeUserScramCredentials and AlterUserScramCredentials against fakes."""

from __future__ import annotations

import hashlib

import pytest
from tests.broker.admin.admin_broker import AdminBroker
from tests.fakes.access.credentials import FakeCredentials

from mainstem.broker.handlers import alter_user_scram_credentials, describe_user_scram_credentials
from mainstem.model import ScramMechanism
from mainstem.nameserver.errors import FeatureLevelTooLow, MetadataUnavailable
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.sasl import (
    AlterUserScramCredentialsRequest,
    DescribedScramUser,
    DescribeUserScramCredentialsRequest,
    ScramCredentialInfo,
    ScramDeletion,
    ScramUpsertion,
    ScramUserName,
)
from mainstem.security.sasl.credentials import fits

SHA_256, SHA_512 = 1, 2
SALT = b"salt of the earth"


class Users:
    def __init__(self) -> None:
        self.admin = AdminBroker()
        self.kept = FakeCredentials()
        self.admin.broker.credentials = self.kept

    def alter(self, *changes: ScramDeletion | ScramUpsertion) -> dict[str, int]:
        """Error codes by user."""
        request = AlterUserScramCredentialsRequest(
            deletions=tuple(change for change in changes if isinstance(change, ScramDeletion)),
            upsertions=tuple(change for change in changes if isinstance(change, ScramUpsertion)),
        )
        results = self.admin.ask(alter_user_scram_credentials.handle, request).results
        assert len({result.user for result in results}) == len(results)
        assert all((result.error_message is None) == (result.error_code == 0) for result in results)
        return {result.user: result.error_code for result in results}

    def describe(self, *names: str) -> dict[str, DescribedScramUser]:
        users = tuple(ScramUserName(name=name) for name in names) or None
        answer = self.admin.ask(
            describe_user_scram_credentials.handle, DescribeUserScramCredentialsRequest(users=users)
        )
        assert answer.error_code == ErrorCode.NONE
        return {result.user: result for result in answer.results}


@pytest.fixture
def users() -> Users:
    return Users()


def upsertion(
    name: str, password: str = "apple", mechanism: int = SHA_256, iterations: int = 4096, salt: bytes = SALT
) -> ScramUpsertion:
    """As a client makes it, of a password."""
    digest = "sha512" if mechanism == SHA_512 else "sha256"
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, max(iterations, 1))
    return ScramUpsertion(name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted)


def test_users_are_made_described_changed_and_removed(users: Users) -> None:
    assert users.describe() == {}
    assert users.alter(upsertion("an"), upsertion("an", mechanism=SHA_512, iterations=8192), upsertion("bo")) == {
        "an": ErrorCode.NONE,
        "bo": ErrorCode.NONE,
    }
    kept = users.kept.scram_credential("an", ScramMechanism.SHA_512)
    assert kept is not None
    assert fits(kept, b"apple")
    infos = (
        ScramCredentialInfo(mechanism=SHA_256, iterations=4096),
        ScramCredentialInfo(mechanism=SHA_512, iterations=8192),
    )
    assert users.describe()["an"].credential_infos == infos
    assert set(users.describe()) == {"an", "bo"}
    assert users.alter(upsertion("an", "pear"), ScramDeletion(name="bo", mechanism=SHA_256)) == {"bo": 0, "an": 0}
    kept = users.kept.scram_credential("an", ScramMechanism.SHA_256)
    assert kept is not None
    assert fits(kept, b"pear")
    assert users.describe("an", "bo")["bo"].error_code == ErrorCode.RESOURCE_NOT_FOUND
    assert users.alter(ScramDeletion(name="an", mechanism=SHA_256), ScramDeletion(name="an", mechanism=SHA_512)) == {
        "an": ErrorCode.NONE
    }
    assert users.describe() == {}


def test_a_user_that_is_named_twice(users: Users) -> None:
    users.alter(upsertion("an"))
    assert users.describe("an", "an")["an"].error_code == ErrorCode.DUPLICATE_RESOURCE
    assert users.alter(upsertion("bo"), upsertion("bo"), upsertion("cy")) == {
        "bo": ErrorCode.DUPLICATE_RESOURCE,
        "cy": ErrorCode.NONE,
    }
    assert set(users.describe()) == {"an", "cy"}


@pytest.mark.parametrize("size", [1, 18, 32, 1_000])
def test_a_salted_password_may_have_any_length(users: Users, size: int) -> None:
    made = ScramUpsertion(name="an", mechanism=SHA_512, iterations=4096, salt=SALT, salted_password=bytes(size))
    assert users.alter(made) == {"an": ErrorCode.NONE}
    assert set(users.describe()) == {"an"}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("x" * 257), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("bo", iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("bo", iterations=16_385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("bo", salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("bo", mechanism=0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion("bo", mechanism=3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (ScramDeletion(name="bo", mechanism=SHA_256), ErrorCode.RESOURCE_NOT_FOUND),
        (ScramDeletion(name="bo", mechanism=9), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (
            ScramUpsertion(name="bo", mechanism=SHA_512, iterations=4096, salt=SALT, salted_password=b""),
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
        ),
    ],
    ids=str,
)
def test_what_is_wrong_with_one_user_leaves_others_alone(
    users: Users, change: ScramDeletion | ScramUpsertion, error: ErrorCode
) -> None:
    other = upsertion(change.name, mechanism=SHA_512 if change.mechanism != SHA_512 else SHA_256)
    assert users.alter(change, other, upsertion("an")) == {change.name: error, "an": ErrorCode.NONE}
    assert set(users.describe()) == {"an"}, "nothing of the user that has a fault"


def test_a_cluster_that_cannot_take_users(users: Users) -> None:
    users.kept.refuse = FeatureLevelTooLow("the cluster is at feature level 4")
    assert users.alter(upsertion("an")) == {"an": ErrorCode.UNSUPPORTED_VERSION}
    users.kept.refuse = MetadataUnavailable("no leader")
    assert users.alter(upsertion("an")) == {"an": ErrorCode.NOT_CONTROLLER}
    users.admin.broker.credentials = None
    assert users.alter(upsertion("an"))["an"] != ErrorCode.NONE
    assert users.describe() == {}


def test_secrets_do_not_show_in_texts() -> None:
    shown = repr(upsertion("an", "apple"))
    assert "an" in shown
    assert repr(upsertion("an").salted_password) not in shown
    assert repr(SALT) not in shown
