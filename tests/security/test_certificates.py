"""Certificates of the two authorities: who accepts them where, what renewing keeps, and what files look like."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.security.certificates import holders
from mainstem.security.certificates.certificate_directory import CertificateDirectory, WrittenCertificate
from mainstem.security.certificates.description import Description, described
from mainstem.security.certificates.errors import (
    CertificateExists,
    CertificateRefused,
    CertificateUnreadable,
    LibraryMissing,
)
from mainstem.security.certificates.library import require_cryptography
from mainstem.security.certificates.pem_files import key_of

NOW = datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def certs(tmp_path: Path) -> CertificateDirectory:
    made = CertificateDirectory(tmp_path / "certs")
    made.make_authorities("test", NOW)
    return made


def nodes_ca(certs: CertificateDirectory) -> str:
    return str(certs.authority_file(holders.AuthorityKind.NODES))


def users_ca(certs: CertificateDirectory) -> str:
    return str(certs.authority_file(holders.AuthorityKind.USERS))


def only(path: Path) -> Description:
    (found,) = described(path)
    return found


class Refused(Exception):
    """The handshake failed; the message says at which end."""


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Raises Refused."""
    ours, theirs = socket.socketpair()
    failed: list[str] = []

    def serve() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True) as end:
                end.sendall(b"x")
        except OSError as error:
            failed.append(f"server: {error}")
            theirs.close()

    ours.settimeout(PATIENCE_SECONDS)
    theirs.settimeout(PATIENCE_SECONDS)
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=name) as end:
            end.recv(1)
    except OSError as error:
        failed.append(f"client: {error}")
    finally:
        ours.close()
        thread.join()
    if failed:
        raise Refused("; ".join(failed))


def server_side(shown: WrittenCertificate, clients: str | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.certificate, shown.key)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients)
    return context


def client_side(trusted: str, shown: WrittenCertificate | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(trusted)
    if shown is not None:
        context.load_cert_chain(shown.certificate, shown.key)
    return context


def test_clients_reach_a_node_at_its_hosts_and_nowhere_else(certs: CertificateDirectory) -> None:
    node = certs.create(holders.node(1, ("Node-1.Example", "10.0.0.1", "[::1]")), NOW)
    for name in ("node-1.example", "10.0.0.1", "::1"):
        shake_hands(server_side(node), client_side(nodes_ca(certs)), name)
    for name in ("node-2.example", "10.0.0.2"):
        with pytest.raises(Refused, match="mismatch"):
            shake_hands(server_side(node), client_side(nodes_ca(certs)), name)


def test_each_authority_counts_where_it_is_named_alone(certs: CertificateDirectory) -> None:
    node = certs.create(holders.node(1, ("host",)), NOW)
    alice = certs.create(holders.user("alice"), NOW)
    listener = server_side(node, clients=users_ca(certs))
    shake_hands(listener, client_side(nodes_ca(certs), alice), "host")
    with pytest.raises(Refused, match=r"server: .*CERTIFICATE_VERIFY_FAILED"):  # a node's certificate is no user's
        shake_hands(listener, client_side(nodes_ca(certs), node), "host")
    with pytest.raises(Refused, match=r"server: .*CERTIFICATE_VERIFY_FAILED"):  # nor is a user's one of a node
        shake_hands(server_side(node, clients=nodes_ca(certs)), client_side(nodes_ca(certs), alice), "host")


def test_a_user_passes_for_no_server(certs: CertificateDirectory) -> None:
    """Even for a client that trusts the users' authority, and asks for no name."""
    alice = certs.create(holders.user("alice"), NOW)
    client = client_side(users_ca(certs))
    client.check_hostname = False
    with pytest.raises(Refused, match=r"(unsupported|unsuitable) certificate purpose"):
        shake_hands(server_side(alice), client, "alice")


def test_what_is_issued_says_who_it_is_and_until_when(certs: CertificateDirectory) -> None:
    node = only(certs.create(holders.node(3, ("host", "::1")), NOW).certificate)
    assert node.subject == "CN=mainstem-node-3"
    assert node.names == ["mainstem-node-3", "host", "::1"]
    assert (node.usages, node.authority, node.key) == (["server", "client"], False, "ECDSA secp256r1")
    assert node.issuer == "CN=test nodes"
    assert node.left(NOW) == timedelta(days=365)
    assert node.not_before < NOW
    user = only(certs.create(holders.user("alice"), NOW, timedelta(days=7)).certificate)
    assert (user.subject, user.names, user.usages) == ("CN=alice", [], ["client"])
    assert user.left(NOW) == timedelta(days=7)
    assert only(certs.create(holders.splitter(), NOW).certificate).names == ["mainstem-client"]
    authority = only(Path(nodes_ca(certs)))
    assert authority.authority
    assert authority.left(NOW) > timedelta(days=3650)
    assert len({node.serial, user.serial, authority.serial}) == 3


@pytest.mark.parametrize("new_key", [False, True])
def test_renewing_says_the_same_with_a_later_end(certs: CertificateDirectory, new_key: bool) -> None:
    made = certs.create(holders.node(1, ("host",)), NOW)
    before, key = only(made.certificate), made.key.read_bytes()
    later = NOW + timedelta(days=300)
    certs.renew(made.certificate, later, new_key=new_key)
    after = only(made.certificate)
    assert (after.subject, after.names, after.usages, after.issuer) == (
        before.subject, before.names, before.usages, before.issuer,
    )  # fmt: skip
    assert after.serial != before.serial
    assert after.left(later) == timedelta(days=365)
    assert (made.key.read_bytes() != key) is new_key
    assert server_side(made)  # key and certificate match: OpenSSL refuses others


def test_a_renewed_authority_accepts_what_it_issued_before(certs: CertificateDirectory) -> None:
    node = certs.create(holders.node(1, ("host",)), NOW)
    before = only(Path(nodes_ca(certs)))
    certs.renew(Path(nodes_ca(certs)), NOW + timedelta(days=3000))
    after = only(Path(nodes_ca(certs)))
    assert after.left(NOW) - before.left(NOW) == timedelta(days=3000)
    assert after.authority
    certs.create(holders.user("alice"), NOW)
    with pytest.raises(CertificateRefused, match="keeps its key"):
        certs.renew(Path(nodes_ca(certs)), NOW, new_key=True)
    certs.renew(Path(nodes_ca(certs)), NOW)  # one that is valid now: handshakes go by the real clock
    shake_hands(server_side(node), client_side(nodes_ca(certs)), "host")


def test_nothing_outlives_its_authority(certs: CertificateDirectory) -> None:
    ends = only(Path(users_ca(certs))).not_after
    late = certs.create(holders.user("late"), ends - timedelta(days=10))
    assert only(late.certificate).not_after == ends == late.until
    with pytest.raises(CertificateRefused, match=r"CN=test users expired on .*: renew it first"):
        certs.create(holders.user("too late"), ends)


def test_keys_are_for_their_owner_alone(certs: CertificateDirectory) -> None:
    umask = os.umask(0)
    try:
        node = certs.create(holders.node(1, ("host",)), NOW)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(node.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key_of(Path(nodes_ca(certs))).stat().st_mode) == 0o600
    assert stat.S_IMODE(node.certificate.stat().st_mode) == 0o644


def test_nothing_is_written_over_unasked(certs: CertificateDirectory) -> None:
    alice = certs.create(holders.user("alice"), NOW)
    files = [alice.certificate, alice.key, Path(nodes_ca(certs)), key_of(Path(users_ca(certs)))]
    before = [file.read_bytes() for file in files]
    alice.certificate.rename(alice.certificate.with_suffix(".bak"))  # its key alone is worth keeping, too
    with pytest.raises(CertificateExists, match=r"user-alice.key is there already"):
        certs.create(holders.user("alice"), NOW)
    alice.certificate.with_suffix(".bak").rename(alice.certificate)
    with pytest.raises(CertificateExists, match=r"nodes-ca.pem is there already"):
        certs.make_authorities("other", NOW)
    Path(nodes_ca(certs)).rename(nodes_ca(certs) + ".bak")
    key_of(Path(nodes_ca(certs))).rename(nodes_ca(certs) + ".bak.key")
    with pytest.raises(CertificateExists, match=r"users-ca.pem is there already"):  # and then neither is made
        certs.make_authorities("other", NOW)
    assert not Path(nodes_ca(certs)).exists()
    Path(nodes_ca(certs) + ".bak").rename(nodes_ca(certs))
    assert [file.read_bytes() for file in files] == before
    certs.create(holders.user("alice"), NOW, replace=True)
    assert alice.key.read_bytes() != before[1]


def test_the_wrong_directory_and_the_wrong_key_are_named(certs: CertificateDirectory, tmp_path: Path) -> None:
    others = CertificateDirectory(tmp_path / "others")
    with pytest.raises(CertificateUnreadable, match="there is no authority yet; `mainstem cert authority` makes one"):
        others.create(holders.user("bob"), NOW)
    others.make_authorities("test", NOW)  # of the same names: the keys count
    bob = others.create(holders.user("bob"), NOW)
    with pytest.raises(CertificateRefused, match=r"which is not an authority of .*certs; name its directory"):
        certs.renew(bob.certificate, NOW)
    alice = certs.create(holders.user("alice"), NOW)
    alice.key.write_bytes(bob.key.read_bytes())
    with pytest.raises(CertificateRefused, match="the key is not that of CN=alice"):
        certs.renew(alice.certificate, NOW)
    key_of(Path(users_ca(certs))).write_bytes(bob.key.read_bytes())
    with pytest.raises(CertificateRefused, match=r"users-ca.pem: the key is not that of CN=test users"):
        certs.create(holders.user("carol"), NOW)


def test_files_that_hold_something_else_are_named(tmp_path: Path, certs: CertificateDirectory) -> None:
    alice = certs.create(holders.user("alice"), NOW)
    with pytest.raises(CertificateUnreadable, match=r"user-alice.key: no certificate in PEM format"):
        described(alice.key)
    with pytest.raises(CertificateUnreadable, match=r"nowhere.pem: No such file"):
        described(tmp_path / "nowhere.pem")
    huge = tmp_path / "huge.pem"
    huge.write_bytes(bytes(2 * 1024 * 1024))
    with pytest.raises(CertificateUnreadable, match=r"huge.pem: more than"):
        described(huge)
    alice.key.write_bytes(b"nonsense")
    with pytest.raises(CertificateUnreadable, match=r"user-alice.key: no private key in PEM format"):
        certs.renew(alice.certificate, NOW)


@pytest.mark.parametrize(
    "name", ["", " alice", "a" * 65, "a\nb", "../alice", "mainstem-node-1", "Mainstem-client", "a\0b"]
)
def test_names_that_are_no_user(name: str) -> None:
    with pytest.raises(CertificateRefused, match="cannot be a user"):
        holders.user(name)


@pytest.mark.parametrize("host", ["", "a b", "host:9092", "10.0.0.1:9092", "mainstem-node-2", "a..b", "-a", "a" * 64])
def test_names_that_are_no_host(host: str) -> None:
    with pytest.raises(CertificateRefused, match="neither an address nor the name of a host"):
        holders.node(1, (host,))


def test_a_node_has_hosts() -> None:
    with pytest.raises(CertificateRefused, match="names 1 to 100 hosts"):
        holders.node(1, ())


def test_a_missing_library_is_named_with_the_extra_that_has_it() -> None:
    require_cryptography()
    with pytest.raises(LibraryMissing, match=r"pip install 'mainstem\[security\]'"):
        require_cryptography(lambda name: None)
