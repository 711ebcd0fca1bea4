"""TLS by librdkafka's settings, for connections that are made without it."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mainstem.cli.clients.kafka_connection import KafkaConnections
from mainstem.cli.clients.tls import context_of
from mainstem.cli.errors import SettingsUnusable
from mainstem.security.certificates import holders
from mainstem.security.certificates.certificate_directory import CertificateDirectory


def made(**settings: str) -> ssl.SSLContext:
    found = context_of({"security.protocol": "SSL", **{key.replace("_", "."): it for key, it in settings.items()}})
    assert found is not None
    return found


def test_nothing_is_encrypted_unasked() -> None:
    assert context_of({}) is None
    assert context_of({"security.protocol": "sasl_plaintext", "ssl.ca.location": "/nowhere"}) is None


def test_the_other_end_is_checked_unless_told_otherwise() -> None:
    assert (made().verify_mode, made().check_hostname) == (ssl.CERT_REQUIRED, True)
    loose = made(ssl_endpoint_identification_algorithm="none")
    assert (loose.verify_mode, loose.check_hostname) == (ssl.CERT_REQUIRED, False)
    open_to_all = made(enable_ssl_certificate_verification="False")
    assert (open_to_all.verify_mode, open_to_all.check_hostname) == (ssl.CERT_NONE, False)


def test_only_the_authorities_that_are_named_count(tmp_path: Path) -> None:
    certs = CertificateDirectory(tmp_path)
    certs.make_authorities("test", datetime.now(UTC))
    (only,) = made(ssl_ca_location=str(certs.authority_file(holders.AuthorityKind.NODES))).get_ca_certs()
    assert only["subject"] == ((("commonName", "test nodes"),),)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ssl_ca_location": "/nowhere"}, r"ssl.ca.location cannot be used"),
        ({"ssl_certificate_location": "/nowhere"}, r"ssl.certificate.location with ssl.key.location cannot be used"),
        ({"ssl_keystore_location": "/nowhere"}, r"ssl.keystore.location: this command has no use for it"),
        ({"ssl_cipher_suites": "a"}, r"ssl.cipher.suites: this command has no use for it"),
    ],
)
def test_what_cannot_be_used_is_named(settings: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsUnusable, match=said):
        made(**settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "sasl.mechanism = GSSAPI: this command has PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "this command has PLAIN"),
        ({"sasl.mechanism": "PLAIN"}, "takes sasl.username and sasl.password"),
        (
            {"sasl.mechanism": "PLAIN", "sasl.oauthbearer.config": "a"},
            "sasl.oauthbearer.config: this command has no use",
        ),
    ],
)
def test_no_password_is_sent_by_a_mechanism_that_the_command_does_not_know(settings: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsUnusable, match=said) as raised:
        KafkaConnections({"security.protocol": "SASL_SSL", "sasl.password": "secret", **settings})
    assert "secret" not in str(raised.value)
