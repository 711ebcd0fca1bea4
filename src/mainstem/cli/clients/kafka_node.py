"""A node's Kafka port as the commands use it: clients of confluent-kafka, and its errors in our words.

A plain connect comes before every client: librdkafka retries for a long time what a closed port tells at once. If the
client has to be let in, a first client finds out whether it is, for the same reason."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from mainstem.address import Address, parsed
from mainstem.cli.clients.client_settings import Bootstrap, settings_of
from mainstem.cli.errors import CommandLineError, NodeUnreachable, NotAdmitted, RequestRefused, SettingsUnusable

T = TypeVar("T")

CONNECT_SECONDS = 5.0
COORDINATOR_SECONDS = 10.0
"""The first question about consumer groups makes their topic, and a coordinator that moves reads its log."""
ADMISSION_SECONDS = 15.0
"""A node that is loaded shakes hands and checks a password within this."""
_LOOK_SECONDS = 0.2
"""How often a client that waits to be let in is asked what went wrong."""
REQUEST_SECONDS = 30.0
"""Longer than a node takes to create a topic of many partitions on a slow disk."""


def settings(bootstrap: str, **more: object) -> dict[str, Any]:
    """Client settings for a node that answers at `bootstrap`. Raises NodeUnreachable; where the client has to be let
    in, NotAdmitted and SettingsUnusable."""
    _check_reachable(bootstrap)
    if isinstance(bootstrap, Bootstrap) and bootstrap.settings and bootstrap not in _admitted:
        _check_admitted(bootstrap)
        _admitted.add(bootstrap)
    return {
        **settings_of(bootstrap),
        "bootstrap.servers": bootstrap,
        "client.id": "mainstem-cli",
        # What goes wrong comes back as an error; librdkafka's own log lines would tell it a second time.
        "log_level": 0,
        **more,
    }


_OF_TLS = "SSL routines"
"""In what OpenSSL says. With TLS 1.3 a node refuses a client's certificate when the client takes the handshake for
done: librdkafka has that for a lost connection."""

_admitted: set[str] = set()
"""The addresses that have let this process in: a command makes several clients of the same settings."""


def admin(bootstrap: str) -> AdminClient:
    return AdminClient(settings(bootstrap))


def topic_names(admin: AdminClient) -> list[str]:
    """Every topic, internal ones included. Raises RequestRefused."""
    try:
        return list(admin.list_topics(timeout=REQUEST_SECONDS).topics)
    except KafkaException as error:
        raise RequestRefused(f"the topics were not listed: {reason(error)}") from None


def topic_config(admin: AdminClient, topic: str, key: str) -> str | None:
    """A topic's config in force; None where it cannot be had, as for a topic that is yet to be created."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    future = admin.describe_configs([resource], request_timeout=REQUEST_SECONDS)[resource]
    try:
        entry = future.result(timeout=REQUEST_SECONDS + 5).get(key)
    except (KafkaException, TimeoutError):
        return None
    return None if entry is None else str(entry.value)


def advertised(admin: AdminClient) -> list[str]:
    """The addresses that the cluster tells its clients to come to. Raises RequestRefused."""
    try:
        brokers = admin.list_topics(timeout=CONNECT_SECONDS).brokers
    except KafkaException as error:
        raise RequestRefused(f"no answer in Kafka's protocol: {reason(error)}") from None
    return [str(Address(broker.host, broker.port)) for _, broker in sorted(brokers.items())]


def outcome(future: Future[T], what: str) -> T:
    """The result of an admin request. Raises RequestRefused: `what`, then the node's reason."""
    try:
        return future.result(timeout=REQUEST_SECONDS + 5)
    except KafkaException as error:
        raise RequestRefused(f"{what}: {reason(error)}") from None
    except TimeoutError:
        raise RequestRefused(f"{what}: no answer within {REQUEST_SECONDS:.0f} s") from None


def outcome_of_leader(future: Future[T], what: str) -> T | None:
    """As `outcome`; None where a partition's leader has gone meanwhile, or does not answer."""
    try:
        return future.result(timeout=REQUEST_SECONDS + 5)
    except KafkaException as error:
        if error.args[0].code() in _OF_LEADERS:
            return None
        return outcome(future, what)
    except TimeoutError:
        return None


def outcome_of_coordinator(ask: Callable[[], Future[T]], what: str) -> T:
    """The result of a request to a consumer group's coordinator, which may be about to start, or to move: it is asked
    again for a while. Raises RequestRefused as `outcome` does."""
    deadline = time.monotonic() + COORDINATOR_SECONDS
    while True:
        future = ask()
        try:
            return future.result(timeout=REQUEST_SECONDS + 5)
        except KafkaException as error:
            if error.args[0].code() not in _OF_COORDINATORS or time.monotonic() >= deadline:
                return outcome(future, what)
        except TimeoutError:
            return outcome(future, what)
        time.sleep(_LOOK_SECONDS)


def reason(error: KafkaException) -> str:
    """Kafka's reason in its own words, with the name of its code."""
    inner = error.args[0]
    return f"{inner.str()} ({inner.name()})"


def is_passing(error: KafkaError) -> bool:
    """Whether an error is what a client sees while its node is away or its group changes: it comes back by
    itself."""
    return bool(error.retriable()) or error.code() in _PASSING


_OF_COORDINATORS = frozenset(
    {
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    }
)

_OF_LEADERS = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._NOENT,  # librdkafka has looked for the leader, and found none
        KafkaError._TIMED_OUT,
    }
)
"""Clients see these of a partition while it has no leader, or when its leader has just changed."""

_PASSING = _OF_COORDINATORS | frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
    }
)


def _check_reachable(bootstrap: str) -> None:
    """`bootstrap` as `options.AddressType` leaves it. Raises NodeUnreachable."""
    failures = []
    for address in bootstrap.split(","):
        try:
            socket.create_connection(parsed(address), CONNECT_SECONDS).close()
        except OSError as error:
            failures.append(f"{address}: {error.strerror or error}")
        else:
            return
    raise NodeUnreachable(
        f"no node at {'; '.join(failures)}; is `mainstem serve` running? Give another address with --bootstrap"
    )


def _check_admitted(bootstrap: Bootstrap) -> None:
    """Connect as the client that is to come. Raises NotAdmitted, SettingsUnusable, RequestRefused."""
    failures: list[KafkaError] = []
    what = {"bootstrap.servers": str(bootstrap), "client.id": "mainstem-cli", "log_level": 0}
    try:
        client = AdminClient({**bootstrap.settings, **what, "error_cb": failures.append})
    except (KafkaException, TypeError, ValueError) as error:
        text = reason(error) if isinstance(error, KafkaException) else str(error)
        raise SettingsUnusable(f"the client settings cannot be used: {text}") from None
    deadline = time.monotonic() + ADMISSION_SECONDS
    while True:
        try:
            client.list_topics(timeout=_LOOK_SECONDS)
            return
        except KafkaException as error:
            last = reason(error)
        client.poll(0)
        if (refusal := _refusal(failures, bootstrap.settings)) is not None:
            raise refusal
        if time.monotonic() >= deadline:
            raise RequestRefused(f"{bootstrap}: no answer in Kafka's protocol within {ADMISSION_SECONDS:.0f} s: {last}")


def _refusal(failures: list[KafkaError], settings: Mapping[str, str]) -> CommandLineError | None:
    """The part of an error that says that the two do not trust each other; None: they may do yet."""
    for failure in failures:
        if failure.code() == KafkaError._AUTHENTICATION:
            who = settings.get("sasl.username")
            return NotAdmitted(f"not let in{f' as {who}' if who else ''}: {failure.str()}")
        if failure.code() == KafkaError._SSL or _OF_TLS in failure.str():
            return NotAdmitted(f"no TLS with the node: {failure.str()}")
    return None


def created(future: Future[None], what: str, *, exists_is_fine: bool) -> bool:
    """Whether a topic was created; False when it was there and that is fine. Raises RequestRefused."""
    try:
        future.result(timeout=REQUEST_SECONDS + 5)
    except KafkaException as error:
        if exists_is_fine and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise RequestRefused(f"{what}: {reason(error)}") from None
    return True
