"""The HTTP application: health, metrics and views as JSON. It holds no state but the count of its requests.

Paths under `/v1/` answer JSON of `views.py`; an error answers `{"error": …}` with its status. More requests
at once than `requests_in_flight_max` are answered 503, health excepted, so that a probe hears the truth.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from mainstem.console.config import ConsoleConfig
from mainstem.console.exposition import CONTENT_TYPE, render
from mainstem.console.page_guard import PageGuard
from mainstem.console.users import HttpChange
from mainstem.console.views.asked_changes import (
    Change,
    DrainNodeRequest,
    FeatureLevelRequest,
    GiveUpRequest,
    MoveQueueRequest,
    RebalanceRequest,
    RemoveNodeRequest,
    ReplaceNodeRequest,
    RetainRequest,
    TenantRemoval,
    TenantRequest,
    TransferLeaderRequest,
    WriteGroupsRequest,
)
from mainstem.console.views.node_views import GroupViews, NodeViews, StoreViews
from mainstem.console.visitors import Visitors
from mainstem.model import HistogramSample, Sample
from mainstem.ports import Statistics

logger = logging.getLogger(__name__)

ITEMS_PER_PIECE = 1_000
"""Items of a long list encoded at a time: less than a millisecond."""

Handler = Callable[[Request], Awaitable[Response]]
Posted = TypeVar("Posted", bound=msgspec.Struct)


class Console:
    """Handlers over a node's views and the statistics of its rooms."""

    def __init__(
        self,
        views: NodeViews,
        statistics: Sequence[Statistics],
        config: ConsoleConfig,
        guard: PageGuard | None = None,
        visitors: Visitors | None = None,
        told: Callable[[HttpChange], object] = lambda change: None,
    ) -> None:
        """Without `visitors` everybody reads, and nobody changes anything. `told` hears of each change."""
        self._views = views
        self._statistics = statistics
        self._config = config
        self._guard = guard or PageGuard()
        self._visitors = visitors or Visitors()
        self._told = told
        self._in_flight = 0

    def application(self) -> Starlette:
        routes = [
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/metrics", self._limited(self._metrics, open_in_part=self._config.open_metrics)),
            Route("/v1/cluster", self._limited(self._cluster)),
            Route("/v1/cluster/explain/node/{number:int}", self._limited(self._explain_node)),
            Route("/v1/cluster/explain/group/{number:int}", self._limited(self._explain_write_group)),
            Route("/v1/cluster/explain/partition/{name}/{number:int}", self._limited(self._explain_partition)),
            Route("/v1/cluster/transfer-leader", self._limited(self._transfer_leader), methods=["POST"]),
            Route("/v1/cluster/replace", self._limited(self._replace_node), methods=["POST"]),
            Route("/v1/cluster/drain", self._limited(self._drain_node), methods=["POST"]),
            Route("/v1/cluster/rebalance", self._limited(self._rebalance), methods=["POST"]),
            Route("/v1/cluster/write-groups", self._limited(self._write_groups), methods=["POST"]),
            Route("/v1/cluster/move-queue", self._limited(self._move_queue), methods=["POST"]),
            Route("/v1/cluster/remove", self._limited(self._remove_node), methods=["POST"]),
            Route("/v1/cluster/feature-level", self._limited(self._feature_level), methods=["POST"]),
            Route("/v1/tenants", self._limited(self._tenants)),
            Route("/v1/tenants/usage", self._limited(self._tenant_usage)),
            Route("/v1/tenants/usage/{name}", self._limited(self._tenant_usage)),
            Route("/v1/tenants/set", self._limited(self._set_tenant), methods=["POST"]),
            Route("/v1/tenants/remove", self._limited(self._remove_tenant), methods=["POST"]),
            Route("/v1/topics", self._limited(self._topics)),
            Route("/v1/topics/{name}", self._limited(self._topic)),
            Route("/v1/groups", self._limited(self._group_lags)),
            Route("/v1/groups/{name:path}", self._limited(self._group_lag)),
            Route("/v1/split", self._limited(self._split)),
            Route("/v1/store", self._limited(self._store)),
            Route("/v1/store/retain", self._limited(self._retain), methods=["POST"]),
            Route("/v1/store/give-up", self._limited(self._give_up), methods=["POST"]),
            Route("/v1/store/usage", self._limited(self._store_usage)),
            Route("/v1/store/usage/{name}", self._limited(self._store_usage)),
            Route("/v1/split/endpoint", self._limited(self._split_endpoint, open_to_all=True)),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _http_error, Exception: _unexpected_error})

    def _limited(self, handler: Handler, *, open_to_all: bool = False, open_in_part: bool = False) -> Handler:
        """`open_to_all`: nobody is asked who they are. A splitter shows its certificate where the endpoint sends it.
        `open_in_part`: who shows nothing gets a part, where others are asked who they are."""

        async def limited(request: Request) -> Response:
            in_part = open_in_part and self._visitors.ask_everybody and "authorization" not in request.headers
            if not open_to_all and not in_part:
                if not self._visitors.ask_everybody:
                    self._guard.check_host(request)
                request.state.principal = await self._visitors.admit(request, change=request.method == "POST")
            if self._in_flight >= self._config.requests_in_flight_max:
                raise HTTPException(503, "too many requests at once; try again", headers={"Retry-After": "1"})
            self._in_flight += 1
            try:
                return await handler(request)
            finally:
                self._in_flight -= 1

        return limited

    async def _healthz(self, request: Request) -> Response:
        reason = self._views.health.not_alive()
        if reason is None:
            return PlainTextResponse("ok\n")
        return PlainTextResponse(f"not well: {reason}\n", status_code=503)

    async def _readyz(self, request: Request) -> Response:
        reason = self._views.health.not_ready()
        if reason is None:
            waiting = self._views.health.waiting()
            return PlainTextResponse("ready\n" + "".join(f"write group {it} waits: {waiting[it]}\n" for it in waiting))
        return PlainTextResponse(f"not ready: {reason}\n", status_code=503)

    async def _metrics(self, request: Request) -> Response:
        """Those who have not shown who they are get no series that names anything of users."""
        named = hasattr(request.state, "principal")
        text = await asyncio.to_thread(lambda: render(self._samples(named)).encode())
        return Response(text, headers={"content-type": CONTENT_TYPE})

    def _samples(self, named: bool) -> Iterable[Sample | HistogramSample]:
        for room in self._statistics:
            for sample in room.samples():
                if named or isinstance(sample, HistogramSample) or not sample.names_users:
                    yield sample

    async def _cluster(self, request: Request) -> Response:
        return _json(await self._views.cluster.cluster())

    async def _explain_node(self, request: Request) -> Response:
        number = request.path_params["number"]
        return _found(await self._views.explanations.node(number), f"there is no node {number}")

    async def _explain_write_group(self, request: Request) -> Response:
        number = request.path_params["number"]
        return _found(await self._views.explanations.write_group(number), f"there is no write group {number}")

    async def _explain_partition(self, request: Request) -> Response:
        name, number = request.path_params["name"], request.path_params["number"]
        found = await self._views.explanations.partition(name, number)
        return _found(found, f"there is no partition {number} of a topic {name}")

    async def _transfer_leader(self, request: Request) -> Response:
        wanted = await self._posted(request, TransferLeaderRequest)
        return self._done(request, wanted, await self._views.cluster.transfer_leader(wanted.group, wanted.to))

    async def _replace_node(self, request: Request) -> Response:
        wanted = await self._posted(request, ReplaceNodeRequest)
        return self._done(request, wanted, await self._views.cluster.replace_node(wanted.old, wanted.new))

    async def _drain_node(self, request: Request) -> Response:
        wanted = await self._posted(request, DrainNodeRequest)
        return self._done(request, wanted, await self._views.cluster.drain_node(wanted.node, cancel=wanted.cancel))

    async def _write_groups(self, request: Request) -> Response:
        wanted = await self._posted(request, WriteGroupsRequest)
        added = await self._views.cluster.add_write_groups(wanted.total, wanted.replication_factor)
        return self._done(request, wanted, added)

    async def _move_queue(self, request: Request) -> Response:
        wanted = await self._posted(request, MoveQueueRequest)
        done = await self._views.cluster.move_queue(wanted.topic, wanted.partition, wanted.to)
        return self._done(request, wanted, done)

    async def _rebalance(self, request: Request) -> Response:
        wanted = await self._posted(request, RebalanceRequest)
        done = await self._views.cluster.rebalance(dry_run=wanted.dry_run)
        if isinstance(done, str):
            return self._done(request, wanted, done)
        if done.begun:
            self._tell(request, wanted, None)
        return _json(done)

    async def _remove_node(self, request: Request) -> Response:
        wanted = await self._posted(request, RemoveNodeRequest)
        return self._done(request, wanted, await self._views.cluster.remove_node(wanted.node))

    async def _feature_level(self, request: Request) -> Response:
        wanted = await self._posted(request, FeatureLevelRequest)
        return self._done(request, wanted, await self._views.cluster.raise_feature_level(wanted.level))

    async def _retain(self, request: Request) -> Response:
        wanted = await self._posted(request, RetainRequest)
        done = await self._store_views.retain()
        if isinstance(done, str):
            return self._done(request, wanted, done)
        self._tell(request, wanted, None)
        return _json(done)

    async def _give_up(self, request: Request) -> Response:
        wanted = await self._posted(request, GiveUpRequest)
        done = await self._store_views.give_up(wanted)
        if isinstance(done, str):
            return self._done(request, wanted, done)
        if not wanted.dry_run:
            self._tell(request, wanted, None)
        return _json(done)

    async def _tenants(self, request: Request) -> Response:
        tenants = await self._views.tenants.tenants()
        return StreamingResponse(_pieces(b"tenants", tenants), media_type="application/json")

    async def _tenant_usage(self, request: Request) -> Response:
        name = request.path_params.get("name")
        found = await self._views.tenants.usage(name)
        if name is not None and not found:
            raise HTTPException(404, f"there is no tenant {name}")
        return StreamingResponse(_pieces(b"tenants", found), media_type="application/json")

    async def _set_tenant(self, request: Request) -> Response:
        wanted = await self._posted(request, TenantRequest)
        return self._done(request, wanted, await self._views.tenants.set_tenant(wanted))

    async def _remove_tenant(self, request: Request) -> Response:
        wanted = await self._posted(request, TenantRemoval)
        return self._done(request, wanted, await self._views.tenants.remove_tenant(wanted.name))

    def _done(self, request: Request, wanted: Change, refusal: str | None) -> Response:
        """The answer to a change: done, or refused and why. Raises HTTPException."""
        self._tell(request, wanted, refusal)
        if refusal is not None:
            raise HTTPException(409, refusal)
        return _json({})

    def _tell(self, request: Request, wanted: Change, refusal: str | None) -> None:
        host = request.client.host if request.client is not None else ""
        self._told(HttpChange(request.state.principal, host, wanted.operation, wanted.resource, refusal))

    async def _posted(self, request: Request, kind: type[Posted]) -> Posted:
        """The decoded body of an allowed change; 400 with the expected fields if the body does not have
        them."""
        content = await self._guard.body_of(request)
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.MsgspecError, RecursionError) as error:
            fields = ", ".join(f'"{name}": …' for name in kind.__struct_fields__)
            raise HTTPException(400, f"{error}; it takes {{{fields}}}") from error

    async def _topics(self, request: Request) -> Response:
        return StreamingResponse(_pieces(b"topics", await self._views.topics.topics()), media_type="application/json")

    async def _topic(self, request: Request) -> Response:
        name = request.path_params["name"]
        view = await self._views.topics.topic(name)
        if view is None:
            raise HTTPException(404, f"there is no topic {name}")
        return _json(view)

    async def _group_lags(self, request: Request) -> Response:
        return _json(await self._group_views.lags())

    async def _group_lag(self, request: Request) -> Response:
        name = request.path_params["name"]
        found = await self._group_views.lag(name)
        if isinstance(found, str):
            raise HTTPException(503, found, headers={"Retry-After": "1"})
        return _found(found, f"there is no group {name} that commits offsets")

    @property
    def _group_views(self) -> GroupViews:
        """Raises HTTPException."""
        if self._views.groups is None:
            raise HTTPException(404, "this node does not have the role broker: ask one that has")
        return self._views.groups

    async def _split(self, request: Request) -> Response:
        return _json(await self._store_views.split())

    async def _store(self, request: Request) -> Response:
        return _json(await self._store_views.store())

    async def _store_usage(self, request: Request) -> Response:
        name = request.path_params.get("name")
        view = await self._store_views.store_usage(name)
        if view is None:
            raise HTTPException(404, f"there is no topic {name}")
        return _json(view)

    async def _split_endpoint(self, request: Request) -> Response:
        return _json(self._store_views.split_endpoint())

    @property
    def _store_views(self) -> StoreViews:
        """Raises HTTPException."""
        if self._views.store is None:
            raise HTTPException(404, "this node does not have the role storage: ask one that has")
        return self._views.store


async def _pieces(name: bytes, items: Sequence[object]) -> AsyncIterator[bytes]:
    """An object with one list, encoded and sent piece by piece: it may have a hundred thousand items."""
    yield b'{"%s":[' % name
    for first in range(0, len(items), ITEMS_PER_PIECE):
        encoded = msgspec.json.encode(items[first : first + ITEMS_PER_PIECE])
        yield encoded[1:-1] if first == 0 else b"," + encoded[1:-1]
    yield b"]}"


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def _found(value: object | None, missing: str) -> Response:
    """Raises HTTPException where there is none."""
    if value is None:
        raise HTTPException(404, missing)
    return _json(value)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = _json({"error": error.detail}, error.status_code)
    response.headers.update(error.headers or {})
    return response


async def _unexpected_error(request: Request, error: Exception) -> Response:
    logger.error("HTTP %s %s failed", request.method, request.url.path, exc_info=error)
    return _json({"error": "internal error; the node's log says more"}, 500)
