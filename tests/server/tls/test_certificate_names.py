"""Subjects of certificates as Java writes them, and the names that rules make of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509 as made
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from mainstem.certificate_files.x509 import expires_at, subject
from mainstem.server.tls.principals import PrincipalMapping

KEY = ec.generate_private_key(ec.SECP256R1())
ENDS = datetime(2051, 6, 7, 8, 9, 10, tzinfo=UTC)


def certificate(*parts: list[tuple[made.ObjectIdentifier, str]], ends: datetime = ENDS) -> bytes:
    """A certificate of its own holder, whose subject has these parts, in DER form."""
    name = made.Name([made.RelativeDistinguishedName([made.NameAttribute(*each) for each in part]) for part in parts])
    builder = made.CertificateBuilder(name, name, KEY.public_key(), made.random_serial_number())
    builder = builder.not_valid_before(ENDS - timedelta(days=20_000)).not_valid_after(ends)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.DER)


ONE = certificate([(NameOID.COMMON_NAME, "orders")])


@pytest.mark.parametrize(
    ("parts", "written"),
    [
        ([[(NameOID.COMMON_NAME, "orders")]], "CN=orders"),
        (
            [[(NameOID.COUNTRY_NAME, "DE")], [(NameOID.ORGANIZATION_NAME, "A, B & C")], [(NameOID.COMMON_NAME, "x")]],
            r"CN=x,O=A\, B & C,C=DE",
        ),
        ([[(NameOID.COMMON_NAME, " Zürich ")]], "CN=\\ Zürich\\ "),
        ([[(NameOID.EMAIL_ADDRESS, "a@b")]], "1.2.840.113549.1.9.1=#1603614062"),
        ([[(NameOID.DOMAIN_COMPONENT, "org")], [(NameOID.USER_ID, "u1")]], "UID=u1,DC=org"),
        ([[(NameOID.COMMON_NAME, 'a#x<y>=;"q"')]], r"CN=a\#x\<y\>\=\;\"q\""),
        ([[(NameOID.COMMON_NAME, "a"), (NameOID.ORGANIZATIONAL_UNIT_NAME, "b")]], "CN=a+OU=b"),
        ([[(NameOID.COMMON_NAME, "  ")]], "CN=\\ \\ "),
        ([[(NameOID.SERIAL_NUMBER, "5")], [(NameOID.TITLE, "t")]], "2.5.4.12=#0c0174,2.5.4.5=#130135"),
        ([], ""),
    ],
)
def test_a_subject_is_written_as_java_writes_it(
    parts: list[list[tuple[made.ObjectIdentifier, str]]], written: str
) -> None:
    """The right side is what `X500Principal.getName()` of Java 17 says of the same bytes."""
    assert subject(certificate(*parts)) == written


@pytest.mark.parametrize("year", [2049, 2050, 2051])
def test_the_end_of_a_certificate_is_read_in_both_of_its_forms(year: int) -> None:
    ends = ENDS.replace(year=year)
    assert expires_at(certificate([(NameOID.COMMON_NAME, "x")], ends=ends)) == ends.timestamp()


@given(st.data())
def test_bytes_that_are_no_certificate_are_a_value_error(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, 200))
    spoilt = ONE[:at] + data.draw(st.binary(max_size=8)) + ONE[at + data.draw(st.integers(0, 8)) :]
    for read in (subject, expires_at):
        try:
            read(spoilt)
        except ValueError:
            pass


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("DEFAULT", "User:CN=Kafka,OU=Eng,O=Ex"),
        ("RULE:^CN=(.*?),.*$/$1/", "User:Kafka"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L", "User:kafka@eng"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1.$2/U", "User:KAFKA.ENG"),
        ("RULE:.*/nobody/", "User:nobody"),
        ("RULE:CN=Kafka/x/", None),
    ],
)
def test_rules_are_of_the_whole_subject(rule: str, name: str | None) -> None:
    assert PrincipalMapping([rule]).principal("CN=Kafka,OU=Eng,O=Ex") == name
