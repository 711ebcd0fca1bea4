"""AddRaftVoter and RemoveRaftVoter: refused as a Kafka cluster refuses them whose voters are not changed this way. Here
a voter is replaced by another in one safe change, which these two cannot say."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.raft_voters import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)

REFUSAL = "the cluster's voters do not change by Kafka's requests: mainstem cluster replace hands a vote on"


async def add(broker: Broker, request: AddRaftVoterRequest, call: RequestContext) -> AddRaftVoterResponse:
    error, message = _refusal(broker, request.cluster_id)
    return AddRaftVoterResponse(error_code=error, error_message=message)


async def remove(broker: Broker, request: RemoveRaftVoterRequest, call: RequestContext) -> RemoveRaftVoterResponse:
    error, message = _refusal(broker, request.cluster_id)
    return RemoveRaftVoterResponse(error_code=error, error_message=message)


def _refusal(broker: Broker, cluster_id: str | None) -> tuple[ErrorCode, str]:
    own = broker.metadata.cluster_id()
    if cluster_id is not None and cluster_id != own:
        return ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is cluster {own}"
    return ErrorCode.UNSUPPORTED_VERSION, REFUSAL
