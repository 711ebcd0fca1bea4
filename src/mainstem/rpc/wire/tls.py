"""TLS between nodes, and between splitters and nodes: both ends show a certificate of the cluster's own authority.

Host names are not checked: a caller looks for a node, on whatever host. A certificate names its holder by names that
begin with `mainstem-`, each a DNS name among its subject's alternative names or its common name:

- `mainstem-node-<id>`: it may speak for this node (several such names: for each of them);
- any other (`mainstem-client`): it may not speak for a node;
- none: it may speak for any node. One certificate for the whole cluster is enough to keep strangers out.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import msgspec

from mainstem.errors import ConfigError
from mainstem.rpc.errors import CertificateMismatch, TlsRefused
from mainstem.rpc.wire.identity import Identity

NAME_PREFIX = "mainstem-"
NODE_NAME_PREFIX = "mainstem-node-"

HANDSHAKE_SECONDS_MAX = 5.0
"""Three messages between nodes that are near."""


class RpcTlsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files in PEM format, the first three or none: none means no TLS. `validate` raises ConfigError."""

    certificate: str = ""
    """The certificate this process shows, followed by intermediate ones if there are any."""
    key: str = ""
    """Its private key, not encrypted."""
    ca: str = ""
    """The authorities whose certificates are accepted from others."""
    crl: str = ""
    """Lists of certificates that these authorities have revoked; empty: there are none."""

    @property
    def enabled(self) -> bool:
        return bool(self.certificate)

    def validate(self) -> None:
        files = {"certificate": self.certificate, "key": self.key, "ca": self.ca}
        if self.crl and not self.enabled:
            raise ConfigError("rpc_tls.crl is of use with TLS alone: it takes certificate, key and ca")
        missing = [name for name, file in files.items() if not file]
        if missing and len(missing) < len(files):
            raise ConfigError(
                f"{' and '.join(missing)} missing: TLS between nodes takes certificate, key and ca, or none of them"
            )


NO_TLS = RpcTlsConfig()


def context(config: RpcTlsConfig, *, server_side: bool) -> ssl.SSLContext | None:
    """The TLS context for `config`; None: no TLS. Reads the files; raises ConfigError naming the bad one."""
    if not config.enabled:
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    what = f"ca = {config.ca!r}"
    try:
        made.load_verify_locations(config.ca)
        what = f"certificate = {config.certificate!r} with key = {config.key!r}"
        made.load_cert_chain(config.certificate, config.key, _no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(f"rpc_tls.{what} cannot be used: {error}; it takes files in PEM format") from error
    return made


def _no_password() -> str:
    """Called instead of OpenSSL's question at the terminal."""
    raise ValueError("the key is encrypted")


def names_in(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The names in a peer's certificate that have a meaning here; `certificate` as `SSLSocket.getpeercert`
    has it, None without TLS."""
    if not certificate:
        return frozenset()
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    for part in certificate.get("subject", ()):
        names += [value for kind, value in part if kind == "commonName"]
    return frozenset(name.lower() for name in names if name.lower().startswith(NAME_PREFIX))


def certificate_refusal(names: frozenset[str], node: Identity | None, where: str) -> CertificateMismatch | None:
    """Why the holder of a certificate with these names cannot be this node; None: it may be."""
    if node is None or not names or f"{NODE_NAME_PREFIX}{node.node_id}" in names:
        return None
    return CertificateMismatch(
        f"{where} calls itself node {node.node_id} with a certificate of {', '.join(sorted(names))}: "
        f"correct its rpc_tls.certificate or its node_id"
    )


def handshake_failure(error: Exception, where: str) -> str:
    """A failed handshake at the called end, in words for its log."""
    if (found := handshake_refusal(error, where)) is not None:
        return str(found)
    if isinstance(error, ConnectionError):
        return (
            f"{where} ended the TLS handshake: most likely it does not accept the certificate of this process; "
            f"rpc_tls.certificate here must come from an authority in rpc_tls.ca there and be valid now"
        )
    return f"no TLS handshake: {error or 'it took too long'}"


def closed_unheard(where: str) -> TlsRefused:
    """The error for a callee that closed a TLS connection before its hello: it saw the caller's certificate
    only after the caller had finished the handshake."""
    return TlsRefused(
        f"{where} closed the connection behind the TLS handshake: most likely it does not accept the certificate of "
        f"this process; rpc_tls.certificate here must come from an authority in rpc_tls.ca there and be valid now, and "
        f"its log says more"
    )


def handshake_refusal(error: Exception | None, where: str) -> TlsRefused | None:
    """A failed handshake as an error that names the remedy; None: `error` is no failed handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        there = f"the certificate that {where} shows is not accepted ({error.verify_message})"
        if "expired" in error.verify_message or "not yet valid" in error.verify_message:
            return TlsRefused(f"{there}: renew rpc_tls.certificate there, or set the clock that is wrong")
        return TlsRefused(f"{there}: it must come from an authority in rpc_tls.ca")
    if not isinstance(error, ssl.SSLError):
        return None
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "alert" in reason and "expired" in reason:
        return TlsRefused(
            f"{where} does not accept the certificate of this process ({reason}): renew rpc_tls.certificate here, or "
            f"set the clock that is wrong"
        )
    if "alert" in reason:
        return TlsRefused(
            f"{where} does not accept the certificate of this process ({reason}): rpc_tls.certificate here must come "
            f"from an authority in rpc_tls.ca there"
        )
    if "wrong version" in reason or "http request" in reason or "did not return a certificate" in reason:
        return TlsRefused(
            f"{where} speaks no TLS or shows no certificate ({reason}): set rpc_tls there as it is set here"
        )
    return TlsRefused(f"no TLS with {where}: {reason}")
