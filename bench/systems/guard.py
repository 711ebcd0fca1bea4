"""A second listener of a node, of either system, at which clients meet TLS, and with users also SASL and an authorizer.

The listener of the bench itself stays plain beside it: whoever comes by that one is `User:ANONYMOUS`, a super user of
both systems. Certificates, the first user and the settings of clients are those that `mainstem dev cluster --secure`
makes, for Kafka's node as well, so that clients of both read the same file but for the address.
"""

from __future__ import annotations

import datetime
import json
import secrets
import ssl
from collections.abc import Mapping
from pathlib import Path

from mainstem.cli.dev.secured import HOSTS, MECHANISM, PLAIN, USER, SecuredCluster
from mainstem.security.certificates import holders
from mainstem.security.certificates.certificate_directory import CertificateDirectory
from mainstem.security.certificates.holders import AuthorityKind
from mainstem.security.certificates.pem_files import key_of

SUPER_USERS = f"User:{USER};User:ANONYMOUS"
_NAME = "GUARDED"
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


class Guard:
    """Its files lie below `directory` and are made here. `users`: SASL_SSL and an authorizer; otherwise TLS alone."""

    def __init__(self, directory: Path, *, users: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.users = users
        self._directory = directory
        self._made = SecuredCluster(directory, 1, datetime.datetime.now(datetime.UTC))
        certs = CertificateDirectory(directory / "certs")
        self.authority = certs.authority_file(AuthorityKind.NODES)
        self._certificate = certs.path_of(holders.node(1, HOSTS))

    @property
    def protocol(self) -> str:
        return "SASL_SSL" if self.users else "SSL"

    @property
    def password_file(self) -> Path:
        """Of the first user, `admin`."""
        return self._directory / "admin-password"

    @property
    def password(self) -> str:
        return self.password_file.read_text("utf-8").strip()

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))

    def java_properties(self, address: str) -> Path:
        """The file of settings for Java clients, written for this address."""
        self._made.write_client_settings([address], self._made.http(""))
        return self._made.java_properties

    def java_properties_of(self, user: str, password: str, address: str) -> Path:
        """The same for another user than the first."""
        first = self.java_properties(address).read_text("utf-8")
        file = self._directory / f"{user}-java.properties"
        file.touch(0o600)
        file.write_text(first.replace(f'username="{USER}" password="{self.password}"',
                                      f'username="{user}" password="{password}"'))  # fmt: skip
        return file

    def librdkafka(self) -> Mapping[str, str]:
        """Settings besides the address."""
        settings = {"security.protocol": self.protocol, "ssl.ca.location": str(self.authority)}
        if self.users:
            settings |= {"sasl.mechanism": PLAIN, "sasl.username": USER, "sasl.password": self.password}
        return settings

    def of_mainstem(self, address: str) -> Mapping[str, str]:
        """Settings of a node that listens at `address` as well."""
        listener = {
            "listen": address, "protocol": self.protocol,
            "certificate": str(self._certificate), "key": str(key_of(self._certificate)),
        }  # fmt: skip
        settings = {f"server.listeners.{_NAME}": json.dumps(listener)}
        if self.users:
            settings |= {
                "sasl.mechanisms": f"{MECHANISM},{PLAIN}", "sasl.bootstrap_user": USER,
                "sasl.bootstrap_password_file": str(self.password_file),
                "authorizer.enabled": "true", "authorizer.super_users": SUPER_USERS,
                "delegation_token.secret_key_file": str(self._token_key_file()),
            }  # fmt: skip
        return settings

    def of_kafka(self, address: str, plain: Mapping[str, str]) -> Mapping[str, str]:
        """Settings to lay over those of a plain node. Kafka takes the certificate and its key from one file."""
        store = self._directory / "kafka-node.pem"
        store.touch(0o600)
        store.write_bytes(key_of(self._certificate).read_bytes() + self._certificate.read_bytes())
        settings = {
            "listeners": f"{plain['listeners']},{_NAME}://{address}",
            "advertised.listeners": f"{plain['advertised.listeners']},{_NAME}://{address}",
            "listener.security.protocol.map":
                f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{_NAME}:{self.protocol}",
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM", "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.authority),
        }  # fmt: skip
        if self.users:
            listener = f"listener.name.{_NAME.lower()}"
            settings |= {
                "sasl.enabled.mechanisms": MECHANISM,
                f"{listener}.{MECHANISM.lower()}.sasl.jaas.config": _SCRAM_MODULE,
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": SUPER_USERS,
                "delegation.token.secret.key": self._token_key_file().read_text("utf-8").strip(),
            }
        return settings

    def _token_key_file(self) -> Path:
        """The key of delegation tokens, made on first use."""
        file = self._directory / "token-key"
        if not file.exists():
            file.touch(0o600)
            file.write_text(secrets.token_hex(16) + "\n", "utf-8")
        return file

    def format_words(self) -> list[str]:
        """For Kafka's tool that formats a directory: the first user."""
        return [f"--add-scram={MECHANISM}=[name={USER},password={self.password}]"] if self.users else []
