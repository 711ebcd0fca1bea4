"""The whole configuration of a node: its own keys and the rooms' config structs, in one frozen value.

Only `node.py` and `cli/` see this; a room sees its own struct. `config_sources.py` reads it from the file,
the environment and the flags. A field of a room that the node's own keys decide (`NODE_WIDE`) cannot be set
twice: the loader fills it in.
"""

from __future__ import annotations

import enum
import os
from itertools import combinations
from pathlib import Path

import msgspec

from mainstem.address import AddressError, parsed
from mainstem.broker.config import BrokerConfig
from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.broker.transactions.config import TransactionsConfig
from mainstem.console.config import ConsoleConfig
from mainstem.errors import ConfigError
from mainstem.model import NodeRole
from mainstem.nameserver.config import NameserverConfig
from mainstem.pipeline.embedded.config import PipelineConfig
from mainstem.rpc.wire.tls import RpcTlsConfig
from mainstem.security.acls.config import AuthorizerConfig
from mainstem.security.audit.config import AuditConfig
from mainstem.security.quotas.config import QuotaConfig
from mainstem.security.sasl.config import SaslConfig
from mainstem.security.tokens.config import DelegationTokenConfig
from mainstem.server.config import ServerConfig
from mainstem.storage.config import StorageConfig
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.urls import parsed_url
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.remote.config import ReadCacheConfig

ROLES = tuple(map(str, NodeRole))

RACK_LENGTH_MAX = 200
"""Every answer to Metadata carries the racks of all nodes."""

MACHINE_LENGTH_MAX = 200
"""As of racks; the metadata has the machines of all nodes."""

NODE_WIDE = {
    ("server", "listen"): "listen",
    ("nameserver", "node_id"): "node_id",
    ("nameserver", "remote_dir"): "remote_dir",
}
"""(section, field) -> the node's own key that decides it."""


PROCESSES_MAX = 128
"""Of one machine: more than it has processors are of no use."""


class PortKind(enum.StrEnum):
    """Whom a port is for: clients of Kafka, HTTP, other nodes."""

    KAFKA = "kafka"
    HTTP = "http"
    RPC = "rpc"


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set about a node. Built by `load`; `validate` raises ConfigError."""

    node_id: int = 1
    processes: int = 0
    """How many nodes `serve` runs on this machine, each a process with a number, ports and directories of its own,
    which count up from those that are configured. 0: one node, in the process of `serve` itself."""
    roles: tuple[str, ...] = ROLES
    rack: str = ""
    """Kafka's `broker.rack`: replicas go to different racks as long as there are any. Empty: the node is a
    rack of its own."""
    machine: str = ""
    """The label of the machine that the node shares with others: no two replicas of a write group go to one machine as
    long as there are others. Empty: the node has a machine of its own; with `processes`, the name of this host."""
    listen: tuple[str, ...] = ("127.0.0.1:9092",)
    """HOST:PORT of the Kafka listeners without TLS; port 0 picks a free one, here and below. It may be empty where
    `server.listeners` names others."""
    http: str = "127.0.0.1:9080"
    rpc: str = "127.0.0.1:9093"
    write_dir: str = "data/write"
    """Disk 1: the journal and the node's state."""
    store_dir: str = "data/store"
    """The queue store. A directory: disk 2, of this node alone. The URL of an object store: a shared store, the same
    for all nodes."""
    shared_store: bool = False
    """Whether a `store_dir` that is a directory is a shared store as well: all nodes have it mounted. An object store
    is shared in any case."""
    remote_dir: str = ""
    """The remote tier: a directory that all nodes have mounted, or the URL of an object store; the same for all nodes.
    Empty: there is none. With a shared store there is none beside it."""

    read_only: bool = False
    """Shows what write_dir and the remote tier have, and changes nothing of it: clients neither publish nor change
    topics, nothing is deleted, and the object store is only read."""

    allow_open: tuple[str, ...] = ()
    """Kinds of ports (`kafka`, `http`, `rpc`) that may be open beyond this host to whoever comes. A node does not start
    with one that is and is not named here."""

    core_files: bool = False
    """Whether the system may keep the memory of a node that crashes, and with it all secrets that were there."""

    rpc_tls: RpcTlsConfig = RpcTlsConfig()
    server: ServerConfig = ServerConfig()
    authorizer: AuthorizerConfig = AuthorizerConfig()
    audit: AuditConfig = AuditConfig()
    quota: QuotaConfig = QuotaConfig()
    sasl: SaslConfig = SaslConfig()
    delegation_token: DelegationTokenConfig = DelegationTokenConfig()
    broker: BrokerConfig = BrokerConfig()
    groups: ConsumerGroupsConfig = ConsumerGroupsConfig()
    transactions: TransactionsConfig = TransactionsConfig()
    shares: ShareGroupsConfig = ShareGroupsConfig()
    storage: StorageConfig = StorageConfig()
    journal: JournalConfig = JournalConfig()
    queue_store: QueueStoreConfig = QueueStoreConfig()
    object_store: ObjectStoreConfig = ObjectStoreConfig()
    read_cache: ReadCacheConfig = ReadCacheConfig()
    nameserver: NameserverConfig = NameserverConfig()
    pipeline: PipelineConfig = PipelineConfig()
    console: ConsoleConfig = ConsoleConfig()

    @property
    def sasl_mechanisms(self) -> dict[str, tuple[str, ...]]:
        """The mechanisms that listeners with SASL offer, by their names."""
        return {
            name: listener.mechanisms or self.sasl.mechanisms
            for name, listener in self.server.listeners.items()
            if listener.protocol.startswith("SASL")
        }

    @property
    def shares_store(self) -> bool:
        """Whether the queue store is shared by all nodes of the cluster."""
        return self.shared_store or _is_object_store(self.store_dir)

    @property
    def objects_url(self) -> str:
        """The object store that files lie in: the shared store, else the remote tier. Empty: nowhere."""
        return self.store_dir if self.shares_store else self.remote_dir

    @property
    def shared_store_place(self) -> str | None:
        """The shared store's URL, or its absolute directory; None: the node has a disk 2 of its own."""
        return str(parsed_url(self.store_dir).absolute()) if self.shares_store else None

    @property
    def store_told(self) -> str:
        """The queue store as nodes tell each other of it, to find out whether all have the same. Empty: a disk 2 of
        the node's own. Nodes may mount a shared directory at different paths."""
        place = self.shared_store_place or ""
        return place if "://" in place or not place else "a shared directory"

    def validate(self) -> None:
        """Checks the node's own keys; the sections check themselves."""
        if not self.roles:
            raise ConfigError(f"roles is empty; give at least one of {', '.join(ROLES)}")
        for role in self.roles:
            if role not in ROLES:
                raise ConfigError(f"roles = {role!r}: there is no such role; known are {', '.join(ROLES)}")
        if not 0 <= self.processes <= PROCESSES_MAX:
            raise ConfigError(f"processes = {self.processes}: it takes a whole number from 0 to {PROCESSES_MAX}")
        self._check_roles()
        for name, mechanisms in self.sasl_mechanisms.items():
            for mechanism in mechanisms:
                if mechanism not in self.sasl.mechanisms:
                    raise ConfigError(f"server.listeners.{name}.mechanisms: {mechanism} is not in sasl.mechanisms")
        if len(self.rack) > RACK_LENGTH_MAX:
            raise ConfigError(f"rack has {len(self.rack)} characters; at most {RACK_LENGTH_MAX} are allowed")
        if len(self.machine) > MACHINE_LENGTH_MAX:
            raise ConfigError(f"machine has {len(self.machine)} characters; at most {MACHINE_LENGTH_MAX} are allowed")
        for key, addresses in (("listen", self.listen), ("http", (self.http,)), ("rpc", (self.rpc,))):
            if not addresses and not (key == "listen" and self.server.listeners):
                raise ConfigError(f"{key} names no address; it takes HOST:PORT")
            for address in addresses:
                try:
                    parsed(address, port_min=0)
                except AddressError as error:
                    raise ConfigError(f"{key} = {error}") from None
        for key, value in (("write_dir", self.write_dir), ("store_dir", self.store_dir)):
            if not value:
                raise ConfigError(f"{key} is empty; it takes a directory")
        for key, value in (("store_dir", self.store_dir if self.shares_store else ""), ("remote_dir", self.remote_dir)):
            try:
                parsed_url(value)
            except ConfigError as error:
                raise ConfigError(f"{key} = {error}") from None
        if self.read_only and (self.shares_store or self.nameserver.peers):
            raise ConfigError(
                "read_only = true is for a node alone with a directory of its own as store_dir: what it shows lies in "
                "remote_dir, of which a shared store is one"
            )
        for kind in self.allow_open:
            if kind not in set(PortKind):
                raise ConfigError(
                    f"allow_open = {kind!r}: there is no such kind of port; known are {', '.join(PortKind)}"
                )
        self._check_remote_dir()
        self._check_directories()

    def has_role(self, role: NodeRole) -> bool:
        return role in self.roles

    def _check_roles(self) -> None:
        """Which roles go without which others."""
        given = ", ".join(self.roles)
        peers = self.nameserver.peer_addresses
        if not peers and not self.processes and set(self.roles) != set(ROLES):
            raise ConfigError(
                f"roles = {given}: a node alone has all roles ({', '.join(ROLES)}). Leave the key out, or name the "
                "other nodes in nameserver.peers"
            )
        if self.node_id in peers and not self.has_role(NodeRole.NAMESERVER):
            raise ConfigError(
                f"roles = {given}: nameserver.peers names node {self.node_id}, and all nodes there vote on the "
                "metadata. Give it the role nameserver, or leave it out of nameserver.peers on all nodes"
            )

    def _check_remote_dir(self) -> None:
        """A cluster's files lie in one object store."""
        if not self.shares_store or not self.remote_dir:
            return
        store, remote = (parsed_url(value).absolute() for value in (self.store_dir, self.remote_dir))
        if store != remote:
            raise ConfigError(
                f"remote_dir = {str(remote)!r} and store_dir = {str(store)!r}: a shared store has all files already, "
                "and there is no remote tier beside it. Leave remote_dir out, or give store_dir a directory of the node"
            )

    def _check_directories(self) -> None:
        """Each disk, and the remote tier, has a directory of its own: the node counts, cleans up and backs up each as a
        whole."""
        given = {"write_dir": self.write_dir, "store_dir": self.store_dir.removeprefix("file://")}
        if self.remote_dir and not self.shares_store and parsed_url(self.remote_dir).scheme == "file":
            given["remote_dir"] = parsed_url(self.remote_dir).path
        places = {
            key: Path(os.path.realpath(Path(value).expanduser())) for key, value in given.items() if "://" not in value
        }
        for (key, place), (other_key, other) in combinations(places.items(), 2):
            if place == other:
                how = "are the same directory"
            elif place in other.parents:
                how = f"are not apart: {other_key} is below {place}"
            elif other in place.parents:
                how = f"are not apart: {key} is below {other}"
            else:
                continue
            outer = min(place, other, key=lambda directory: len(directory.parts))
            examples = [outer / name.removesuffix("_dir") for name in (key, other_key)]
            raise ConfigError(
                f"{key} = {getattr(self, key)!r} and {other_key} = {getattr(self, other_key)!r} {how}. "
                f"{_NEEDS[other_key]}; for example {examples[0]} and {examples[1]}"
            )


def _is_object_store(store_dir: str) -> bool:
    return "://" in store_dir and not store_dir.startswith("file://")


_NEEDS = {
    "store_dir": "The journal and the queue store each need a directory of their own, best on two disks",
    "remote_dir": "The remote tier needs a directory of its own, which all nodes have mounted",
}
