"""The files that `mainstem dev cluster --secure` makes: authorities, certificates of its nodes, a first user, and the
settings of its clients.

All of it lies below the cluster's directory and is made once: a cluster that is started again has the certificates and
the user that it had, and a certificate that is about to expire is renewed. The keys of the authorities lie there, too,
which is for clusters that one tries things with.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from mainstem.cli.clients.client_settings import HttpAddress
from mainstem.security.certificates import holders
from mainstem.security.certificates.certificate_directory import CertificateDirectory
from mainstem.security.certificates.description import described
from mainstem.security.certificates.holders import AuthorityKind, CertificateHolder
from mainstem.security.certificates.pem_files import key_of
from mainstem.whole_file import write_whole

LISTENER = "CLIENTS"
USER = "admin"
HOSTS = ("127.0.0.1", "::1", "localhost")
RENEWED_WITHIN = timedelta(days=30)
MECHANISM = "SCRAM-SHA-512"
PLAIN = "PLAIN"
"""For clients of librdkafka before 2.6.1, whose SCRAM nodes refuse: it repeats a nonce. TLS hides the password."""
PASSWORD_BYTES = 18
PROFILE = "dev"

_SECRET_MODE = 0o600


class SecuredCluster:
    """The files of a cluster's security below `directory`. Missing files are made; raises CertificateError, OSError."""

    def __init__(self, directory: Path, nodes: int, now: datetime) -> None:
        self._directory = directory
        self._certs = CertificateDirectory(directory / "certs")
        self._now = now
        if not self._certs.authority_file(AuthorityKind.NODES).exists():
            self._certs.make_authorities("mainstem dev", now)
        self._nodes = [self._certificate(holders.node(node_id, HOSTS)) for node_id in range(1, nodes + 1)]
        self._password_file = directory / "admin-password"
        if not self._password_file.exists():
            write_whole(self._password_file, f"{secrets.token_urlsafe(PASSWORD_BYTES)}\n".encode(), _SECRET_MODE)
        self.client_properties = directory / "client.properties"
        self.java_properties = directory / "client-java.properties"
        self.profiles = directory / "profiles.toml"

    def _certificate(self, holder: CertificateHolder) -> Path:
        path = self._certs.path_of(holder)
        if not path.exists():
            self._certs.create(holder, self._now)
        elif described(path)[0].left(self._now) < RENEWED_WITHIN:
            self._certs.renew(path, self._now)
        return path

    def _authority(self, kind: AuthorityKind) -> str:
        return str(self._certs.authority_file(kind))

    def configuration(self, node_id: int, kafka: str) -> list[str]:
        """Sections of a node's configuration: who may call it, its listener at the address `kafka`, and who may do what
        there."""
        certificate = self._nodes[node_id - 1]
        shown = [f"certificate = {_toml(str(certificate))}", f"key = {_toml(str(key_of(certificate)))}"]
        return [
            "",
            "[rpc_tls]",
            *shown,
            f"ca = {_toml(self._authority(AuthorityKind.NODES))}",
            "",
            f"[server.listeners.{LISTENER}]",
            f"listen = {_toml(kafka)}",
            'protocol = "SASL_SSL"',
            *shown,
            "",
            "[sasl]",
            f"mechanisms = [{_toml(MECHANISM)}, {_toml(PLAIN)}]",
            f"bootstrap_user = {_toml(USER)}",
            f"bootstrap_password_file = {_toml(str(self._password_file))}",
            "",
            "[authorizer]",
            "enabled = true",
            f'super_users = "User:{USER}"',
            "",
            "[console]",
            "users = true",
            *shown,
            "",
        ]

    def http(self, address: str) -> HttpAddress:
        """A node's HTTP port, as somebody reaches it who is no user yet."""
        return HttpAddress(address, {"ssl.ca.location": self._authority(AuthorityKind.NODES)}, over_tls=True)

    def write_client_settings(self, kafka: Sequence[str], http: HttpAddress) -> None:
        """The settings that clients connect with, as each kind of client reads it. Raises OSError."""
        password = self._password_file.read_text("utf-8").strip()
        settings = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self._authority(AuthorityKind.NODES),
            "sasl.mechanism": PLAIN,
            "sasl.username": USER,
            "sasl.password": password,
        }
        addresses = ",".join(kafka)
        _write_properties(self.client_properties, {"bootstrap.servers": addresses, **settings})
        java = {
            "bootstrap.servers": addresses,
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self._authority(AuthorityKind.NODES),
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required "
                f'username="{USER}" password="{password}";'
            ),
        }
        _write_properties(self.java_properties, java)
        lines = [
            f"default = {_toml(PROFILE)}",
            "",
            f"[profiles.{PROFILE}]",
            f"bootstrap = {_toml(addresses)}",
            f"http = {_toml(http.url)}",
            *(f"{_toml(key)} = {_toml(value)}" for key, value in {**settings, "sasl.mechanism": MECHANISM}.items()),
            "",
        ]
        write_whole(self.profiles, "\n".join(lines).encode(), _SECRET_MODE)


def _write_properties(path: Path, settings: dict[str, str]) -> None:
    write_whole(path, "".join(f"{key}={value}\n" for key, value in settings.items()).encode(), _SECRET_MODE)


def _toml(text: str) -> str:
    """A string as TOML writes it: JSON's form is one of them, as no path has the one character that differs."""
    return json.dumps(text, ensure_ascii=False)
