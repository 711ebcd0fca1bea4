"""Bugs to plant in whole nodes, by `cluster.planted`, besides those in storage roles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any
from uuid import UUID

from tests.simulation.cluster.planted import Plant

from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups import offsets
from mainstem.broker.consumer_groups.machine import ConsumerGroupMachine
from mainstem.broker.consumer_groups.partition import CoordinatorPartition
from mainstem.broker.consumer_groups.served_partitions import ServedPartitions
from mainstem.broker.handlers import list_offsets, produce
from mainstem.broker.machines.runtime import MachineRuntime
from mainstem.kernel import Verdict
from mainstem.kernel.pure.producer_states import INDEX_MAX
from mainstem.model import Topic
from mainstem.nameserver.disk import starts
from mainstem.nameserver.disk.starts_file import StartsFile
from mainstem.ports import Files
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.list_offsets import ListOffsetsRequest
from mainstem.protocol.schema import ZERO_UUID
from mainstem.rpc.messages.starts import StartShown
from mainstem.rpc.wire.identity import Identity
from mainstem.storage.agreed_clock import AgreedClock, AgreedTime
from mainstem.storage.cluster.write_group_replication import Consensus
from mainstem.storage.state.checkpointer import Checkpointer
from mainstem.storage.state.producers import awaited_producers
from mainstem.storage.state.producers.producer_expiry import Expired, ProducerExpiry
from mainstem.storage.state.producers.producer_files import Pieces, ProducerFile, pieces_of
from mainstem.storage.state.producers.producer_rows import Name
from mainstem.storage.upkeep.retention_pass import RetentionPass


def _coordinator_serves_before_replay() -> tuple[type, str, Any]:
    """A coordinator answers while its log is being read."""
    load = MachineRuntime._load

    async def load_serving(runtime: MachineRuntime[ConsumerGroupMachine]) -> None:
        runtime.machine = runtime._kind.make()
        await load(runtime)

    return MachineRuntime, "_load", load_serving


def _old_generations_commit() -> tuple[ModuleType, str, Any]:
    """Members of a generation that is over may still commit."""
    return offsets, "generation_error", lambda *_arguments: ErrorCode.NONE


def _no_checkpoint() -> tuple[type, str, Any]:
    """Nothing is checkpointed, so nothing is pruned."""

    async def checkpoint(checkpointer: Checkpointer) -> None:
        """Later."""

    return Checkpointer, "checkpoint", checkpoint


def _skipped_is_out_of_order() -> tuple[ModuleType, str, Any]:
    """A batch that overtook the one before it is out of order at once, as with Kafka."""
    errors = list(produce.ERRORS)
    errors[Verdict.SKIPPED_SEQUENCE] = errors[Verdict.OUT_OF_ORDER_SEQUENCE]
    return produce, "ERRORS", tuple(errors)


def _watermark_without_read_index() -> tuple[ModuleType, str, Any]:
    """A node answers for the end of a log as soon as it believes to lead it."""

    async def nobody_is_asked(broker: Broker, request: ListOffsetsRequest) -> set[int]:
        return set()

    return list_offsets, "_unconfirmed", nobody_is_asked


def _old_copy_is_believed() -> tuple[ModuleType, str, Any]:
    """Every start that another node shows is taken for the next one."""
    judged = starts.judged

    def believed(before: starts.Remembers, caller: Identity, shown: StartShown) -> starts.Judged:
        return judged(before, caller, StartShown(shown.drawn, forgot=True))

    return starts, "judged", believed


def _forgetful_replicas_vote() -> tuple[type, str, Any]:
    """The replicas of a node that has forgotten votes and blocks take part at once, as any other."""
    return Consensus, "has_lost", lambda consensus, group: False


def _older_votes_are_believed() -> tuple[type, str, Any]:
    """Whichever start saved `hard_states` last, it is taken for the newest."""

    async def check_votes(file: StartsFile, name: str, nonce: bytes) -> None:
        """It is fine."""

    return StartsFile, "check_votes", check_votes


def _unheard(name: str, topic_id: UUID) -> None:
    """Of a topic's deletion."""


def _offsets_outlive_their_topics() -> tuple[type, str, Any]:
    """A coordinator takes no notice of deletions: what was committed in a topic goes to the next one of its name."""
    make = ServedPartitions._partition

    def heedless(served: ServedPartitions, topic: Topic, index: int) -> CoordinatorPartition:
        partition = make(served, topic, index)
        partition._topics = partition._topics._replace(id_of=lambda _name: ZERO_UUID)
        partition.topic_deleted = _unheard  # type: ignore[method-assign]
        return partition

    return ServedPartitions, "_partition", heedless


def _producers_expire_by_one_clock() -> tuple[type, str, Any]:
    """Whom this node's clock takes for long gone is forgotten."""

    def expired(expiry: ProducerExpiry, _number: int) -> Expired:
        return Expired(expiry._clock.now_ms() - int(1000 * expiry.seconds), INDEX_MAX)

    return ProducerExpiry, "expired", expired


def _retention_by_one_clock() -> tuple[type, str, Any]:
    """Retention asks the clock of its own node what time it is."""
    move = RetentionPass.move_log_starts

    class OwnClock(AgreedClock):
        def now(self) -> AgreedTime:
            own = self._clock.now_ms()
            return AgreedTime(own, own)

    async def move_log_starts(retention: RetentionPass) -> int:
        retention._clock = OwnClock(retention._clock._clock)
        return await move(retention)

    return RetentionPass, "move_log_starts", move_log_starts


def _damaged_producers_are_dropped() -> tuple[ModuleType, str, Any]:
    """A producer in a page that cannot be read is nobody that was ever seen, and nobody else is asked."""

    async def dropping(files: Files, sources: Sequence[ProducerFile], names: Iterable[Name]) -> Pieces:
        return (await pieces_of(files, sources, names))._replace(damaged={})

    return awaited_producers, "pieces_of", dropping


WHOLE_PLANTS: dict[str, Plant] = {
    "damaged-producers-are-dropped": _damaged_producers_are_dropped,
    "retention-by-one-clock": _retention_by_one_clock,
    "producers-expire-by-one-clock": _producers_expire_by_one_clock,
    "coordinator-serves-before-replay": _coordinator_serves_before_replay,
    "old-generations-commit": _old_generations_commit,
    "no-checkpoint": _no_checkpoint,
    "skipped-is-out-of-order": _skipped_is_out_of_order,
    "watermark-without-read-index": _watermark_without_read_index,
    "offsets-outlive-their-topics": _offsets_outlive_their_topics,
    "old-copy-is-believed": _old_copy_is_believed,
    "forgetful-replicas-vote": _forgetful_replicas_vote,
    "older-votes-are-believed": _older_votes_are_believed,
}

WHOLE_BREAKS = {
    "damaged-producers-are-dropped": "JD",
    "retention-by-one-clock": "T",
    "producers-expire-by-one-clock": "J",
    "coordinator-serves-before-replay": "H",
    "old-generations-commit": "H",
    "no-checkpoint": "K",
    "skipped-is-out-of-order": "D",
    "watermark-without-read-index": "W",
    "offsets-outlive-their-topics": "H",
    "old-copy-is-believed": "N",
    "forgetful-replicas-vote": "N",
    "older-votes-are-believed": "N",
}
"""As `cluster.planted.BREAKS`."""
