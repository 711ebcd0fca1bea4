"""Credentials come from where the store's other tools look for them, and a store that does not take them is told with
what to do. The bucket's server takes anything, so the wire in front of it looks at what requests say of themselves."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import pwd
import re
import traceback
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests.harness.free_port import free_port
from tests.harness.patience import PATIENCE_SECONDS
from tests.storage.object_stores.faulty_wire import Answer, Fault, FaultyWire, Seen, faulty_wire
from tests.storage.object_stores.faulty_world import CONTENT, WHOLE
from tests.storage.object_stores.gcs_stand_in import gcs_server
from tests.storage.object_stores.servers import Server, s3_server

from mainstem.errors import ConfigError
from mainstem.ports import ObjectStore
from mainstem.storage.object_stores import aws_profile
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.errors import ObjectStoreOutage, ObjectStoreRefused
from mainstem.storage.object_stores.urls import GuardedStore, open_object_store, parsed_url, plain_store

pytest.importorskip("obstore")

NUMBERS = itertools.count()

SIGNED = re.compile(r"Credential=([^/]+)/\d{8}/([^/]+)/s3/")

SKEW_SECONDS_MAX = 900
"""S3 refuses a signature that is older or younger."""


class Checked:
    """A bucket behind a wire that looks at each request as a store does. `known`: access keys."""

    def __init__(self, wire: FaultyWire, scheme: str, bucket: str) -> None:
        self.known = {"of the night": "eu-north-1"}
        self.ahead = timedelta()
        """Of the store's clock."""
        self.wire = wire
        self._url = f"{scheme}://{bucket}/store{next(NUMBERS)}"
        wire.fault = self._fault_of_s3 if scheme == "s3" else lambda seen: None

    def _fault_of_s3(self, seen: Seen) -> Fault | None:
        signed = SIGNED.search(seen.headers.get("authorization", ""))
        if signed is None or signed[1] not in self.known:
            return Answer(403, "InvalidAccessKeyId")
        at = datetime.strptime(seen.headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if abs(datetime.now(UTC) + self.ahead - at) > timedelta(seconds=SKEW_SECONDS_MAX):
            return Answer(403, "RequestTimeTooSkewed")
        return None

    def store(self, **options: str) -> GuardedStore:
        return open_object_store(self._url, self._config(options))

    def plain(self, **options: str) -> ObjectStore:
        """Without retries."""
        return plain_store(parsed_url(self._url), self._config(options))

    def _config(self, options: dict[str, str]) -> ObjectStoreConfig:
        return ObjectStoreConfig(endpoint=self.wire.endpoint, options=options)

    @property
    def last(self) -> Seen:
        return self.wire.seen[-1]

    @property
    def asked(self) -> int:
        return len(self.wire.seen)

    @property
    def last_signed(self) -> tuple[str, str]:
        """Access key and region of the last request."""
        found = SIGNED.search(self.last.headers["authorization"])
        assert found is not None
        return found[1], found[2]


Story = Callable[[Checked], Coroutine[None, None, None]]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def tell(server: Server) -> Callable[[Story], None]:
    async def told(story: Story) -> None:
        async with faulty_wire(server.address) as wire, asyncio.timeout(PATIENCE_SECONDS):
            await story(Checked(wire, "s3", server.bucket))

    return lambda story: asyncio.run(told(story))


@pytest.fixture(autouse=True)
def _nobodys_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without any credentials."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def profiles(home: Path, **keys: str) -> None:
    """Write a file of profiles: name → access key."""
    (home / ".aws").mkdir(exist_ok=True)
    text = "".join(
        f"[{name}]\naws_access_key_id = {key}\naws_secret_access_key = secret\n" for name, key in keys.items()
    )
    (home / ".aws" / "credentials").write_text(text)


async def works(store: GuardedStore) -> None:
    await store.write("a", CONTENT)
    assert bytes((await store.read("a", WHOLE))[0]) == CONTENT
    await store.delete(["a"])


def test_variables_have_keys_region_and_token(tell: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(there: Checked) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the night")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_SESSION_TOKEN", "for an hour")
        monkeypatch.setenv("AWS_REGION", "eu-north-1")
        await works(there.store())
        assert there.last_signed == ("of the night", "eu-north-1")
        assert there.last.headers["x-amz-security-token"] == "for an hour"

    tell(story)


def test_a_profile_has_keys_and_a_region(
    tell: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def story(there: Checked) -> None:
        profiles(tmp_path, default="of the night", day="of the day")
        await works(there.store())
        assert there.last_signed == ("of the night", "us-east-1")
        monkeypatch.setenv("AWS_PROFILE", "day")
        there.known["of the day"] = "us-east-1"
        (tmp_path / ".aws" / "config").write_text("[default]\nregion = a-1\n[profile day]\nregion = eu-south-2\n")
        await works(there.store())
        assert there.last_signed == ("of the day", "eu-south-2")
        monkeypatch.setenv("AWS_REGION", "b-1")
        await works(there.store())
        assert there.last_signed == ("of the day", "b-1")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "elsewhere"))
        (tmp_path / ".aws" / "credentials").rename(tmp_path / "elsewhere")
        await works(there.store())

    tell(story)


def test_keys_that_are_set_go_before_a_profile(
    tell: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def story(there: Checked) -> None:
        profiles(tmp_path, default="of nobody")
        await works(there.store(access_key_id="of the night", secret_access_key="secret"))
        await works(there.store(AWS_ACCESS_KEY_ID="of the night", aws_secret_access_key="secret"))
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the night")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_PROFILE", "absent")
        await works(there.store())

    tell(story)


def test_keys_that_change_in_the_file_are_taken_without_a_restart(
    tell: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def story(there: Checked) -> None:
        profiles(tmp_path, default="of the night")
        kept = there.store()
        await works(kept)
        profiles(tmp_path, default="of tomorrow")
        there.known["of tomorrow"] = ""
        await works(kept)
        assert there.last_signed[0] == "of the night", "the file is not read for each request"
        monkeypatch.setattr(aws_profile, "VALID_SECONDS", 0)
        read_again = there.store()
        await works(read_again)
        profiles(tmp_path, default="of a week later")
        there.known["of a week later"] = ""
        while there.last_signed[0] != "of a week later":
            await works(read_again)

    tell(story)


def test_a_profile_without_keys_is_refused_if_it_was_named(
    tell: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def story(there: Checked) -> None:
        monkeypatch.setenv("AWS_PROFILE", "night")
        profiles(tmp_path, default="of the night")
        with pytest.raises(ConfigError, match=r"has no aws_access_key_id .*of a profile night.*export-credentials"):
            there.store()
        (tmp_path / ".aws" / "credentials").write_text("[night]\nsso_session = at-work\n")
        with pytest.raises(ConfigError, match="export-credentials"):
            there.store()
        (tmp_path / ".aws" / "credentials").write_text("what is this")
        with pytest.raises(ConfigError, match="credentials: cannot be read as a file of profiles"):
            there.store()
        assert not there.asked

    tell(story)


def test_no_line_of_a_file_of_profiles_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tasks of splitters write the whole history of an error to their logs."""
    monkeypatch.setenv("AWS_PROFILE", "night")
    (tmp_path / ".aws").mkdir()
    for text in ("aws_secret_access_key = hidden\n", "[night]\nhidden\n", "[night]\na = 1\na = hidden\n"):
        (tmp_path / ".aws" / "credentials").write_text(text)
        with pytest.raises(ConfigError, match="cannot be read as a file of profiles") as met:
            aws_profile.aws_profile(os.environ, {})
        assert "hidden" not in "".join(traceback.format_exception(met.value))


def test_a_user_without_a_home_has_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers, whose machine may have credentials of its own."""

    def unknown(user: int) -> pwd.struct_passwd:
        raise KeyError(user)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert aws_profile.aws_profile(os.environ, {}) is None


def test_an_unknown_key_is_told_with_what_to_do(
    tell: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def story(there: Checked) -> None:
        profiles(tmp_path, default="of nobody")
        store = there.store()
        with pytest.raises(ObjectStoreRefused, match=r"InvalidAccessKeyId: .*set the credentials of this store"):
            await store.write("a", CONTENT)
        assert there.asked == 1, "no retry helps against it"
        there.known["of nobody"] = ""
        await works(store)

    tell(story)


def test_no_credentials_at_all_are_told_as_that(tell: Callable[[Story], None]) -> None:
    async def story(there: Checked) -> None:
        store = there.plain(metadata_endpoint=f"http://127.0.0.1:{free_port()}")
        with pytest.raises(ObjectStoreOutage, match=r"no credentials are set.*AWS_ACCESS_KEY_ID.*AWS_PROFILE"):
            await store.info("a")
        assert not there.asked

    tell(story)


def test_a_clock_that_is_off_is_told_and_work_goes_on_when_it_is_right(
    tell: Callable[[Story], None], tmp_path: Path
) -> None:
    async def story(there: Checked) -> None:
        profiles(tmp_path, default="of the night")
        store = there.store()
        for minutes in (14, -14):
            there.ahead = timedelta(minutes=minutes)
            await works(store)
        for minutes in (16, -16, 60 * 24 * 365):
            there.ahead = timedelta(minutes=minutes)
            asked = there.asked
            with pytest.raises(ObjectStoreRefused, match=r"RequestTimeTooSkewed: .*set the clock of this machine"):
                await store.write("a", CONTENT)
            assert there.asked == asked + 1
        there.ahead = timedelta()
        await works(store)

    tell(story)


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a service account, named in the environment."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    account = {
        "type": "service_account",
        "client_email": "night@project.iam.gserviceaccount.com",
        "private_key_id": "key of the night",
        "private_key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        "token_uri": "https://oauth2.invalid/token",
    }
    path = tmp_path / "account.json"
    path.write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    return path


def of_google(story: Story) -> None:
    async def told(server: Server) -> None:
        async with faulty_wire(server.address) as wire, asyncio.timeout(PATIENCE_SECONDS):
            await story(Checked(wire, "gs", server.bucket))

    with gcs_server("mainstem-credentials") as server:
        asyncio.run(told(Server(server.endpoint, {}, server.bucket)))


def claims(seen: Seen) -> dict[str, Any]:
    """The contents of the token with which a request came."""
    kind, _, token = seen.headers["authorization"].partition(" ")
    assert kind == "Bearer"
    parts = [base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in token.split(".")[:2]]
    return {**json.loads(parts[0]), **json.loads(parts[1])}


@pytest.mark.usefixtures("google")
def test_googles_variable_names_a_service_account() -> None:
    async def story(there: Checked) -> None:
        await works(there.store())
        said = claims(there.last)
        assert (said["iss"], said["kid"]) == ("night@project.iam.gserviceaccount.com", "key of the night")

    of_google(story)


@pytest.mark.usefixtures("google")
def test_an_account_that_google_does_not_take_is_told_with_what_to_do() -> None:
    async def story(there: Checked) -> None:
        there.wire.always(Answer(401, "AuthenticationRequired"))
        with pytest.raises(ObjectStoreRefused, match="check the credentials, their rights and the clock"):
            await there.store().write("a", CONTENT)
        assert there.asked == 1

    of_google(story)


def test_a_file_that_is_no_account_is_named(google: Path) -> None:
    async def story(there: Checked) -> None:
        google.write_text("{}")  # noqa: ASYNC240
        with pytest.raises(ConfigError, match=r"gs://mainstem-credentials/.* cannot be opened"):
            there.store()
        google.unlink()  # noqa: ASYNC240
        with pytest.raises(ConfigError, match=r"cannot be opened: .*account\.json"):
            there.store()
        assert not there.asked

    of_google(story)
