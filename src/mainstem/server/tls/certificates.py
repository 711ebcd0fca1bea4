"""The certificate of one listener, as OpenSSL uses it, made anew when its files change.

New connections get the new certificate; those that are open keep theirs. Files that cannot be used, such as a new
certificate beside its predecessor's key, leave the old certificate in place, with a line in the log, until they change
again. Tickets for resumed sessions are of one context: behind a change every client shakes hands in full.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from mainstem.certificate_files import x509
from mainstem.certificate_files.file_stamps import FileStamp, stamps
from mainstem.certificate_files.pem import first_certificate
from mainstem.certificate_files.revocations import Revocations
from mainstem.errors import ConfigError
from mainstem.server.listener_config import ListenerConfig

logger = logging.getLogger(__name__)

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

TICKETS = 1
"""For each connection, of TLS 1.3: what a client that comes back shows instead of a whole handshake. A second one,
which is OpenSSL's default, serves clients that open two connections at once."""


class ListenerCertificate:
    def __init__(self, name: str, config: ListenerConfig, section: str | None = None) -> None:
        """Reads the files. Raises ConfigError naming the one that cannot be used, below `section` of the configuration;
        None: the listener's own."""
        self.name = name
        self._section = section or f"server.listeners.{name}"
        self._config = config
        self._stamp = self._stamp_now()
        self.context, self.expires_at = self._made()
        self.revocations = self._read_revocations()
        """None: the listener has no list of revoked certificates."""
        self._revocations_stamp = stamps([config.crl])

    def look(self) -> None:
        """Use the files as they are now, if they have changed."""
        self._look_at_revocations()
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.context, self.expires_at = self._made()
        except ConfigError as error:
            logger.error("the certificate of listener %s stays as it was: %s", self.name, error)
        else:
            logger.info("listener %s shows new connections the certificate that its files have now", self.name)

    @property
    def list_expires_at(self) -> float | None:
        """When its list of revoked certificates is to be replaced, in seconds since the epoch; None: there is none, or
        it does not say."""
        return None if self.revocations is None else self.revocations.next_update_at

    def _read_revocations(self) -> Revocations | None:
        """Raises ConfigError."""
        if not self._config.crl:
            return None
        try:
            return Revocations(self._config.crl)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"server.listeners.{self.name}.crl = {self._config.crl!r} cannot be used: {_in_words(error)}; it takes "
                "lists of revoked certificates in PEM format"
            ) from error

    def _look_at_revocations(self) -> None:
        stamp = stamps([self._config.crl])
        if self.revocations is None or stamp == self._revocations_stamp:
            return
        self._revocations_stamp = stamp
        try:
            self.revocations.read_again()
        except (OSError, ValueError) as error:
            logger.error("the revoked certificates of listener %s stay as they were: %s", self.name, _in_words(error))
        else:
            logger.info("listener %s goes by the revoked certificates that its file has now", self.name)

    def _made(self) -> tuple[ssl.SSLContext, float]:
        config = self._config
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = VERSIONS[config.tls_min]
        made.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        made.num_tickets = TICKETS
        what = ""
        try:
            if config.ca:
                what = f"ca = {config.ca!r}"
                made.load_verify_locations(config.ca)
            made.verify_mode = CLIENT_AUTH[config.client_auth]
            what = f"key_password_file = {config.key_password_file!r}"
            password = self._password()
            what = f"certificate = {config.certificate!r} with key = {config.key or config.certificate!r}"
            made.load_cert_chain(config.certificate, config.key or None, lambda: password)
            return made, x509.expires_at(first_certificate(config.certificate))
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigError(
                f"{self._section}.{what} cannot be used: {_in_words(error)}; it takes files in PEM format"
            ) from error

    def _password(self) -> str:
        if not self._config.key_password_file:
            return ""
        return (Path(self._config.key_password_file).read_text("utf-8").splitlines() or [""])[0]

    def _stamp_now(self) -> tuple[FileStamp, ...]:
        config = self._config
        files = (config.certificate, config.key, config.key_password_file, config.ca)
        return stamps(filter(None, files))


def _in_words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)
