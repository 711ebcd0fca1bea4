"""AddRaftVoter and RemoveRaftVoter: who votes in the metadata quorum (KIP-853)."""

from __future__ import annotations

from uuid import UUID

from mainstem.protocol.schema import array, boolean, int16, int32, message, nested, string, uint16, uuid, wire


@nested
class RaftVoterListener:
    name: str = wire(string)
    host: str = wire(string)
    port: int = wire(uint16)


@message(api_key=80, versions="0-1", flexible="0+")
class AddRaftVoterRequest:
    cluster_id: str | None = wire(string, nullable="0+")
    timeout_ms: int = wire(int32)
    voter_id: int = wire(int32)
    voter_directory_id: UUID = wire(uuid)
    listeners: tuple[RaftVoterListener, ...] = wire(array(RaftVoterListener))
    ack_when_committed: bool = wire(boolean, "1+", default=True)


@message(api_key=80, versions="0-1", flexible="0+")
class AddRaftVoterResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None, ignorable=True)


@message(api_key=81, versions="0", flexible="0+")
class RemoveRaftVoterRequest:
    cluster_id: str | None = wire(string, nullable="0+")
    voter_id: int = wire(int32)
    voter_directory_id: UUID = wire(uuid)


@message(api_key=81, versions="0", flexible="0+")
class RemoveRaftVoterResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None, ignorable=True)
