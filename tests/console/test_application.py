"""The HTTP application in memory, over fake views."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

import httpx
import msgspec
from tests.console.views import FLIGHTS, FakeViews

from mainstem.console.application import Console
from mainstem.console.config import ConsoleConfig
from mainstem.console.page_guard import PageGuard
from mainstem.console.views.of_cluster import ClusterView
from mainstem.console.views.of_split import SplitView
from mainstem.console.views.of_store import StoreUsageView, StoreView
from mainstem.console.views.of_topics import TopicView
from mainstem.console.visitors import Visitors
from mainstem.model import HistogramSample, Sample


class Counters:
    """Statistics that remember which thread asked."""

    def __init__(self) -> None:
        self.thread: int | None = None

    def samples(self) -> Iterable[Sample | HistogramSample]:
        self.thread = threading.get_ident()
        yield Sample("mainstem_fetch_batches_total", "counter", "Batches by tier", 3, (("tier", "journal"),))


def get(*paths: str, views: FakeViews | None = None, statistics: Counters | None = None) -> list[httpx.Response]:
    application = Console((views or FakeViews()).all(), [statistics or Counters()], ConsoleConfig()).application()

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(application, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return [await client.get(path) for path in paths]

    return asyncio.run(ask())


def test_views_arrive_as_they_are() -> None:
    views = FakeViews()
    cluster, topic, split, store, topics, endpoint = get(
        "/v1/cluster", "/v1/topics/flights", "/v1/split", "/v1/store", "/v1/topics", "/v1/split/endpoint", views=views
    )
    assert msgspec.json.decode(cluster.content, type=ClusterView) == asyncio.run(views.cluster())
    assert msgspec.json.decode(topic.content, type=TopicView) == FLIGHTS
    assert msgspec.json.decode(split.content, type=SplitView) == asyncio.run(views.split())
    assert msgspec.json.decode(store.content, type=StoreView) == asyncio.run(views.store())
    assert [summary["name"] for summary in topics.json()["topics"]] == ["flights"]
    assert endpoint.json() == {"host": "127.0.0.1", "port": 9093, "store_dir": "/store"}


def test_the_usage_of_the_store_is_that_of_all_topics_or_of_one() -> None:
    views = FakeViews()
    everything, one, none = get("/v1/store/usage", "/v1/store/usage/flights", "/v1/store/usage/nothing", views=views)
    assert msgspec.json.decode(everything.content, type=StoreUsageView) == asyncio.run(views.store_usage(None))
    assert msgspec.json.decode(one.content, type=StoreUsageView) == asyncio.run(views.store_usage("flights"))
    assert (none.status_code, none.json()) == (404, {"error": "there is no topic nothing"})


def test_split_status_has_the_block_indexes_of_every_group() -> None:
    (split,) = get("/v1/split")
    group = split.json()["groups"]["0"]
    assert (group["committed"], group["split"], group["pruned"]) == (41, 30, 20)


def test_health_and_readiness_differ() -> None:
    views = FakeViews()
    views.reason = "recovering"
    health, readiness = get("/healthz", "/readyz", views=views)
    assert health.status_code == 200
    assert (readiness.status_code, readiness.text) == (503, "not ready: recovering\n")
    views.reason = None
    assert get("/readyz", views=views)[0].status_code == 200


def test_a_node_of_which_a_write_group_waits_is_ready_and_says_so() -> None:
    views = FakeViews()
    views.waits = {2: "journal/7.wal at byte 4096 cannot be read: restore the file"}
    (readiness,) = get("/readyz", views=views)
    assert readiness.status_code == 200
    assert readiness.text == "ready\nwrite group 2 waits: journal/7.wal at byte 4096 cannot be read: restore the file\n"


def test_metrics_are_rendered_in_another_thread() -> None:
    counters = Counters()
    (metrics,) = get("/metrics", statistics=counters)
    assert 'mainstem_fetch_batches_total{tier="journal"} 3' in metrics.text
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert counters.thread not in (None, threading.get_ident())


def test_errors_are_json() -> None:
    views = FakeViews()
    views.error = RuntimeError("secret detail")
    views.stores = False
    unknown, nowhere, endpoint, failed = get(
        "/v1/topics/unknown", "/v1/nowhere", "/v1/split/endpoint", "/v1/cluster", views=views
    )
    assert (unknown.status_code, unknown.json()) == (404, {"error": "there is no topic unknown"})
    assert nowhere.status_code == 404
    assert "error" in nowhere.json()
    assert endpoint.status_code == 404
    assert failed.status_code == 500
    assert "secret" not in failed.text


def test_the_feature_level_is_raised_by_a_post_or_refused_with_a_reason() -> None:
    views = FakeViews()
    guard, visitors = PageGuard(("node",)), Visitors("secret")
    application = Console(views.all(), [Counters()], ConsoleConfig(), guard, visitors).application()

    async def post(level: object) -> httpx.Response:
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            headers = {"authorization": "Bearer secret"}
            return await client.post("/v1/cluster/feature-level", json={"level": level}, headers=headers)

    assert asyncio.run(post(2)).status_code == 200
    assert views.feature_level == 2
    refused = asyncio.run(post(3))
    assert (refused.status_code, views.feature_level) == (409, 2)
    assert "node 1 reads those up to 2" in refused.json()["error"]
    assert asyncio.run(post("newest")).status_code == 400


def test_requests_beyond_the_bound_are_refused_but_health_answers() -> None:
    class SlowViews(FakeViews):
        def __init__(self) -> None:
            super().__init__()
            self.entered = asyncio.Event()
            self.release = asyncio.Event()

        async def split(self) -> SplitView:
            self.entered.set()
            await self.release.wait()
            return await super().split()

    async def scenario() -> tuple[int, int, int]:
        views = SlowViews()
        config = ConsoleConfig(requests_in_flight_max=1)
        transport = httpx.ASGITransport(Console(views.all(), [], config).application())
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
            asyncio.TaskGroup() as tasks,
        ):
            slow = tasks.create_task(client.get("/v1/split"))
            await views.entered.wait()
            refused = await client.get("/v1/cluster")
            health = await client.get("/healthz")
            views.release.set()
            return refused.status_code, health.status_code, (await slow).status_code

    assert asyncio.run(scenario()) == (503, 200, 200)


def test_a_node_that_lost_a_task_is_neither_well_nor_ready() -> None:
    views = FakeViews()
    assert [answer.status_code for answer in get("/healthz", "/readyz", views=views)] == [200, 200]
    views.dead = views.reason = "task 'consensus' died: ValueError: 1"
    health, ready = get("/healthz", "/readyz", views=views)
    assert (health.status_code, ready.status_code) == (503, 503)
    assert "consensus" in health.text
