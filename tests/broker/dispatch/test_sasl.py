"""Listeners with SASL, over sockets: who is let in, what comes too early or too late, and what every refusal says."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from scramp import ScramClient
from tests.broker.harness import batch, make_broker
from tests.fakes.access.credentials import FakeCredentials
from tests.fakes.access.tokens import MemoryTokens
from tests.fakes.clock import LoopClock
from tests.harness.patience import PATIENCE_SECONDS
from tests.server.raw_client import RawClient

from mainstem.broker.authentications import REFUSED
from mainstem.broker.dispatch.dispatcher import BrokerDispatcher
from mainstem.model import Node, QueueRange
from mainstem.ports import Burst, Exchange, Session, always
from mainstem.protocol import codec
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.headers import RequestHeader, request_frame
from mainstem.protocol.messages import (
    ApiVersionsRequest,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeClusterRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.protocol.schema import declaration_of
from mainstem.security.sasl.authenticator import Authenticator
from mainstem.security.tokens.token_admin import TokenService
from mainstem.security.tokens.token_logins import TokenLogins
from mainstem.security.tokens.token_secrets import TokenSecrets
from mainstem.server.config import ServerConfig
from mainstem.server.kafka_server import KafkaServer
from mainstem.server.listener_config import ListenerConfig
from mainstem.side_thread import AtOnce

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
FRAME_BYTES_MAX = 64 * 1024


class AheadClock(LoopClock):
    """Follows the loop, and is moved ahead by tests."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class Watched(BrokerDispatcher):
    """Remembers sessions, and counts bursts."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sessions: dict[int, Session] = {}
        begun, self.dispatch_burst = self.dispatch_burst, self._burst
        self._begun: Callable[[memoryview, int, int, int, int, Session], Burst | None] = begun
        self.bursts = 0

    def _burst(self, frames: memoryview, start: int, stop: int, most: int, size: int, session: Session) -> Burst | None:
        self._meet(session)
        burst = self._begun(frames, start, stop, most, size, session)
        self.bursts += burst is not None
        return burst

    def dispatch(
        self, frame: memoryview, session: Session, may_hold: Callable[[int], bool] = always
    ) -> Exchange | None:
        self._meet(session)
        return super().dispatch(frame, session, may_hold)

    def _meet(self, session: Session) -> None:
        if session.connection_id not in self.sessions:
            self.sessions[session.connection_id] = session


class House:
    """A node with the user an, whose password is apple."""

    def __init__(
        self, server: KafkaServer, dispatcher: Watched, clock: AheadClock, kept: FakeCredentials, tokens: MemoryTokens
    ) -> None:
        self.server, self.dispatcher, self.clock, self.kept, self.tokens = server, dispatcher, clock, kept, tokens
        self._clients: list[RawClient] = []

    async def connect(self, *, shared: bool = True) -> RawClient:
        client = await RawClient.connect(self.server.addresses[1 if shared else 0])
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    def principals(self) -> list[str]:
        return [session.principal for session in self.dispatcher.sessions.values()]


@asynccontextmanager
async def house(
    *, session_seconds_max: float = 0.0, failed_delay_seconds: float = 0.0, **limits: Any
) -> AsyncIterator[House]:
    clock = AheadClock()
    fakes = make_broker(clock)
    kept = FakeCredentials()
    kept.add("an", "apple")
    fakes.broker.credentials = kept
    tokens, secrets = MemoryTokens(), TokenSecrets(b"the key of all tokens", AtOnce())
    fakes.broker.tokens = TokenService(tokens, secrets, 1_000_000, 1_000_000)
    fakes.broker.sasl_mechanisms = {"SHARED": MECHANISMS}
    fakes.broker.authenticator = Authenticator(
        kept,
        clock,
        AtOnce(),
        Random(1).randbytes,
        session_seconds_max=session_seconds_max,
        failed_delay_seconds=failed_delay_seconds,
        rests_per_hash=0.0,
        tokens=TokenLogins(tokens.tokens, secrets, clock.now_ms),
    )
    topic = await fakes.metadata.create_topic("t", 1, 1, {})
    await fakes.store.create([QueueRange(topic.number, 0, 1)])
    dispatcher = Watched(fakes.broker)
    async with dispatcher:
        shared = ListenerConfig(listen="127.0.0.1:0", protocol="SASL_PLAINTEXT")
        config = ServerConfig(listen=("127.0.0.1:0",), listeners={"SHARED": shared}, shutdown_ms_max=50, **limits)
        config.validate()
        server = KafkaServer(config, clock)
        server.bind()
        fakes.metadata.nodes_known[:] = [Node(node_id=1, host=server.advertised.host, port=server.advertised.port)]
        fakes.broker.groups.served.start()
        await server.start(dispatcher)
        lived_in = House(server, dispatcher, clock, kept, tokens)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                yield lived_in
        finally:
            await lived_in.close()
            await server.close()
            await fakes.broker.groups.served.close()


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


async def handshake(client: RawClient, mechanism: str = "PLAIN", version: int = 1) -> int:
    return int((await client.call(SaslHandshakeRequest(mechanism=mechanism), version)).error_code)


async def token(client: RawClient, content: bytes, version: int = 2) -> SaslAuthenticateResponse:
    answer: SaslAuthenticateResponse = await client.call(SaslAuthenticateRequest(auth_bytes=content), version)
    return answer


async def plain(client: RawClient, user: str = "an", password: str = "apple") -> SaslAuthenticateResponse:
    assert await handshake(client) == ErrorCode.NONE
    return await token(client, f"\0{user}\0{password}".encode())


async def scram(client: RawClient, mechanism: str, user: str, password: str) -> SaslAuthenticateResponse:
    talks = ScramClient([mechanism], user, password)
    assert await handshake(client, mechanism) == ErrorCode.NONE
    first = await token(client, talks.get_client_first().encode())
    assert first.error_code == ErrorCode.NONE
    talks.set_server_first(first.auth_bytes.decode())
    last = await token(client, str(talks.get_client_final()).encode())
    if last.error_code == ErrorCode.NONE:
        talks.set_server_final(last.auth_bytes.decode())
    return last


async def by_token(
    client: RawClient, token_id: str, secret: bytes, extension: str = "tokenauth=true", digest: str = "sha256"
) -> SaslAuthenticateResponse:
    """Log in by a delegation token as Kafka's clients do: SCRAM with an extension, the password the secret in
    Base64."""
    assert await handshake(client, f"SCRAM-SHA-{digest[3:]}") == ErrorCode.NONE
    bare = f"n={token_id},r=anonceofaclient,{extension}"
    first = (await token(client, f"n,,{bare}".encode())).auth_bytes.decode()
    nonce, salt, iterations = (part[2:] for part in first.split(","))
    salted = hashlib.pbkdf2_hmac(digest, base64.b64encode(secret), base64.b64decode(salt), int(iterations))
    key = hmac.digest(salted, b"Client Key", digest)
    unproven = f"c=biws,r={nonce}"
    signature = hmac.digest(hashlib.new(digest, key).digest(), f"{bare},{first},{unproven}".encode(), digest)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    return await token(client, f"{unproven},p={proof}".encode())


async def made_token(client: RawClient, lifetime_ms: int = -1) -> CreateDelegationTokenResponse:
    request = CreateDelegationTokenRequest(renewers=(), max_lifetime_ms=lifetime_ms)
    answer: CreateDelegationTokenResponse = await client.call(request, 3)
    return answer


@pytest.mark.parametrize("digest", ["sha256", "sha512"])
def test_a_token_lets_in_as_its_owner_and_makes_no_other(digest: str) -> None:
    async def story() -> None:
        async with house() as node:
            owner = await node.connect()
            await plain(owner)
            made = await made_token(owner)
            assert made.error_code == ErrorCode.NONE
            client = await node.connect()
            answer = await by_token(client, made.token_id, made.hmac, digest=digest)
            assert answer.error_code == ErrorCode.NONE
            assert 0 < answer.session_lifetime_ms <= 1_000_000, "no longer than the token"
            assert await is_served(client)
            assert node.principals() == ["User:an", "User:an"]
            assert (await made_token(client)).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            await node.tokens.move_expiry(made.token_id, made.issue_timestamp_ms + 900_000)
            node.clock.ahead += 1_000.1
            await client.request(DescribeClusterRequest(include_cluster_authorized_operations=False), 0)
            assert await client.closed_by_server()

    run(story())


def test_what_is_no_token_is_refused_like_a_wrong_password(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with house() as node:
            owner = await node.connect()
            await plain(owner)
            made, gone, short = [await made_token(owner, lifetime) for lifetime in (-1, -1, 1)]
            await node.tokens.remove_tokens([gone.token_id])
            await asyncio.sleep(0.01)  # for the clock of the wall to go on, by which the short one has expired
            attempts: list[tuple[str, bytes, str]] = [
                (made.token_id, gone.hmac, "tokenauth=true"),
                (made.token_id, made.hmac, "tokenauth=false"),
                (made.token_id, made.hmac, "tokenauth=TRUE"),
                (made.token_id, made.hmac, "more=true"),
                (gone.token_id, gone.hmac, "tokenauth=true"),
                (short.token_id, short.hmac, "tokenauth=true"),
                ("nobody", made.hmac, "tokenauth=true"),
                ("an", b"apple", "tokenauth=true"),
            ]
            for attempt in attempts:
                client = await node.connect()
                answer = await by_token(client, *attempt)
                assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, REFUSED)
                assert await client.closed_by_server()

    run(story())


async def is_served(client: RawClient) -> bool:
    answer = await client.call(DescribeClusterRequest(include_cluster_authorized_operations=False), 0)
    return bool(answer.error_code == ErrorCode.NONE)


def produce(acks: int = -1) -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=batch(b"x"))
    topic = TopicProduceData(name="t", partition_data=(partition,))
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=1000, topic_data=(topic,))


def test_who_shows_who_it_is_is_served() -> None:
    async def story() -> None:
        async with house() as node:
            client = await node.connect()
            assert (await client.call(ApiVersionsRequest(), 0)).error_code == ErrorCode.NONE
            answer = await plain(client)
            assert (answer.error_code, answer.session_lifetime_ms) == (ErrorCode.NONE, 0)
            assert await is_served(client)
            node.kept.add("bo", "pear")
            other = await node.connect()
            assert (await scram(other, "SCRAM-SHA-256", "bo", "pear")).error_code == ErrorCode.NONE
            assert await is_served(other)
            (produced,) = (await other.call(produce(), 9)).responses
            assert produced.partition_responses[0].error_code == ErrorCode.NONE
            assert node.dispatcher.bursts == 1
            assert node.principals() == ["User:an", "User:bo"]

    run(story())


@pytest.mark.parametrize("version", [0, 1])
def test_who_asks_for_another_mechanism_hears_which_there_are(version: int) -> None:
    async def story() -> None:
        async with house() as node:
            client = await node.connect()
            answer = await client.call(SaslHandshakeRequest(mechanism="GSSAPI"), version)
            assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
            assert answer.mechanisms == MECHANISMS
            assert await client.closed_by_server()

    run(story())


def test_every_refusal_says_the_same_and_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with house() as node:
            answers = []
            for user, password in (("an", "pear"), ("nobody", "pear"), ("an", ""), ("", "apple")):
                client = await node.connect()
                answers.append(await plain(client, user, password))
                assert await client.closed_by_server()
            for user, password in (("an", "pear"), ("nobody", "pear")):
                client = await node.connect()
                answers.append(await scram(client, "SCRAM-SHA-256", user, password))
                assert await client.closed_by_server()
            assert {it.error_code for it in answers} == {ErrorCode.SASL_AUTHENTICATION_FAILED}
            assert {it.error_message for it in answers} == {REFUSED}
            assert {it.auth_bytes for it in answers} == {b""}
            assert set(node.principals()) == {"User:ANONYMOUS"}

    with caplog.at_level(logging.DEBUG):
        run(story())
    assert "authentication failed" in caplog.text
    assert "pear" not in caplog.text
    assert "apple" not in caplog.text


@pytest.mark.parametrize("acks", [-1, 0])
@pytest.mark.parametrize("asked_first", [False, True])
def test_nothing_else_is_taken_before(acks: int, asked_first: bool) -> None:
    async def story() -> None:
        async with house() as node:
            for early in (produce(acks), DescribeClusterRequest(include_cluster_authorized_operations=False)):
                client = await node.connect()
                if asked_first:
                    assert await handshake(client) == ErrorCode.NONE
                await client.request(early, 9 if isinstance(early, ProduceRequest) else 0)
                assert await client.closed_by_server()
            assert node.dispatcher.bursts == 0

    run(story())


def test_what_comes_out_of_order() -> None:
    async def story() -> None:
        async with house() as node:
            client = await node.connect()
            assert (await token(client, b"\0an\0apple")).error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert await client.closed_by_server()
            client = await node.connect()
            assert await handshake(client) == ErrorCode.NONE
            assert await handshake(client) == ErrorCode.ILLEGAL_SASL_STATE
            assert await client.closed_by_server()
            client = await node.connect()
            assert (await plain(client)).error_code == ErrorCode.NONE
            assert (await token(client, b"\0an\0apple")).error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert await client.closed_by_server()

    run(story())


def test_long_requests_are_not_taken_before() -> None:
    async def story() -> None:
        async with house() as node:
            client = await node.connect()
            assert await handshake(client) == ErrorCode.NONE
            await client.request(SaslAuthenticateRequest(auth_bytes=bytes(FRAME_BYTES_MAX)), 2)
            assert await client.closed_by_server()
            client = await node.connect()
            assert (await plain(client)).error_code == ErrorCode.NONE
            await client.request(SaslAuthenticateRequest(auth_bytes=bytes(FRAME_BYTES_MAX)), 2)
            assert (await client.response(36, 2)).error_code == ErrorCode.ILLEGAL_SASL_STATE

    run(story())


def test_whatever_bytes_strangers_send_the_listener_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """Requests of a SASL conversation, spoilt in a few bytes; those that happen to be right let nobody in."""
    chosen = Random(11)

    def request(message: Any, version: int) -> bytes:
        key = declaration_of(type(message)).api_key
        assert key is not None
        return request_frame(RequestHeader(key, version, 1, "fuzz"), codec.write(message, version))

    shakes = [request(SaslHandshakeRequest(mechanism=name), version) for name in MECHANISMS for version in (0, 1)]
    tokens = [
        request(SaslAuthenticateRequest(auth_bytes=content), version)
        for content in (b"\0an\0pear", b"n,,n=an,r=anonceofaclient", b"n,,n=an,r=anonceofaclient,tokenauth=true")
        for version in (0, 1, 2)
    ]
    tokens += [len(content).to_bytes(4, "big") + content for content in (b"\0an\0pear", b"n,,n=an,r=anonce")]

    def spoilt(whole: bytes) -> bytes:
        changed = bytearray(whole)
        for _ in range(chosen.randrange(0, 4)):
            changed[chosen.randrange(len(changed))] = chosen.randrange(256)
        return bytes(changed[: chosen.choice((len(changed), chosen.randrange(1, len(changed) + 1)))])

    async def story() -> None:
        async with house() as node:
            bystander = await node.connect()
            assert (await plain(bystander)).error_code == ErrorCode.NONE
            host, port = node.server.addresses[1]
            for _ in range(400):
                _, writer = await asyncio.open_connection(host, port)
                writer.write(spoilt(chosen.choice(shakes)) + spoilt(chosen.choice(tokens)))
                writer.close()
            while len(node.server.connections) > 1:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.01)
            assert set(node.principals()) <= {"User:an", "User:ANONYMOUS"}
            assert node.principals().count("User:an") == 1
            assert await is_served(bystander)

    with caplog.at_level(logging.WARNING):
        run(story())
    assert [record.getMessage() for record in caplog.records if record.exc_info or record.name == "asyncio"] == []


def test_old_clients_send_tokens_as_they_are() -> None:
    async def story() -> None:
        async with house() as node:
            client = await node.connect()
            assert await handshake(client, version=0) == ErrorCode.NONE
            await client.send_frame(b"\0an\0apple")
            assert await client.receive() == b""
            assert await is_served(client)
            client = await node.connect()
            assert await handshake(client, "SCRAM-SHA-256", version=0) == ErrorCode.NONE
            talks = ScramClient(["SCRAM-SHA-256"], "an", "apple")
            await client.send_frame(talks.get_client_first().encode())
            talks.set_server_first((await client.receive()).decode())
            await client.send_frame(str(talks.get_client_final()).encode())
            talks.set_server_final((await client.receive()).decode())
            assert await is_served(client)
            client = await node.connect()
            assert await handshake(client, version=0) == ErrorCode.NONE
            await client.send_frame(b"\0an\0pear")
            assert await client.closed_by_server()

    run(story())


def test_a_session_ends_unless_the_client_authenticates_again() -> None:
    async def story() -> None:
        async with house(session_seconds_max=60) as node:
            client, lazy, lazier = [await node.connect() for _ in range(3)]
            assert (await plain(client)).session_lifetime_ms == 60_000
            for each in (lazy, lazier):
                assert (await plain(each)).session_lifetime_ms == 60_000
            node.clock.ahead += 50
            assert await is_served(client)
            assert (await plain(client)).session_lifetime_ms == 60_000
            node.clock.ahead += 20
            assert await is_served(client)
            (produced,) = (await client.call(produce(), 9)).responses
            assert produced.partition_responses[0].error_code == ErrorCode.NONE
            await lazy.request(DescribeClusterRequest(include_cluster_authorized_operations=False), 0)
            assert await lazy.closed_by_server()
            bursts = node.dispatcher.bursts
            await lazier.request(produce(), 9)
            assert await lazier.closed_by_server()
            assert node.dispatcher.bursts == bursts
            node.clock.ahead += 2
            node.kept.add("bo", "pear")
            assert (await plain(client, "bo", "pear")).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert await client.closed_by_server()
            late = await node.connect()
            assert (await plain(late)).error_code == ErrorCode.NONE
            node.clock.ahead += 70
            assert (await plain(late)).error_code == ErrorCode.NONE  # late, and nothing came between
            assert await is_served(late)

    run(story())


def test_nothing_is_asked_of_clients_of_other_listeners() -> None:
    async def story() -> None:
        async with house() as node:
            client = await node.connect(shared=False)
            assert await is_served(client)
            assert await handshake(client) == ErrorCode.ILLEGAL_SASL_STATE

    run(story())


def test_who_does_not_show_in_time_who_it_is_is_cut_off() -> None:
    async def story() -> None:
        async with house(authentication_ms_max=10_000) as node:
            known, silent, half, open_to_all = [await node.connect(shared=n < 3) for n in range(4)]
            assert (await plain(known)).error_code == ErrorCode.NONE
            assert await handshake(half) == ErrorCode.NONE
            assert await is_served(open_to_all)
            node.clock.ahead += 9
            node.server.look_at_strangers()
            assert await handshake(silent) == ErrorCode.NONE
            node.clock.ahead += 2
            node.server.look_at_strangers()
            assert await half.closed_by_server()
            assert await silent.closed_by_server()
            assert await is_served(known)
            assert await is_served(open_to_all)

    run(story())


@pytest.mark.parametrize(
    "limit", [{"connections_unauthenticated_max": 3}, {"connections_unauthenticated_per_host_max": 3}]
)
def test_a_crowd_that_shows_nothing_does_not_keep_others_out(limit: dict[str, int]) -> None:
    async def story() -> None:
        async with house(**limit) as node:
            known = [await node.connect() for _ in range(2)]
            for client in known:
                assert (await plain(client)).error_code == ErrorCode.NONE
            crowd = [await node.connect() for _ in range(3)]
            for client in crowd:
                assert await handshake(client) == ErrorCode.NONE
            late = await node.connect()
            assert (await plain(late)).error_code == ErrorCode.NONE
            assert await crowd[0].closed_by_server()
            for client in [*known, late]:
                assert await is_served(client)
            assert (await token(crowd[2], b"\0an\0apple")).error_code == ErrorCode.NONE

    run(story())
