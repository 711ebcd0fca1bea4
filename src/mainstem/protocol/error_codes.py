"""Kafka's error codes: their numbers, whether a client may try again, and their meanings in a few words."""

from __future__ import annotations

from enum import IntEnum

_RETRIABLE = True


class ErrorCode(IntEnum):
    """An error as responses carry it. It is an int: it goes into `error_code` fields as it is."""

    retriable: bool
    """Whether a client may repeat the request, after refreshing what it knows, and expect success."""

    message: str
    """The fault in a few words, for log lines and `error_message` fields."""

    def __new__(cls, code: int, message: str = "", retriable: bool = False) -> ErrorCode:
        assert message, f"error code {code} has no message"  # a look-up by the number alone does not come here
        member = int.__new__(cls, code)
        member._value_ = code
        member.message = message
        member.retriable = retriable
        return member

    UNKNOWN_SERVER_ERROR = -1, "the node met an error it did not expect"
    NONE = 0, "no error"
    OFFSET_OUT_OF_RANGE = 1, "the partition has no such offset"
    CORRUPT_MESSAGE = (
        2,
        "a batch has a wrong checksum or structure, or a compacted topic received a record without a key",
        _RETRIABLE,
    )
    UNKNOWN_TOPIC_OR_PARTITION = 3, "this node knows no such topic or partition", _RETRIABLE
    INVALID_FETCH_SIZE = 4, "the fetch size makes no sense"
    LEADER_NOT_AVAILABLE = 5, "the partition has no leader right now", _RETRIABLE
    NOT_LEADER_OR_FOLLOWER = 6, "this node does not serve the partition (any more)", _RETRIABLE
    REQUEST_TIMED_OUT = 7, "the request was not completed in time", _RETRIABLE
    BROKER_NOT_AVAILABLE = 8, "the broker cannot be reached"
    REPLICA_NOT_AVAILABLE = 9, "the replica cannot be reached", _RETRIABLE
    MESSAGE_TOO_LARGE = 10, "a batch is larger than the topic allows"
    STALE_CONTROLLER_EPOCH = 11, "another controller has taken over"
    OFFSET_METADATA_TOO_LARGE = 12, "the text stored with the offset is too long"
    NETWORK_EXCEPTION = 13, "the connection was lost before the response came", _RETRIABLE
    COORDINATOR_LOAD_IN_PROGRESS = 14, "the coordinator is still reading its state", _RETRIABLE
    COORDINATOR_NOT_AVAILABLE = 15, "there is no coordinator right now", _RETRIABLE
    NOT_COORDINATOR = 16, "another node coordinates this group or transaction", _RETRIABLE
    INVALID_TOPIC_EXCEPTION = 17, "the topic's name is illegal, or the topic may not be used so"
    RECORD_LIST_TOO_LARGE = 18, "the request's batches are larger than a segment may be"
    NOT_ENOUGH_REPLICAS = 19, "fewer replicas are in sync than the topic requires", _RETRIABLE
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        "written, but to fewer replicas than the topic requires",
        _RETRIABLE,
    )
    INVALID_REQUIRED_ACKS = 21, "acks must be -1, 0 or 1"
    ILLEGAL_GENERATION = 22, "the group is in another generation"
    INCONSISTENT_GROUP_PROTOCOL = 23, "the member shares no protocol with the rest of the group"
    INVALID_GROUP_ID = 24, "the group id is illegal"
    UNKNOWN_MEMBER_ID = 25, "the group has no such member"
    INVALID_SESSION_TIMEOUT = 26, "the session timeout is outside the allowed range"
    REBALANCE_IN_PROGRESS = 27, "the group is rebalancing: join again"
    INVALID_COMMIT_OFFSET_SIZE = 28, "the offset commit is too large to store"
    TOPIC_AUTHORIZATION_FAILED = 29, "not allowed on this topic"
    GROUP_AUTHORIZATION_FAILED = 30, "not allowed on this group"
    CLUSTER_AUTHORIZATION_FAILED = 31, "not allowed on this cluster"
    INVALID_TIMESTAMP = 32, "a record's timestamp is outside the allowed range"
    UNSUPPORTED_SASL_MECHANISM = 33, "the node does not offer this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, "the request does not fit the state of the authentication"
    UNSUPPORTED_VERSION = 35, "the node does not speak this version of the API"
    TOPIC_ALREADY_EXISTS = 36, "there is a topic of this name already"
    INVALID_PARTITIONS = 37, "the number of partitions is not possible"
    INVALID_REPLICATION_FACTOR = 38, "the replication factor is not possible with the nodes there are"
    INVALID_REPLICA_ASSIGNMENT = 39, "the replica assignment is not possible"
    INVALID_CONFIG = 40, "a config has an illegal name or value"
    NOT_CONTROLLER = 41, "another node is the controller", _RETRIABLE
    INVALID_REQUEST = 42, "the request contradicts itself or the protocol"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "the record format does not allow this"
    POLICY_VIOLATION = 44, "a policy of the cluster forbids this"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "the producer's sequence number leaves a gap"
    DUPLICATE_SEQUENCE_NUMBER = 46, "the producer's sequence number was used before"
    INVALID_PRODUCER_EPOCH = 47, "the producer's epoch is older than the one known"
    INVALID_TXN_STATE = 48, "the transaction is in a state that forbids this"
    INVALID_PRODUCER_ID_MAPPING = 49, "the producer id does not belong to the transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, "the transaction timeout is longer than allowed"
    CONCURRENT_TRANSACTIONS = 51, "the producer's previous transaction is not finished yet", _RETRIABLE
    TRANSACTION_COORDINATOR_FENCED = 52, "a newer transaction coordinator has taken over"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "not allowed with this transactional id"
    SECURITY_DISABLED = 54, "security features are switched off"
    OPERATION_NOT_ATTEMPTED = 55, "not tried, because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, "the node's storage failed", _RETRIABLE
    LOG_DIR_NOT_FOUND = 57, "there is no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, "the credentials were not accepted"
    UNKNOWN_PRODUCER_ID = 59, "nothing is known about this producer id"
    REASSIGNMENT_IN_PROGRESS = 60, "the partition is being moved"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "delegation tokens are switched off"
    DELEGATION_TOKEN_NOT_FOUND = 62, "there is no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "the delegation token belongs to someone else"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, "delegation tokens cannot be requested over this connection"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "not allowed with this delegation token"
    DELEGATION_TOKEN_EXPIRED = 66, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, "the principal's type is not supported"
    NON_EMPTY_GROUP = 68, "the group still has members"
    GROUP_ID_NOT_FOUND = 69, "there is no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, "the fetch session is gone: start a new one", _RETRIABLE
    INVALID_FETCH_SESSION_EPOCH = 71, "the fetch session expected another epoch", _RETRIABLE
    LISTENER_NOT_FOUND = 72, "the leader has no listener of this name", _RETRIABLE
    TOPIC_DELETION_DISABLED = 73, "topics may not be deleted here"
    FENCED_LEADER_EPOCH = 74, "the leader epoch is older than the node's", _RETRIABLE
    UNKNOWN_LEADER_EPOCH = 75, "the leader epoch is newer than the node's", _RETRIABLE
    UNSUPPORTED_COMPRESSION_TYPE = 76, "the compression is not supported in this version"
    STALE_BROKER_EPOCH = 77, "the broker has registered again since"
    OFFSET_NOT_AVAILABLE = 78, "the new leader does not know its high watermark yet", _RETRIABLE
    MEMBER_ID_REQUIRED = 79, "join again with the member id from this response"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "the preferred leader cannot be reached", _RETRIABLE
    GROUP_MAX_SIZE_REACHED = 81, "the group has as many members as it may have"
    FENCED_INSTANCE_ID = 82, "another member has taken over this instance id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "none of the replicas that may lead can be reached", _RETRIABLE
    ELECTION_NOT_NEEDED = 84, "the partition already has that leader", _RETRIABLE
    NO_REASSIGNMENT_IN_PROGRESS = 85, "the partition is not being moved"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "members of the group are subscribed to the topic"
    INVALID_RECORD = 87, "a record breaks a rule of the topic"
    UNSTABLE_OFFSET_COMMIT = 88, "a transaction that commits offsets is still open", _RETRIABLE
    THROTTLING_QUOTA_EXCEEDED = 89, "the quota is used up for now", _RETRIABLE
    PRODUCER_FENCED = 90, "a newer producer with the same transactional id has taken over"
    RESOURCE_NOT_FOUND = 91, "there is no such resource"
    DUPLICATE_RESOURCE = 92, "the request names a resource twice"
    UNACCEPTABLE_CREDENTIAL = 93, "the credential does not meet the requirements"
    INCONSISTENT_VOTER_SET = 94, "the sets of voters differ"
    INVALID_UPDATE_VERSION = 95, "the feature version is not possible"
    FEATURE_UPDATE_FAILED = 96, "the features could not be changed"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "the forwarded principal could not be read"
    SNAPSHOT_NOT_FOUND = 98, "there is no such snapshot"
    POSITION_OUT_OF_RANGE = 99, "the snapshot has no such position"
    UNKNOWN_TOPIC_ID = 100, "this node knows no topic of this id", _RETRIABLE
    DUPLICATE_BROKER_REGISTRATION = 101, "another broker is registered under this id"
    BROKER_ID_NOT_REGISTERED = 102, "no broker is registered under this id"
    INCONSISTENT_TOPIC_ID = 103, "the partition belongs to a topic of another id", _RETRIABLE
    INCONSISTENT_CLUSTER_ID = 104, "the request is meant for another cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, "there is no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "the fetch session mixes topic names and ids", _RETRIABLE
    INELIGIBLE_REPLICA = 107, "the replica may not join the in-sync set"
    NEW_LEADER_ELECTED = 108, "the change was made, and it moved the leader"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "the offset is only in tiered storage"
    FENCED_MEMBER_EPOCH = 110, "the member's epoch is not the coordinator's"
    UNRELEASED_INSTANCE_ID = 111, "another member still holds this instance id"
    UNSUPPORTED_ASSIGNOR = 112, "the group does not offer this assignor"
    STALE_MEMBER_EPOCH = 113, "the member's epoch has moved on"
    MISMATCHED_ENDPOINT_TYPE = 114, "the request belongs to another kind of endpoint"
    UNSUPPORTED_ENDPOINT_TYPE = 115, "there is no such kind of endpoint"
    UNKNOWN_CONTROLLER_ID = 116, "there is no such controller"
    UNKNOWN_SUBSCRIPTION_ID = 117, "the telemetry subscription has changed"
    TELEMETRY_TOO_LARGE = 118, "the telemetry is larger than accepted"
    INVALID_REGISTRATION = 119, "the registration contradicts the cluster"
    TRANSACTION_ABORTABLE = 120, "the transaction must be aborted"
    INVALID_RECORD_STATE = 121, "the record is in a state that forbids this"
    SHARE_SESSION_NOT_FOUND = 122, "the share session is gone: start a new one", _RETRIABLE
    INVALID_SHARE_SESSION_EPOCH = 123, "the share session expected another epoch", _RETRIABLE
    FENCED_STATE_EPOCH = 124, "the share coordinator's epoch has moved on"
    INVALID_VOTER_KEY = 125, "the voter's key is not the receiver's"
    DUPLICATE_VOTER = 126, "the voter is in the set already"
    VOTER_NOT_FOUND = 127, "the set has no such voter"
    INVALID_REGULAR_EXPRESSION = 128, "the regular expression cannot be used"
    REBOOTSTRAP_REQUIRED = 129, "the client must find the cluster anew"
    STREAMS_INVALID_TOPOLOGY = 130, "the streams topology is not possible"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "the streams topology's epoch is not possible"
    STREAMS_TOPOLOGY_FENCED = 132, "a newer streams topology has taken over"
    SHARE_SESSION_LIMIT_REACHED = 133, "there are as many share sessions as there may be", _RETRIABLE
