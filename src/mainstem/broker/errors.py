"""The broker's own errors, and the one place where outcomes and refusals become Kafka's error codes."""

from __future__ import annotations

from mainstem.errors import LeaderMissing, MainstemError, StorageUnavailable
from mainstem.model import Outcome
from mainstem.nameserver import errors as metadata
from mainstem.protocol.error_codes import ErrorCode


class BrokerError(MainstemError):
    """Base of every error of this room."""


class UnsupportedRequest(BrokerError):
    """An API or version that is not served and whose answer cannot be expressed: the connection is closed."""


class UnreadableRequest(BrokerError):
    """A request whose bytes make no sense: the connection is closed."""


class UnanswerableRequest(BrokerError):
    """A request that failed and whose response has no room for an error: the connection is closed."""


class Unauthenticated(BrokerError):
    """A request of a client that has not shown who it is, or not lately enough: the connection is closed."""


ERROR_OF_OUTCOME: dict[Outcome, ErrorCode] = {
    Outcome.OK: ErrorCode.NONE,
    Outcome.UNKNOWN_QUEUE: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    Outcome.FENCED: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Outcome.NOT_LEADER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    Outcome.OFFSET_OUT_OF_RANGE: ErrorCode.OFFSET_OUT_OF_RANGE,
    Outcome.FENCED_LEADER_EPOCH: ErrorCode.FENCED_LEADER_EPOCH,
    Outcome.UNKNOWN_LEADER_EPOCH: ErrorCode.UNKNOWN_LEADER_EPOCH,
    Outcome.OUT_OF_ORDER_SEQUENCE: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Outcome.UNKNOWN_PRODUCER: ErrorCode.UNKNOWN_PRODUCER_ID,
    Outcome.STALE_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
    Outcome.TOO_LARGE: ErrorCode.RECORD_LIST_TOO_LARGE,
    # clients retry NOT_ENOUGH_REPLICAS with backoff and without asking for metadata again
    Outcome.SKIPPED_SEQUENCE: ErrorCode.NOT_ENOUGH_REPLICAS,
    Outcome.STORAGE_BUSY: ErrorCode.NOT_ENOUGH_REPLICAS,
    Outcome.INVALID_TXN_STATE: ErrorCode.INVALID_TXN_STATE,
    Outcome.CONCURRENT_TRANSACTIONS: ErrorCode.CONCURRENT_TRANSACTIONS,
    Outcome.TRANSACTION_COORDINATOR_FENCED: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    Outcome.COLD_PRODUCER: ErrorCode.NOT_ENOUGH_REPLICAS,  # no store answers it
    # which tells a client that the batch may be there, where NOT_LEADER_OR_FOLLOWER tells it that it is not
    Outcome.UNDECIDED: ErrorCode.REQUEST_TIMED_OUT,
    Outcome.STORAGE_FAILED: ErrorCode.KAFKA_STORAGE_ERROR,
}

_ERROR_OF_REFUSAL: dict[type, ErrorCode] = {
    metadata.TopicExists: ErrorCode.TOPIC_ALREADY_EXISTS,
    metadata.UnknownTopic: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    metadata.InvalidTopicName: ErrorCode.INVALID_TOPIC_EXCEPTION,
    metadata.InvalidPartitions: ErrorCode.INVALID_PARTITIONS,
    metadata.InvalidReplicationFactor: ErrorCode.INVALID_REPLICATION_FACTOR,
    metadata.InvalidConfig: ErrorCode.INVALID_CONFIG,
    metadata.InvalidAcl: ErrorCode.INVALID_REQUEST,
    metadata.TooManyAcls: ErrorCode.INVALID_REQUEST,
    metadata.InvalidQuota: ErrorCode.INVALID_REQUEST,
    metadata.TooManyQuotas: ErrorCode.INVALID_REQUEST,
    metadata.InvalidTenant: ErrorCode.INVALID_REQUEST,
    metadata.TenantCeiling: ErrorCode.POLICY_VIOLATION,
    metadata.InvalidToken: ErrorCode.INVALID_REQUEST,
    metadata.UnknownToken: ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
    metadata.TooManyTokens: ErrorCode.POLICY_VIOLATION,
    metadata.UnknownScramUser: ErrorCode.RESOURCE_NOT_FOUND,
    metadata.CredentialRefused: ErrorCode.UNACCEPTABLE_CREDENTIAL,
    metadata.TooManyUsers: ErrorCode.UNACCEPTABLE_CREDENTIAL,
    metadata.FeatureLevelTooLow: ErrorCode.UNSUPPORTED_VERSION,
    metadata.FeatureLevelNotReady: ErrorCode.FEATURE_UPDATE_FAILED,
    metadata.InvalidPlacement: ErrorCode.POLICY_VIOLATION,
    metadata.NotMoving: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    metadata.MoveBegun: ErrorCode.REASSIGNMENT_IN_PROGRESS,
    # clients look for the controller anew, and try again there
    metadata.MetadataUnavailable: ErrorCode.NOT_CONTROLLER,
    # the request may still come about: the next leader of the write group sees to it
    LeaderMissing: ErrorCode.REQUEST_TIMED_OUT,
    # clients try again, of records at whoever leads by then
    StorageUnavailable: ErrorCode.KAFKA_STORAGE_ERROR,
}


ERROR_NAMES: dict[int, str] = {code.value: code.name for code in ErrorCode}


def error_of_failed_read(failure: MainstemError | OSError) -> ErrorCode:
    """Kafka's code for a partition that could not be read: it tells clients to look for another leader, and
    leaves the other partitions alone."""
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if isinstance(failure, LeaderMissing) else ErrorCode.KAFKA_STORAGE_ERROR


def error_of_refusal(refusal: MainstemError) -> ErrorCode:
    """Kafka's code for an error that `MetadataAdmin` or `QueueAdmin` raised; else UNKNOWN_SERVER_ERROR."""
    codes = (_ERROR_OF_REFUSAL.get(kind) for kind in type(refusal).__mro__)
    return next((code for code in codes if code is not None), ErrorCode.UNKNOWN_SERVER_ERROR)


class MachinesError(BrokerError):
    """Base of the errors of coordinators."""


class CoordinatorRefusal(MachinesError):
    """The coordinator cannot answer; the client gets `code`."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.message)
        self.code = code


class MemberRefused(CoordinatorRefusal):
    """The request of a group's member cannot be granted; the client gets `code` and `why`."""

    def __init__(self, code: ErrorCode, why: str | None = None) -> None:
        super().__init__(code)
        self.why = why or code.message


class LogUnavailable(MachinesError):
    """A partition of an internal topic cannot be read or written now; clients get `code`."""

    def __init__(self, what: str, code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE) -> None:
        super().__init__(what)
        self.code = code


class Unreadable(LogUnavailable):
    """The log is damaged at `offset`, or lacks it, as far as this node can tell now."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"reading at offset {offset}: {why}")
        self.offset = offset
        self.why = why
