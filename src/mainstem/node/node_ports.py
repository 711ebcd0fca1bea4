"""The ports on which the roles of a node are put together: disks, clock, randomness and network, of a machine or
simulated."""

from __future__ import annotations

import random
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mainstem.broker.broker import UnboundedRoom
from mainstem.broker.settings.live_settings import HoldConnections
from mainstem.model import OWN_LEVELS, LevelRange
from mainstem.nameserver.cluster_ports import Connect
from mainstem.nameserver.nameserver import Nameserver
from mainstem.ports import Clock, Files, ObjectStore, ResponseRoom, SideWork
from mainstem.rpc.handlers import Handlers
from mainstem.side_thread import AtOnce
from mainstem.storage.role import Storage
from mainstem.supervised import Supervision


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts:
    """The disks, clock, randomness and network that a node's roles run on."""

    clock: Clock
    randomness: Callable[[], random.Random]
    """A random source; each caller gets one of its own."""
    new_id: Callable[[], str]
    """A text that was never given before."""
    new_uuid: Callable[[], uuid.UUID] = uuid.uuid4
    random_bytes: Callable[[int], bytes] = secrets.token_bytes
    """As many as asked for, which nobody can guess."""
    write_files: Files
    store_files: Files
    remote_store: ObjectStore | None = None
    """The object store of `remote_dir`; None: there is none."""
    write_dir: Path
    """The directory of `write_files`, for parts that open files by name: sqlite, and splitters on this
    host."""
    store_dir: Path
    handlers: Handlers
    """The table of calls that other nodes and splitters may make."""
    connect: Connect | None
    """Connects to the other nodes; None: there are none."""
    password_work: SideWork = field(default_factory=AtOnce)
    """Hashes passwords and checks signatures."""
    key_work: SideWork = field(default_factory=AtOnce)
    """Reads the keys of bearer tokens."""
    side_work: SideWork = field(default_factory=AtOnce)
    """Checks compressed batches beside the event loop."""
    supervision: Supervision | None = None
    """Watches all background tasks; None: the roles make one of their own."""
    boot: str = ""
    """An id of the machine's present boot; empty: it cannot be known."""
    response_room: ResponseRoom = field(default_factory=UnboundedRoom)
    hold_connections: HoldConnections | None = None
    """Bounds the connections of the server of Kafka clients; None: there is no server."""
    levels: LevelRange = OWN_LEVELS
    """The feature levels at which this node's program can work."""


class OpeningWatch:
    """Sees the roles as they open; of this class: looks at nothing."""

    def metadata_opened(self, nameserver: Nameserver) -> None:
        """The metadata is open, the storage role is next."""

    def storage_opened(self, storage: Storage) -> None:
        """The storage role is open, and has not started."""


NO_WATCH = OpeningWatch()
