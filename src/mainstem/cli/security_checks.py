"""The findings of `mainstem doctor` about a configuration that others can abuse: certificates that expire, keys that
others can read, ports that anybody reaches."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem.address import is_loopback, parsed
from mainstem.cli.check import Check, CheckState
from mainstem.cli.clients import client_settings
from mainstem.cli.parameters import profiles
from mainstem.security.certificates.errors import CertificateError, LibraryMissing
from mainstem.security.certificates.library import require_cryptography

if TYPE_CHECKING:
    from mainstem.node.config import NodeConfig

LIST_WARNED = timedelta(days=7)
"""A list of revoked certificates is made for 30 days."""

EXPIRY_WARNED = timedelta(days=30)
"""Certificates are renewed by a job that runs now and then, and by people who are away now and then."""

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def checks(config: NodeConfig, now: datetime | None = None) -> Iterator[Check]:
    """Nothing where no key is configured that this is about. `now`: None is the time of day."""
    yield from _reachable_ports(config)
    for key, file in _certificates(config).items():
        yield certificate(key, Path(file), now or datetime.now(UTC))
    if config.rpc_tls.crl:
        yield _revocations("rpc_tls.crl", config.rpc_tls.crl, now or datetime.now(UTC))
    for name, listener in config.server.listeners.items():
        if listener.crl:
            yield _revocations(f"server.listeners.{name}.crl", listener.crl, now or datetime.now(UTC))
    yield from _weak_settings(config)
    for key, file in _keys(config).items():
        yield private_file(key, Path(file), f"chmod 600 {file}")
    yield from _shared_authorities(config)
    yield from _profiles(profiles.file())


def _certificates(config: NodeConfig) -> dict[str, str]:
    """Files of certificates by the keys that name them."""
    files = {
        "rpc_tls.certificate": config.rpc_tls.certificate,
        "rpc_tls.ca": config.rpc_tls.ca,
        "console.certificate": config.console.certificate,
    }
    for name, listener in config.server.listeners.items():
        files[f"server.listeners.{name}.certificate"] = listener.certificate
        files[f"server.listeners.{name}.ca"] = listener.ca
    return _named(files)


def _keys(config: NodeConfig) -> dict[str, str]:
    console = config.console
    files = {
        "rpc_tls.key": config.rpc_tls.key,
        "console.key": console.key or console.certificate,
        "console.key_password_file": console.key_password_file,
    }
    for name, listener in config.server.listeners.items():
        files[f"server.listeners.{name}.key"] = listener.key or listener.certificate
        files[f"server.listeners.{name}.key_password_file"] = listener.key_password_file
    files["delegation_token.secret_key_file"] = config.delegation_token.secret_key_file
    return _named(files)


def _named(files: dict[str, str]) -> dict[str, str]:
    return {key: file for key, file in files.items() if file}


def _reachable_ports(config: NodeConfig) -> Iterator[Check]:
    """Ports that let in anybody, and listeners whose bytes, passwords among them, anybody on the way reads."""
    from mainstem.node.access.open_ports import open_ports

    for port in open_ports(config):
        allowed = port.kind in config.allow_open
        yield Check(
            f"open {port.kind}",
            CheckState.WARNING if allowed else CheckState.FAILED,
            f"{port.key} = {port.address}: whoever reaches it may {port.danger}",
            port.remedy
            if allowed
            else f"{port.remedy}; a node does not start like that without --allow-open {port.kind}",
        )
    for name, listener in config.server.listeners.items():
        if listener.protocol == "SASL_PLAINTEXT" and not is_loopback(parsed(listener.listen, port_min=0).host):
            yield Check(
                "open passwords",
                CheckState.WARNING,
                f"server.listeners.{name}.listen = {listener.listen}: {listener.protocol} encrypts nothing",
                "take SASL_SSL",
            )
    if (
        config.console.users
        and not config.console.certificate
        and not is_loopback(parsed(config.http, port_min=0).host)
    ):
        yield Check(
            "open passwords",
            CheckState.WARNING,
            f"http = {config.http}: visitors' passwords are not encrypted",
            "set console.certificate",
        )


def _revocations(key: str, file: str, now: datetime) -> Check:
    """Whether a list of revoked certificates can be read, and is young."""
    from mainstem.certificate_files.revocations import read_lists

    try:
        found = read_lists(file)
    except (OSError, ValueError) as error:
        return Check(key, CheckState.FAILED, f"{file}: {error}", "a node cannot start with that")
    told = f"{file}: {len(found.serials)} certificates are revoked"
    if found.next_update_at is None:
        return Check(key, CheckState.OK, told)
    ends = datetime.fromtimestamp(found.next_update_at, UTC)
    told = f"{told}; it is to be replaced by {ends:%Y-%m-%d}"
    advice = f"write it anew: mainstem cert revoke --dir {Path(file).parent}"
    if ends <= now:
        return Check(key, CheckState.WARNING, f"{told}, which has passed", advice)
    if ends - now < LIST_WARNED:
        return Check(key, CheckState.WARNING, f"{told}, in {(ends - now).days} days", advice)
    return Check(key, CheckState.OK, told)


def _weak_settings(config: NodeConfig) -> Iterator[Check]:
    """Settings that are allowed, and let in or show more than most people want."""
    if config.authorizer.enabled and config.authorizer.allow_everyone_if_no_acl_found:
        yield Check(
            "open resources",
            CheckState.WARNING,
            "authorizer.allow_everyone_if_no_acl_found = true: whatever no rule is about is everybody's",
            "add the rules that are missing, then set it to false",
        )
    if config.sasl_mechanisms and not config.authorizer.enabled:
        yield Check(
            "no authorizer",
            CheckState.WARNING,
            "clients show who they are, and authorizer.enabled = false lets each of them do everything",
            "authorizer.enabled = true, with authorizer.super_users",
        )
    for name, mechanisms in config.sasl_mechanisms.items():
        listener = config.server.listeners[name]
        if "PLAIN" in mechanisms and listener.protocol == "SASL_PLAINTEXT":
            yield Check(
                "plain passwords",
                CheckState.WARNING,
                f"server.listeners.{name} offers PLAIN without TLS: passwords cross the network as they are",
                f"take SASL_SSL, or SCRAM alone: server.listeners.{name}.mechanisms",
            )


def _shared_authorities(config: NodeConfig) -> Iterator[Check]:
    """A certificate that an authority of `rpc_tls.ca` issued to a user is as good as a node's."""
    of_nodes = _authorities(config.rpc_tls.ca)
    for name, listener in config.server.listeners.items():
        if listener.client_auth == "none":
            continue
        for fingerprint, subject in _authorities(listener.ca).items():
            if fingerprint in of_nodes:
                yield Check(
                    "authorities",
                    CheckState.WARNING,
                    f"{subject} is in rpc_tls.ca and in server.listeners.{name}.ca: every user may act as a node",
                    "let users' certificates come from an authority of their own (`mainstem cert authority` makes two)",
                )


def _authorities(file: str) -> dict[str, str]:
    """Subjects by fingerprint; none where the file cannot be read, which `certificate` tells."""
    if not file:
        return {}
    try:
        require_cryptography()
        from mainstem.security.certificates.description import described

        return {one.fingerprint: one.subject for one in described(Path(file).expanduser())}
    except CertificateError:
        return {}


def certificate(key: str, file: Path, now: datetime) -> Check:
    """Whether each certificate of a file is valid, and for how long the first to expire is."""
    try:
        require_cryptography()
        from mainstem.security.certificates.description import described

        found = described(file.expanduser())
    except LibraryMissing as error:
        return Check(key, CheckState.WARNING, f"{file} was not read", str(error))
    except CertificateError as error:
        return Check(key, CheckState.FAILED, str(error), "a node cannot start with that")
    first = min(found, key=lambda one: one.not_after)
    told = f"{file}: {first.subject} expires on {first.not_after:%Y-%m-%d}"
    advice = f"renew it: mainstem cert renew {file}"
    if not first.not_before <= now < first.not_after:
        return Check(key, CheckState.FAILED, f"{told}; it is not valid now", advice)
    if first.left(now) < EXPIRY_WARNED:
        return Check(key, CheckState.WARNING, f"{told}, in {first.left(now).days} days", advice)
    return Check(key, CheckState.OK, told)


def private_file(name: str, file: Path, advice: str) -> Check:
    """Whether a file with secrets is for its owner alone."""
    try:
        mode = stat.S_IMODE(file.expanduser().stat().st_mode)
    except OSError as error:
        return Check(name, CheckState.FAILED, f"{file}: {error.strerror}", "a node cannot start without it")
    if mode & _OTHERS:
        return Check(name, CheckState.WARNING, f"{file}: other users can read it (mode {mode:o})", advice)
    return Check(name, CheckState.OK, f"{file}: readable by its owner alone")


def _profiles(file: Path) -> Iterator[Check]:
    """Only a file with secrets that others can read is worth a line."""
    if not file.exists():
        return
    _, found = profiles.read(file)
    if any(client_settings.is_secret(key) for profile in found.values() for key in profile):
        check = private_file("profiles", file, f"chmod 600 {file}")
        if check.state is not CheckState.OK:
            yield check
