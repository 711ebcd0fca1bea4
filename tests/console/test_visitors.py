"""Visitors over HTTP who have to show who they are, and what they may do then."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Iterable

import httpx
import pytest
from starlette.applications import Starlette
from tests.console.views import FakeViews

from mainstem.console.application import Console
from mainstem.console.config import ConsoleConfig
from mainstem.console.users import NODE_TOKEN, HttpChange, Shown
from mainstem.console.visitors import LOOKED_AT_MAX, PER_HOST_MAX, WAITING_MAX, Visitors
from mainstem.model import HistogramSample, Sample

TOKEN = "0123456789abcdef"
LEVEL = "/v1/cluster/feature-level"


class FakeUsers:
    """`an` reads, `admin` changes as well; looking waits until `slow` is set, and an address of `guessers` waits for
    its turn until `their_turn` is set."""

    def __init__(self) -> None:
        self.slow = asyncio.Event()
        self.slow.set()
        self.guessers: set[str] = set()
        self.their_turn = asyncio.Event()
        self.asked: list[Shown] = []

    def must_wait(self, host: str) -> bool:
        return host in self.guessers

    async def wait(self, host: str) -> None:
        assert host in self.guessers
        await self.their_turn.wait()

    async def principal(self, host: str, shown: Shown) -> str | None:
        self.asked.append(shown)
        await self.slow.wait()
        if shown.token:
            return "User:issued" if shown.token == "of.the.issuer" else None
        known = {(b"an", b"apple"), (b"admin", b"ad:min"), (b"nobody", b"x")}
        return f"User:{shown.user.decode()}" if (shown.user, shown.password) in known else None

    def may(self, principal: str, host: str, *, change: bool) -> bool:
        return principal in (("User:admin",) if change else ("User:an", "User:admin", "User:issued"))


def basic(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


def application(users: FakeUsers, views: FakeViews, config: ConsoleConfig | None = None) -> Starlette:
    return Console(views.all(), [], config or ConsoleConfig(users=True), visitors=Visitors(TOKEN, users)).application()


def client(users: FakeUsers, views: FakeViews, config: ConsoleConfig | None = None) -> httpx.AsyncClient:
    return of(application(users, views, config))


def of(console: Starlette, host: str = "127.0.0.1") -> httpx.AsyncClient:
    """A client at that address."""
    transport = httpx.ASGITransport(console, client=(host, 50_000))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9080")


def answers(authorization: str | None, config: ConsoleConfig | None = None) -> dict[str, int]:
    """The status of a read, of a change, of metrics, of what is for everybody."""
    views = FakeViews()

    async def ask() -> dict[str, int]:
        headers = {} if authorization is None else {"authorization": authorization}
        async with client(FakeUsers(), views, config) as visitor:
            found = {path: await visitor.get(path, headers=headers) for path in ("/v1/cluster", "/metrics", "/healthz")}
            found |= {path: await visitor.get(path, headers=headers) for path in ("/readyz", "/v1/split/endpoint")}
            found[LEVEL] = await visitor.post(LEVEL, json={"level": 2}, headers=headers)
        for answer in found.values():
            assert (answer.status_code == 401) == ("www-authenticate" in answer.headers)
        assert (views.feature_level == 2) == (found[LEVEL].status_code == 200)
        return {path: answer.status_code for path, answer in found.items()}

    found = asyncio.run(ask())
    assert [found[path] for path in ("/healthz", "/readyz", "/v1/split/endpoint")] == [200, 200, 200]
    return {"read": found["/v1/cluster"], "change": found[LEVEL], "metrics": found["/metrics"]}


@pytest.mark.parametrize(
    ("authorization", "read", "change"),
    [
        (f"Bearer {TOKEN}", 200, 200),
        (basic("admin", "ad:min"), 200, 200),
        (basic("admin", "ad:min").replace("Basic", "basic"), 200, 200),
        (basic("an", "apple"), 200, 403),
        ("Bearer of.the.issuer", 200, 403),
        (basic("nobody", "x"), 403, 403),
        (basic("an", "pear"), 401, 401),
        (basic("", ""), 401, 401),
        ("Bearer forged", 401, 401),
        ("Bearer ", 401, 401),
        (f"Bearer {TOKEN[:-1]}", 401, 401),
        ("Basic", 401, 401),
        ("Basic %%%", 401, 401),
        ("Basic " + b64encode(b"no colon").decode(), 401, 401),
        ("Digest username=an", 401, 401),
        ("", 401, 401),
        (None, 401, 401),
    ],
)
def test_visitors_may_what_their_user_may(authorization: str | None, read: int, change: int) -> None:
    assert answers(authorization) == {"read": read, "change": change, "metrics": read}


def test_metrics_may_be_for_everybody() -> None:
    config = ConsoleConfig(users=True, open_metrics=True)
    assert answers(None, config) == {"read": 401, "change": 401, "metrics": 200}
    assert answers(basic("an", "pear"), config) == {"read": 401, "change": 401, "metrics": 401}


class Counted:
    """A room whose numbers have names in them, and others."""

    def samples(self) -> Iterable[Sample | HistogramSample]:
        yield Sample("mainstem_blocks", "gauge", "Of the node.", 1, (("step", "seal"),))
        yield Sample("mainstem_lag", "gauge", "Of a group.", 2, (("group", "payroll"),), names_users=True)
        yield HistogramSample("mainstem_seconds", "Of the node.", (1.0, float("inf")), (1, 2), 3.0)


@pytest.mark.parametrize(
    ("config", "authorization", "named"),
    [
        (ConsoleConfig(users=True, open_metrics=True), None, False),
        (ConsoleConfig(users=True, open_metrics=True), basic("an", "apple"), True),
        (ConsoleConfig(users=True), basic("an", "apple"), True),
        (ConsoleConfig(open_metrics=True), None, True),
    ],
)
def test_metrics_name_nothing_of_users_to_those_who_show_nothing(
    config: ConsoleConfig, authorization: str | None, named: bool
) -> None:
    visitors = Visitors(TOKEN, FakeUsers() if config.users else None)
    console = Console(FakeViews().all(), [Counted()], config, visitors=visitors).application()

    async def ask(host: str) -> httpx.Response:
        headers = {"host": host} | ({} if authorization is None else {"authorization": authorization})
        async with of(console) as visitor:
            return await visitor.get("/metrics", headers=headers)

    text = asyncio.run(ask("127.0.0.1:9080")).text
    assert "mainstem_blocks" in text
    assert "mainstem_seconds_bucket" in text
    assert ("payroll" in text) == named
    if not config.users:
        assert asyncio.run(ask("rebound.example")).status_code == 403, "a page whose name was pointed here"


def test_each_change_is_told_with_who_asked_and_what_came_of_it() -> None:
    told: list[HttpChange] = []
    views = FakeViews()
    config = ConsoleConfig(users=True)
    application = Console(
        views.all(), [], config, visitors=Visitors(TOKEN, FakeUsers()), told=told.append
    ).application()

    async def ask() -> None:
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9080") as visitor:
            for authorization, body in (
                (basic("admin", "ad:min"), {"level": 2}),
                (f"Bearer {TOKEN}", {"level": 99}),
                (basic("an", "apple"), {"level": 3}),
                (basic("admin", "ad:min"), {"no": "level"}),
            ):
                await visitor.post(LEVEL, json=body, headers={"authorization": authorization})
            await visitor.get("/v1/cluster", headers={"authorization": f"Bearer {TOKEN}"})

    asyncio.run(ask())
    made, refused = told
    assert made == HttpChange("User:admin", "127.0.0.1", "RaiseFeatureLevel", "cluster:", None)
    assert (refused.principal, refused.operation) == (NODE_TOKEN, "RaiseFeatureLevel")
    assert refused.refusal


def test_of_one_address_few_are_looked_at_and_the_rest_is_served_meanwhile() -> None:
    async def story() -> None:
        users = FakeUsers()
        users.slow.clear()
        async with client(users, FakeViews()) as visitor:
            guesses = [
                asyncio.create_task(visitor.get("/v1/cluster", headers={"authorization": basic("an", str(number))}))
                for number in range(PER_HOST_MAX)
            ]
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(users.asked) == PER_HOST_MAX
            more = await visitor.get("/v1/cluster", headers={"authorization": basic("an", "apple")})
            assert (more.status_code, more.headers["retry-after"]) == (429, "1")
            holder = await visitor.get("/v1/cluster", headers={"authorization": f"Bearer {TOKEN}"})
            assert holder.status_code == 200
            users.slow.set()
            assert {(await guess).status_code for guess in guesses} == {401}
            again = await visitor.get("/v1/cluster", headers={"authorization": basic("an", "apple")})
            assert again.status_code == 200

    asyncio.run(story())


def test_addresses_that_wait_for_their_guesses_take_no_place_of_those_that_are_looked_at() -> None:
    async def story() -> None:
        users = FakeUsers()
        console = application(users, FakeViews())
        guessers = [f"10.0.0.{number}" for number in range(WAITING_MAX // PER_HOST_MAX + 1)]
        users.guessers.update(guessers)
        assert WAITING_MAX > LOOKED_AT_MAX
        wrong, right = ({"authorization": basic("an", password)} for password in ("pear", "apple"))
        clients = [of(console, guesser) for guesser in guessers]
        *waiting, one_more = clients
        guesses = [
            asyncio.create_task(guesser.get("/v1/cluster", headers=wrong))
            for guesser in waiting
            for _ in range(PER_HOST_MAX)
        ]
        for _ in range(100):
            await asyncio.sleep(0)
        assert not users.asked
        assert sum(not guess.done() for guess in guesses) == WAITING_MAX
        async with of(console, "10.1.0.1") as visitor:
            assert (await visitor.get("/v1/cluster", headers=right)).status_code == 200
        assert (await one_more.get("/v1/cluster", headers=wrong)).status_code == 429
        assert (await waiting[0].get("/v1/cluster", headers=right)).status_code == 429, "of one address few wait"
        users.their_turn.set()
        statuses = {(await guess).status_code for guess in guesses}
        assert statuses <= {401, 429}
        assert 401 in statuses
        assert (await waiting[0].get("/v1/cluster", headers=right)).status_code == 200
        for guesser in clients:
            await guesser.aclose()

    asyncio.run(story())
