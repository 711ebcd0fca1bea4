"""For whom a certificate is, and how it names them.

A node's certificate has its name (`mainstem-node-<id>`, which other nodes look for) and the hosts that clients reach it
at. A splitter's has `mainstem-client`: it may call nodes and speak for none. A user's has the user as its common name
and no other name.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from typing import NamedTuple

from mainstem.security.certificates.errors import CertificateRefused

RESERVED_PREFIX = "mainstem-"
"""Names of nodes and splitters begin so; `rpc/wire/tls.py` says what each may do."""
NODE_NAME = "mainstem-node-{}"
SPLITTER_NAME = "mainstem-client"

COMMON_NAME_MAX = 64
"""The longest common name that X.509 allows, in characters."""
HOSTS_MAX = 100
"""More names than a node has; a certificate travels with every handshake."""

_HOST = re.compile(
    r"(?=.{1,253}$)(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
)


class AuthorityKind(enum.Enum):
    """The two authorities of a cluster; the value names the files."""

    NODES = "nodes"
    USERS = "users"


class CertificateHolder(NamedTuple):
    """`hosts`: DNS names and addresses, in the order in which the certificate has them."""

    authority: AuthorityKind
    common_name: str
    hosts: tuple[str, ...]
    file_name: str


def node(node_id: int, hosts: tuple[str, ...]) -> CertificateHolder:
    """A node that clients reach at `hosts`. Raises CertificateRefused."""
    if not 0 < len(hosts) <= HOSTS_MAX:
        raise CertificateRefused(
            f"a node's certificate names 1 to {HOSTS_MAX} hosts or addresses of the node, not {len(hosts)}: give --host"
        )
    name = NODE_NAME.format(node_id)
    return CertificateHolder(AuthorityKind.NODES, name, (name, *map(_host, hosts)), f"node-{node_id}.pem")


def splitter() -> CertificateHolder:
    """The splitters of a cluster, which call its nodes."""
    return CertificateHolder(AuthorityKind.NODES, SPLITTER_NAME, (SPLITTER_NAME,), "splitter.pem")


def user(name: str) -> CertificateHolder:
    """A client that nodes know by this name. Raises CertificateRefused."""
    if not name or len(name) > COMMON_NAME_MAX or not name.isprintable() or name != name.strip():
        raise CertificateRefused(
            f"{name!r} cannot be a user: a certificate has names of 1 to {COMMON_NAME_MAX} printable characters"
        )
    if "/" in name:
        raise CertificateRefused(f"{name!r} cannot be a user: a file is named after it, and a file's name has no /")
    if name.lower().startswith(RESERVED_PREFIX):
        raise CertificateRefused(f"{name!r} cannot be a user: nodes and splitters have the names that begin so")
    return CertificateHolder(AuthorityKind.USERS, name, (), f"user-{name}.pem")


def _host(text: str) -> str:
    """An address in its canonical form, or a DNS name in lower case. Raises CertificateRefused."""
    try:
        return str(ipaddress.ip_address(text.removeprefix("[").removesuffix("]")))
    except ValueError:
        pass
    if not _HOST.fullmatch(text) or text.lower().startswith(RESERVED_PREFIX):
        raise CertificateRefused(f"{text!r} is neither an address nor the name of a host (without a port)")
    return text.lower()
