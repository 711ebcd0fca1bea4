"""The link from a splitter to its node: the address of the split service, and its calls with their deadlines.

Driver, planner and executors each hold a link of their own; it connects when first used and again after an
error.
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence

import google_crc32c
import msgspec

from mainstem.address import Address
from mainstem.pipeline.errors import NamesRefused, SplitRefused, SplitServiceUnreachable
from mainstem.pipeline.slices.split_slice import SplitSlice
from mainstem.rpc.blocking import BlockingClient, parse_address
from mainstem.rpc.errors import ConnectionLost
from mainstem.rpc.messages.compact import (
    COMPACT_WORK,
    RECORD_COMPACTION,
    AskCompaction,
    CompactedFile,
    CompactionWork,
    RecordCompaction,
)
from mainstem.rpc.messages.merge import (
    MERGE_DAMAGED,
    MERGE_LIVE,
    MERGE_WORK,
    RECORD_MERGE,
    AskLive,
    AskMerge,
    MergeDamage,
    MergeWork,
    RecordMerge,
)
from mainstem.rpc.messages.split import (
    ACQUIRE,
    DAMAGED,
    LIMIT,
    PACE,
    PASSED_OVER,
    POSITIONS,
    PROGRESS,
    READ,
    RECORD_SPLIT,
    RELEASE,
    RENEW,
    RETENTION_CLASSES,
    SLICES,
    AcquireLease,
    DamageMet,
    HeldLease,
    Lease,
    Limit,
    PlannedSlices,
    PlanSlices,
    PositionsReply,
    ReadExtent,
    RecordSplit,
    ReportProgress,
    SegmentExtent,
    SplitPace,
    SplitProgress,
)
from mainstem.rpc.messages.tier import (
    INTEND_FILES,
    RECORD_TIER,
    STORE_ACCESS,
    TIER_WORK,
    AskTier,
    IntendFiles,
    RecordTier,
    TierWork,
)
from mainstem.rpc.wire.method import Method, Nothing, ReplyT, RequestT
from mainstem.rpc.wire.node_certificate import node_certificate
from mainstem.rpc.wire.tls import NO_TLS, RpcTlsConfig
from mainstem.storage.extents.offset_gaps import GAP_ROW_BYTES
from mainstem.storage.journal.encoding.format import offset_of, sequence_of
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.shared_store.shared_store import SharedStore
from mainstem.storage.store_files.store_file import StoreFile

ENDPOINT_PATH = "/v1/split/endpoint"
ENDPOINT_SECONDS = 10.0
ENDPOINT_BYTES_MAX = 64 * 1024

_UNCHECKED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_UNCHECKED.check_hostname = False
_UNCHECKED.verify_mode = ssl.CERT_NONE

EVERY_INTERFACE = ("0.0.0.0", "::")

CALL_SECONDS = 30.0
"""A node under load answers in milliseconds; this long means that it is stuck or gone."""

DAMAGED_SECONDS = 60.0
"""The node may have to ask several others for the block."""

RECORD_SECONDS = 120.0
"""A recording waits for the journal's sync and the manifest's."""

MERGE_WORK_SECONDS = 60.0
"""The node looks at the indexes of files for some seconds at a time."""

RECORD_MERGE_SECONDS = 600.0
"""The node reads the indexes of all inputs and outputs."""

TIER_WORK_SECONDS = 300.0
"""The node deletes what was given up before, from a store that may have to be asked again, and waits for the log."""

RECORD_TIER_SECONDS = 600.0
"""The node looks up all objects in the store, and waits for the log."""

INTEND_SECONDS = 60.0
"""The node waits until the log of the write group has the names, on a majority of its replicas."""

INTENDED_AT_ONCE_MAX = 256
"""Names of one call, of some hundred bytes each: few enough for a block of the log."""

READ_SECONDS = 300.0
"""For a whole extent of a slice, over a slow link as well."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A node's answer under `ENDPOINT_PATH`."""

    host: str
    port: int
    store_dir: str
    """The queue store's directory, absolute, as the node sees it."""
    shared_store: SharedStore | None = None
    """The place of the queue store, if not on disks of nodes."""

    @property
    def rpc(self) -> str:
        return str(Address(self.host, self.port))


def find_endpoint(node: str, tls: RpcTlsConfig = NO_TLS) -> Endpoint:
    """Ask the node at this HTTP address, and its RPC port how a shared store is reached. Raises
    `SplitServiceUnreachable`, and ConfigError when the files of `tls` cannot be used.

    Nobody checks the certificate of the HTTP port: what it tells is where the RPC port is, which is the node's only if
    it shows a certificate that `tls` accepts.
    """
    url = node.rstrip("/") + ENDPOINT_PATH
    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    try:
        with urllib.request.urlopen(url, timeout=ENDPOINT_SECONDS, context=_UNCHECKED) as response:
            found = msgspec.json.decode(response.read(ENDPOINT_BYTES_MAX), type=Endpoint)
    except (OSError, urllib.error.URLError, msgspec.DecodeError) as error:
        raise SplitServiceUnreachable(f"{url} does not tell where the split service is: {error}") from error
    if found.host in EVERY_INTERFACE:  # it listens everywhere: use the address that just answered
        found = msgspec.structs.replace(found, host=urllib.parse.urlsplit(url).hostname or found.host)
    if found.shared_store is None:
        return found
    link = NodeLink(found.rpc, "shared store", tls)
    try:
        store = msgspec.structs.replace(found.shared_store, config=link.store_config())
    finally:
        link.close()
    return msgspec.structs.replace(found, shared_store=store)


class NodeLink:
    """Typed calls to the split service. Not for several threads at once."""

    def __init__(self, address: str, name: str, tls: RpcTlsConfig = NO_TLS) -> None:
        """Raises ConfigError when the files of `tls` cannot be used."""
        self.address, self.name, self.tls = address, name, tls
        certificate = node_certificate(tls)
        secured = certificate.calling_now if certificate is not None else None
        self._client = BlockingClient(*parse_address(address), name=name, tls=secured)

    def __reduce__(self) -> tuple[Callable[[str, str, RpcTlsConfig], NodeLink], tuple[str, str, RpcTlsConfig]]:
        return NodeLink, (self.address, self.name, self.tls)

    def close(self) -> None:
        self._client.close()

    def positions(self) -> PositionsReply:
        return self._call(POSITIONS, Nothing())

    def limit(self, after: Mapping[int, int], bytes_max: int) -> dict[int, int]:
        return self._call(LIMIT, Limit(dict(after), bytes_max)).upto

    def slices(self, after: Mapping[int, int], upto: Mapping[int, int], bytes_max: int) -> PlannedSlices:
        return self._call(SLICES, PlanSlices(dict(after), dict(upto), bytes_max))

    def read(self, extent: SegmentExtent) -> Iterator[bytes]:
        """The extent's bytes in pieces. Raises `RangeGone`."""
        request = ReadExtent(extent.sequence, extent.start, extent.end)
        for reply in self._client.stream(READ, request, timeout_seconds=READ_SECONDS):
            yield bytes(reply.buffers[0])

    def pace(self, size: int, *, upkeep: bool) -> None:
        """Return when so many bytes may be worked on: of the journal, or in the upkeep of files."""
        self._call(PACE, SplitPace(size, upkeep))

    def damaged(self, position: int) -> bool:
        """Report a damaged block at this journal position, and have the node check it. Returns whether it is
        sound now, so that it is worth reading again."""
        return self._call(DAMAGED, DamageMet(sequence_of(position), offset_of(position)), DAMAGED_SECONDS).sound

    def retention_classes(self) -> dict[int, str]:
        return self._call(RETENTION_CLASSES, Nothing()).classes

    def acquire(self, holder: str, *, wait_seconds: float, yields: bool) -> Lease:
        """Raises `LeaseHeld`."""
        request = AcquireLease(holder=holder, wait_seconds=wait_seconds, yields=yields)
        return self._call(ACQUIRE, request, wait_seconds + CALL_SECONDS)

    def renew(self, lease: HeldLease) -> str:
        """The splitter that waits for the lease, if the holder yields. Raises `LeaseLost`."""
        return self._call(RENEW, lease).wanted_by

    def release(self, lease: HeldLease) -> None:
        self._call(RELEASE, lease)

    def record_split(self, lease: HeldLease, done: SplitSlice) -> list[str]:
        """The outcome per range. Raises `SplitRefused` when one is refused, `LeaseLost` before any is
        tried."""
        reply = self._call(RECORD_SPLIT, RecordSplit(lease, done.ranges, done.files), RECORD_SECONDS)
        taken = ("committed", "replayed", PASSED_OVER)
        refused = [outcome for outcome in reply.outcomes if not outcome.startswith(taken)]
        if refused or len(reply.outcomes) != len(done.ranges):
            raise SplitRefused(f"the node does not take {done.ranges}: {refused}")
        return reply.outcomes

    def merge_work(self, lease: HeldLease, *, drain: bool = False) -> MergeWork:
        """The work to merge next; work that was given before under this lease is taken back. Raises `LeaseLost`."""
        return self._call(MERGE_WORK, AskMerge(lease=lease, drain=drain, joins=True), MERGE_WORK_SECONDS)

    def merge_live(self, merge_id: str, queue_ids: bytes) -> bytes:
        """For queues (u64) the first offset that a merge keeps of each, then the end for each (i64), then the gaps as
        `OffsetGaps.packed` has them. Raises `MergeGone`."""
        reply = self._client.call(MERGE_LIVE, AskLive(merge_id), [queue_ids], timeout_seconds=CALL_SECONDS)
        content = b"".join(map(bytes, reply.buffers))
        size = 2 * len(queue_ids) + GAP_ROW_BYTES * reply.message.gaps
        if google_crc32c.value(content) != reply.message.crc or len(content) != size:
            raise ConnectionLost(f"{self.address}: what came of {MERGE_LIVE.name} is not what was sent")
        return content

    def record_merge(self, lease: HeldLease, merge_id: str, files: Sequence[StoreFile]) -> str:
        """'merged', or 'refused: …'. Raises `LeaseLost`."""
        request = RecordMerge(lease=lease, merge_id=merge_id, files=tuple(file.message() for file in files))
        return self._call(RECORD_MERGE, request, RECORD_MERGE_SECONDS).outcome

    def merge_damaged(self, merge_id: str, name: str, reason: str) -> None:
        """Report an input whose bytes are not those that were written. Raises `MergeGone`."""
        self._call(MERGE_DAMAGED, MergeDamage(merge_id=merge_id, name=name, reason=reason))

    def tier_work(self, lease: HeldLease, *, drain: bool = False) -> TierWork:
        """The work to upload next; work that was given before under this lease is taken back. Raises `LeaseLost`."""
        return self._call(TIER_WORK, AskTier(lease=lease, drain=drain, joins=True), TIER_WORK_SECONDS)

    def record_tier(self, lease: HeldLease, tier_id: str, names: Sequence[str], failure: str) -> str:
        """'recorded', 'kept', or 'refused: …'. Raises `LeaseLost`."""
        request = RecordTier(lease=lease, tier_id=tier_id, names=tuple(names), failure=failure)
        return self._call(RECORD_TIER, request, RECORD_TIER_SECONDS).outcome

    def intend(self, group: int, names: Sequence[str]) -> None:
        """Have the log of a write group say that these files are about to come to the shared store; durable when this
        returns. Raises `NamesRefused`."""
        for first in range(0, len(names), INTENDED_AT_ONCE_MAX):
            some = tuple(names[first : first + INTENDED_AT_ONCE_MAX])
            reply = self._call(INTEND_FILES, IntendFiles(group, some), INTEND_SECONDS)
            if reply.refusal:
                raise NamesRefused(
                    f"the node does not announce {len(names)} files of write group {group}: {reply.refusal}; none of "
                    "them is written, and the work is given out again"
                )

    def store_config(self) -> ObjectStoreConfig:
        """How the shared store is reached."""
        return msgspec.json.decode(self._call(STORE_ACCESS, Nothing()).config, type=ObjectStoreConfig)

    def reached(self, place: SharedStore) -> SharedStore:
        """The shared store at this place, and how it is reached."""
        return msgspec.structs.replace(place, config=self.store_config())

    def compact_work(self, lease: HeldLease, *, drain: bool = False) -> tuple[CompactionWork, bytes]:
        """The work to compact next, and its queues; work that was given before under this lease is taken back. Raises
        `LeaseLost`."""
        request = AskCompaction(lease=lease, drain=drain, covers=True, joins=True)
        reply = self._client.call(COMPACT_WORK, request, timeout_seconds=MERGE_WORK_SECONDS)
        queues = b"".join(map(bytes, reply.buffers))
        if reply.message.pass_id and google_crc32c.value(queues) != reply.message.crc:
            raise ConnectionLost(f"{self.address}: what came of {COMPACT_WORK.name} is not what was sent")
        return reply.message, queues

    def record_compaction(self, lease: HeldLease, pass_id: str, files: Sequence[CompactedFile]) -> str:
        """'compacted', or 'refused: …'. Raises `LeaseLost`."""
        request = RecordCompaction(lease=lease, pass_id=pass_id, files=tuple(files))
        return self._call(RECORD_COMPACTION, request, RECORD_MERGE_SECONDS).outcome

    def report(self, lease: HeldLease, progress: SplitProgress | None, error: str = "") -> None:
        self._call(PROGRESS, ReportProgress(lease=lease, progress=progress, error=error))

    def _call(
        self, method: Method[RequestT, ReplyT], request: RequestT, timeout_seconds: float = CALL_SECONDS
    ) -> ReplyT:
        return self._client.call(method, request, timeout_seconds=timeout_seconds).message
