"""How commands end where a node does not let them in, or they would not trust it."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mainstem.cli.main import run
from mainstem.security.certificates import holders
from mainstem.security.certificates.certificate_directory import CertificateDirectory

NOW = datetime.now(UTC)


def authority(directory: Path) -> CertificateDirectory:
    made = CertificateDirectory(directory)
    made.make_authorities("test", NOW)
    return made


@contextmanager
def shaking_hands(context: ssl.SSLContext) -> Iterator[str]:
    """The address of a server that does TLS and nothing behind it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return  # closed
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_node_of_another_authority_is_not_trusted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = authority(tmp_path / "ours"), authority(tmp_path / "theirs")
    shown = theirs.create(holders.node(1, ("127.0.0.1",)), NOW)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.certificate, shown.key)
    (tmp_path / "client.properties").write_text(
        f"security.protocol=SSL\nssl.ca.location={ours.authority_file(holders.AuthorityKind.NODES)}\n"
    )
    with shaking_hands(context) as address:
        arguments = ["--bootstrap", address, "--client-config", str(tmp_path / "client.properties")]
        assert run(["topic", "list", *arguments]) == 1
    told = capsys.readouterr().err
    assert told.startswith("mainstem: no TLS with the node: ")
    assert "certificate" in told


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ssl.ca.location=/nowhere/ca.pem", "ssl.ca.location"),
        ("ssl.no.such.key=1", "ssl.no.such.key"),
        ("sasl.jaas.config=password", "JAAS configuration is not supported"),
        ("security.protocol=TLS", "security.protocol"),
    ],
)
def test_settings_that_no_client_takes_are_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    (tmp_path / "client.properties").write_text(f"security.protocol=SSL\n{line}\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        arguments = ["--bootstrap", address, "--client-config", str(tmp_path / "client.properties")]
        assert run(["topic", "list", *arguments]) == 2
    told = capsys.readouterr().err
    assert told.startswith("mainstem: the client settings cannot be used: ")
    assert said in told
    assert told.count("\n") == 1
