"""Certificates that are revoked while they are valid: listeners with a list of them."""

from __future__ import annotations

import contextlib
import logging
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.raw_client import RawClient
from tests.server.scripted import run, serving, until
from tests.server.tls.certificates import Authority
from tests.server.tls.test_tls import closed, is_accepted

from mainstem.certificate_files import x509
from mainstem.certificate_files.revocations import read_lists
from mainstem.errors import ConfigError
from mainstem.server.tls.certificates import ListenerCertificate


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_who_shows_a_revoked_certificate_stays_out_and_is_put_out(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        list_file = tmp_path / "users.crl"
        an, bo = authority.issue("an"), authority.issue("bo")
        list_file.write_bytes(authority.revocation_list())
        listener = authority.listener(ca=authority.ca, client_auth="required", crl=str(list_file))
        async with serving(listeners={"MUTUAL": listener}) as (server, _):
            (address,) = server.addresses
            stays, goes = [await RawClient.connect(address, authority.client(shows)) for shows in (an, bo)]
            for client in (stays, goes):
                await client.send_frame(b"e")
                assert await client.receive() == b"e"
            list_file.write_text("no list")
            server.look_at_certificates()
            assert await is_accepted(address, authority.client(bo)), "a file that cannot be read changes nothing"
            replaced(list_file, authority.revocation_list(bo, next_update=datetime.now(UTC) - timedelta(days=1)))
            server.look_at_certificates()
            await until(lambda: len(server.connections) == 1)
            assert not await is_accepted(address, authority.client(bo))
            assert await is_accepted(address, authority.client(an))
            await stays.send_frame(b"e")
            assert await stays.receive() == b"e"
            await closed(goes)
            ends = [it.labels for it in server.samples() if it.name == "mainstem_revocation_list_expires_seconds"]
            assert ends == [(("listener", "MUTUAL"),)]
            await closed(stays)
            await until(lambda: not server.connections)

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    told = " ".join(record.getMessage() for record in caplog.records if record.name.startswith("mainstem"))
    assert "the revoked certificates of listener MUTUAL stay as they were: no list of revoked certificates" in told
    assert "its certificate was revoked meanwhile" in told
    assert "the certificate that the peer shows is revoked" in told
    assert not [record for record in caplog.records if record.exc_info]


def replaced(file: Path, content: bytes) -> None:
    """As `mainstem cert revoke` does it: another file, so that it differs within one tick of the disk's clock."""
    other = file.with_suffix(".new")
    other.write_bytes(content)
    other.rename(file)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "no list of revoked certificates is in it"),
        (b"-----BEGIN X509 CRL-----\nMIIB", "ends early"),
        (b"-----BEGIN X509 CRL-----\nMIIB\n-----END X509 CRL-----\n", "ends early"),
        (b"-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n", ""),
        (bytes(1024 * 1024 + 1), "more than"),
    ],
)
def test_a_list_that_cannot_be_read_stops_the_start(
    authority: Authority, tmp_path: Path, content: bytes, fault: str
) -> None:
    file = tmp_path / "users.crl"
    file.write_bytes(content)
    config = authority.listener(ca=authority.ca, client_auth="required", crl=str(file))
    with pytest.raises(ConfigError, match=f"crl = .*{fault}"):
        ListenerCertificate("MUTUAL", config)


def test_a_list_that_means_something_else_is_refused(authority: Authority, tmp_path: Path) -> None:
    file = tmp_path / "users.crl"
    file.write_bytes(authority.revocation_list(changes_alone=True))
    with pytest.raises(ValueError, match="critical extension"):
        read_lists(str(file))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_spoilt_lists_are_refused_or_read(data: st.DataObject) -> None:
    whole = bytearray(a_list())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        x509.revocation_list(bytes(whole[: data.draw(st.integers(0, len(whole)))]))


@cache
def a_list() -> bytes:
    """A list in DER form."""
    with tempfile.TemporaryDirectory() as directory:
        authority = Authority(Path(directory))
        armoured = authority.revocation_list(authority.issue("an")).decode()
    return ssl.PEM_cert_to_DER_cert(armoured.replace("X509 CRL", "CERTIFICATE"))
