"""This node's copy of the metadata: takes committed entries in, gives state and news out.

It works alike on every member. It applies an entry as a whole before the next; during many commands it yields to the
event loop, so a caller that needs the state between two entries takes `still`. Callers that wait for a change, their
own or one that they forwarded, are told here, once this node has applied it: so they read what they wrote.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from mainstem.model import OWN_LEVELS, LevelRange, ResourceType, Topic
from mainstem.nameserver.errors import NameserverError, refusal_of
from mainstem.nameserver.state.changes import COMMANDS_PER_TURN, subject_of, topic_after
from mainstem.nameserver.state.commands import (
    BrokerConfigsChanged,
    Event,
    FeatureLevelRaised,
    LoggedChange,
    NodeRegistered,
    NodeRemoved,
    PartitionsAdded,
    Refusal,
    RememberChange,
    SlotWished,
    TopicConfigsChanged,
    TopicCreated,
    TopicDeleted,
    WriteGroupsAdded,
    WriteGroupsPlaced,
    decode_change,
    decode_command,
    encode_command,
)
from mainstem.nameserver.state.resource_configs.topic_defaults import TopicDefaults
from mainstem.nameserver.state.state import MetadataState

Listener = Callable[[Event], None]

log = logging.getLogger(__name__)


class Subject(NamedTuple):
    """The outcome of an accepted item: `number` of its topic, or the first of its producer ids."""

    number: int
    topic: Topic | None


class ChangeOutcome(NamedTuple):
    """The outcome of a change, per item of the request. `index` 0: nothing was logged."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    items: list[Subject | NameserverError]


class MetadataReplica:
    """Holds the state and the callers that wait for it. `defaults`: those of topics, on this node; `levels`: the
    feature levels at which this program can work. `has_remote_store`: whether topics may have a remote tier, for what
    is checked before it is logged."""

    def __init__(
        self,
        defaults: TopicDefaults,
        levels: LevelRange = OWN_LEVELS,
        *,
        has_remote_store: bool = False,
    ) -> None:
        self.levels = levels
        self._has_remote_store = has_remote_store
        self.state = MetadataState(defaults, levels, has_remote_store=has_remote_store)
        self.applied_index = 0
        self.applied_term = 0
        self.applied_count = 0
        self._defaults = defaults
        self._listeners: list[Listener] = []
        self._by_request: dict[bytes, asyncio.Future[ChangeOutcome]] = {}
        self._by_index: dict[int, asyncio.Future[ChangeOutcome]] = {}
        self._applied = asyncio.Event()
        self._still = asyncio.Lock()

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """Hold the state between two entries: none is half applied, and none is applied meanwhile."""
        async with self._still:
            yield

    # waiting callers

    def expect_request(self, request: bytes) -> asyncio.Future[ChangeOutcome]:
        """Settled when the change of this request is applied here. Cancel it, then call `forget_request`."""
        future: asyncio.Future[ChangeOutcome] = asyncio.get_running_loop().create_future()
        self._by_request[request] = future
        if (outcome := self.recall(request)) is not None:
            future.set_result(outcome)
        return future

    def recall(self, request: bytes) -> ChangeOutcome | None:
        """The outcome of this request if it was carried out already."""
        known = self.state.remembered.of(request)
        return _recalled(known, self.state, self.state, self.applied_index) if known is not None else None

    def forget_request(self, request: bytes) -> None:
        self._by_request.pop(request, None)

    def expect_index(self, index: int) -> asyncio.Future[ChangeOutcome]:
        """Settled when the entry at `index`, which this node proposed as leader, is applied."""
        future: asyncio.Future[ChangeOutcome] = asyncio.get_running_loop().create_future()
        self._by_index[index] = future
        return future

    def fail_proposals(self, error: Exception) -> None:
        """Fail the changes proposed here: other nodes may commit them, or not."""
        for future in self._by_index.values():
            if not future.done():
                future.set_exception(error)
        self._by_index.clear()

    async def applied(self, index: int) -> None:
        """Wait until entry `index` is applied here."""
        while self.applied_index < index:
            await self._applied.wait()

    # apply

    async def apply(self, index: int, term: int, payload: bytes) -> None:
        """Apply a committed entry; one without payload changes nothing. Raises ValueError for a payload that
        is no change, and `InconsistentCommand`."""
        if index <= self.applied_index:
            return  # this node followed the quorum, and had the entry, before it became a member
        async with self._still:
            outcome = await self._change(index, decode_change(payload)) if payload else ChangeOutcome(index, [])
            self._advance(index, term)
        if (waiting := self._by_index.pop(index, None)) is not None and not waiting.done():
            waiting.set_result(outcome)

    async def _change(self, index: int, change: LoggedChange) -> ChangeOutcome:
        state = self.state
        if (known := state.remembered.of(change.request)) is not None:
            return _recalled(known, state, state, index)
        subjects: list[Subject] = []
        for command in change.commands:
            event = state.apply(command)
            self.applied_count += 1
            if event is not None:
                self._tell(event)
            subjects.append(Subject(subject_of(command), topic_after(event)))
            if len(subjects) % COMMANDS_PER_TURN == 0:
                await asyncio.sleep(0)
        await self._reconsider(state, self._tell)
        state.remember(change, [subject.number for subject in subjects])
        outcome = ChangeOutcome(index, _merged(subjects, change.refusals))
        waiting = self._by_request.pop(change.request, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(outcome)
        return outcome

    def _advance(self, index: int, term: int) -> None:
        self.applied_index, self.applied_term = index, term
        self._applied.set()
        self._applied.clear()

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # the change stands; a follower's fault must not stop the metadata
                log.exception("a follower of the metadata failed on %s", type(event).__name__)

    # snapshots

    def commands(self) -> Iterator[bytes]:
        """The state as it is now, encoded; later changes do not show in it. Take it while `still`."""
        return map(encode_command, self.state.commands())

    async def restored(self, commands: Sequence[bytes]) -> MetadataState:
        """The state that a snapshot's commands lead to. Raises ValueError and `InconsistentCommand`."""
        state = MetadataState(self._defaults, self.levels, has_remote_store=self._has_remote_store)
        for number, data in enumerate(commands, 1):
            state.apply(decode_command(data))
            if number % COMMANDS_PER_TURN == 0:
                await asyncio.sleep(0)
        await self._reconsider(state, lambda event: None)
        return state

    async def settle(self) -> None:
        """After commands that were applied to the state itself."""
        await self._reconsider(self.state, lambda event: None)

    async def _reconsider(self, state: MetadataState, tell: Listener) -> None:
        for number, event in enumerate(state.reconsidered_topics(), 1):
            tell(event)
            if number % COMMANDS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def replace(self, state: MetadataState, index: int, term: int) -> None:
        """Replace the state by a snapshot's; listeners hear of the differences."""
        async with self._still:
            before, self.state = self.state, state
            self._advance(index, term)
            for request, waiting in list(self._by_request.items()):
                if (known := state.remembered.of(request)) is not None and not waiting.done():
                    waiting.set_result(_recalled(known, state, before, index))
            for number, event in enumerate(differences(before, state), 1):
                self._tell(event)
                if number % COMMANDS_PER_TURN == 0:
                    await asyncio.sleep(0)


def _slots_differ(before: MetadataState, after: MetadataState) -> bool:
    """Whether there are other write groups, or slots have moved, maybe there and back, or were settled."""
    old, new = before.moving_slots, after.moving_slots
    return before.cluster != after.cluster or old.numbers != new.numbers or old.others != new.others


def differences(before: MetadataState, after: MetadataState) -> list[Event]:
    """The events that would have led listeners from one state to the other."""
    events: list[Event] = []
    if before.feature_level != after.feature_level:
        events.append(FeatureLevelRaised(after.feature_level))
    brokers = ResourceType.BROKER
    if before.config_table.of_kind(brokers) != after.config_table.of_kind(brokers):
        events.append(BrokerConfigsChanged())
    for node_id, node in after.node_table.registered.items():
        if before.registered(node_id) != node:
            events.append(NodeRegistered(node))
    events += [NodeRemoved(node_id) for node_id in after.node_table.removed if node_id not in before.node_table.removed]
    if before.cluster is not None and after.cluster is not None and _slots_differ(before, after):
        numbers, others = dict(after.moving_slots.numbers), dict(after.moving_slots.others)
        events.append(WriteGroupsAdded(dict(after.placements), after.cluster.slots, numbers, others))
    elif before.placements != after.placements:
        events.append(WriteGroupsPlaced(dict(after.placements)))
    wishes = after.moving_slots.wishes
    events += [SlotWished(slot) for slot, wish in wishes.items() if before.moving_slots.wishes.get(slot) != wish]
    for number, topic in before.topic_table.by_number.items():
        if after.topic_by_number(number) is None:
            events.append(TopicDeleted(topic))
    for number, topic in after.topic_table.by_number.items():
        old = before.topic_by_number(number)
        if old is None:
            events.append(TopicCreated(topic))
            continue
        if old.configs != topic.configs or old.settings != topic.settings:
            events.append(TopicConfigsChanged(old, topic))
        if old.partitions != topic.partitions:
            events.append(PartitionsAdded(topic, old.partitions))
    return events


def _merged(subjects: Sequence[Subject], refusals: Sequence[Refusal]) -> list[Subject | NameserverError]:
    """Accepted and refused items in the order they were wanted."""
    items: list[Subject | NameserverError] = list(subjects)
    for refusal in refusals:
        items.insert(refusal.item, refusal_of(refusal.kind, refusal.message))
    return items


def refused(refusals: Sequence[Refusal]) -> ChangeOutcome:
    """The outcome where nothing was logged."""
    return ChangeOutcome(0, _merged((), refusals))


def _recalled(known: RememberChange, state: MetadataState, before: MetadataState, index: int) -> ChangeOutcome:
    """The outcome of a change that was made earlier; a topic that it deleted is known from `before`, if at
    all."""
    subjects = [
        Subject(number, state.topic_by_number(number) or before.topic_by_number(number)) for number in known.subjects
    ]
    return ChangeOutcome(index, _merged(subjects, known.refusals))
