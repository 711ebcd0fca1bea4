"""InitProducerId: the identity of an idempotent or transactional producer.

Version 6 adds two-phase commit, which Kafka has not released yet.
"""

from __future__ import annotations

from mainstem.protocol.schema import boolean, int16, int32, int64, message, string, wire


@message(api_key=22, versions="0-6", flexible="2+")
class InitProducerIdRequest:
    transactional_id: str | None = wire(string, nullable="0+")
    transaction_timeout_ms: int = wire(int32)
    producer_id: int = wire(int64, "3+", default=-1)
    producer_epoch: int = wire(int16, "3+", default=-1)
    enable2_pc: bool = wire(boolean, "6+", default=False)
    keep_prepared_txn: bool = wire(boolean, "6+", default=False)


@message(api_key=22, versions="0-6", flexible="2+")
class InitProducerIdResponse:
    throttle_time_ms: int = wire(int32, default=0, ignorable=True)
    error_code: int = wire(int16)
    producer_id: int = wire(int64, default=-1)
    producer_epoch: int = wire(int16)
    ongoing_txn_producer_id: int = wire(int64, "6+", default=-1)
    ongoing_txn_producer_epoch: int = wire(int16, "6+", default=-1)
