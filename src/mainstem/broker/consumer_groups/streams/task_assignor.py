"""The assignor of streams groups, `sticky`: tasks and members in, everybody's tasks out.

Every task has one member that runs it, and members run as many tasks as each other, plus or minus one, so that a
process with more members has more tasks. A task stays where it was, where that allows it; else it goes to a process
that has its state. A task with state is followed by as many standbys as wanted, each in another process, as far as
there are processes; these, too, stay where they were unless that member has too much.

Warm-up tasks are not assigned, as in Kafka 4.3: a standby is what makes a move cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from mainstem.broker.consumer_groups.streams.tasks import TaskId, Tasks, TaskSet, ids_of, tasks_of

ASSIGNOR_NAME = "sticky"


class Runner(NamedTuple):
    """A member as the assignor sees it."""

    process_id: str
    target: TaskSet
    """Its tasks by the last target assignment."""


class TaskKinds(NamedTuple):
    """The tasks of an application."""

    sizes: Mapping[str, int]
    """Subtopology → how many tasks it has."""
    with_state: frozenset[str]
    """The subtopologies whose tasks have state that is kept in a changelog."""


def assign_tasks(members: Mapping[str, Runner], kinds: TaskKinds, standbys: int) -> dict[str, TaskSet]:
    """Names every member; `standbys`: how many each task with state should have."""
    if not members:
        return {}
    active = _assign_active(members, kinds)
    following = _assign_standbys(members, kinds, standbys, active) if standbys > 0 else {}
    return {
        member_id: TaskSet(active=tasks_of(active[member_id]), standby=tasks_of(following.get(member_id, ())))
        for member_id in members
    }


def _all_tasks(kinds: TaskKinds) -> list[TaskId]:
    return [TaskId(name, index) for name in sorted(kinds.sizes) for index in range(kinds.sizes[name])]


def _still_there(tasks: Tasks, kinds: TaskKinds) -> Iterable[TaskId]:
    return (task for task in ids_of(tasks) if task.partition < kinds.sizes.get(task.subtopology, 0))


def _assign_active(members: Mapping[str, Runner], kinds: TaskKinds) -> dict[str, list[TaskId]]:
    has: dict[str, list[TaskId]] = {}
    taken: set[TaskId] = set()
    for member_id, member in members.items():
        has[member_id] = [task for task in _still_there(member.target.active, kinds) if task not in taken]
        taken.update(has[member_id])
    tasks = _all_tasks(kinds)
    room = _shares(len(tasks), has)
    for member_id, share in room.items():
        taken.difference_update(has[member_id][share:])
        del has[member_id][share:]
    idle = {process_id: _Idle(of, has, room) for process_id, of in _by_process(members).items()}
    knowing = _processes_with_state(members)
    left = []
    for task in tasks:
        if task in taken:
            continue
        homes = ((idle[it].lightest, it) for it in knowing.get(task, ()) if idle[it].lightest is not None)
        home = min(homes, default=None)
        if home is None:
            left.append(task)
        else:
            idle[home[1]].take(task)
    everywhere = _Idle(members, has, room)
    for task in left:
        everywhere.take(task)
    return has


class _Idle:
    """Some members, those that have room for more tasks first in line, by how many they have."""

    def __init__(self, members: Iterable[str], has: Mapping[str, list[TaskId]], room: Mapping[str, int]) -> None:
        self._has, self._room = has, room
        self._line = [(len(has[it]), it) for it in members if len(has[it]) < room[it]]
        heapify(self._line)

    @property
    def lightest(self) -> int | None:
        """How many tasks the member has that is next; None: nobody has room."""
        return self._line[0][0] if self._line else None

    def take(self, task: TaskId) -> None:
        """Give a task to the member that is next."""
        count, member_id = heappop(self._line)
        self._has[member_id].append(task)
        if count + 1 < self._room[member_id]:
            heappush(self._line, (count + 1, member_id))


def _shares(tasks: int, has: Mapping[str, list[TaskId]]) -> dict[str, int]:
    """How many tasks each member is to run: those that have more keep the one over."""
    least, extras = divmod(tasks, len(has))
    ordered = sorted(has, key=lambda member_id: (-len(has[member_id]), member_id))
    return {member_id: least + (position < extras) for position, member_id in enumerate(ordered)}


def _by_process(members: Mapping[str, Runner]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for member_id in sorted(members):
        found.setdefault(members[member_id].process_id, []).append(member_id)
    return found


def _processes_with_state(members: Mapping[str, Runner]) -> dict[TaskId, set[str]]:
    """The processes that ran or followed a task."""
    found: dict[TaskId, set[str]] = {}
    for member in members.values():
        for role in member.target.roles:
            for task in ids_of(role):
                found.setdefault(task, set()).add(member.process_id)
    return found


class _Load:
    """How much the processes and their members have to do, while standbys are given out."""

    def __init__(self, members: Mapping[str, Runner], active: Mapping[str, list[TaskId]]) -> None:
        self.of_member = {member_id: len(tasks) for member_id, tasks in active.items()}
        self.holders: dict[TaskId, set[str]] = {}
        """The processes that have a part in a task."""
        self._members = _by_process(members)
        self._total = dict.fromkeys(self._members, 0)
        for member_id, tasks in active.items():
            process_id = members[member_id].process_id
            self._total[process_id] += len(tasks)
            for task in tasks:
                self.holders.setdefault(task, set()).add(process_id)
        self._line = [(self._per_member(it), it) for it in self._members]
        heapify(self._line)
        self._lines = {it: [(self.of_member[member], member) for member in of] for it, of in self._members.items()}
        for line in self._lines.values():
            heapify(line)

    @property
    def processes(self) -> int:
        return len(self._members)

    def _per_member(self, process_id: str) -> float:
        return self._total[process_id] / len(self._members[process_id])

    def follow(self, task: TaskId, process_id: str, member_id: str) -> None:
        self.of_member[member_id] += 1
        self._total[process_id] += 1
        self.holders[task].add(process_id)

    def _lightest_of(self, process_id: str) -> str:
        line = self._lines[process_id]
        while line[0][0] < self.of_member[line[0][1]]:  # it was given something since
            heapreplace(line, (self.of_member[line[0][1]], line[0][1]))
        return line[0][1]

    def follow_anywhere(self, task: TaskId) -> str:
        """Have the process follow a task that has the least to do, of those without a part in it. Returns the member
        that does."""
        passed = []
        while True:
            load, process_id = heappop(self._line)
            if load < self._per_member(process_id):  # it was given something since
                heappush(self._line, (self._per_member(process_id), process_id))
            elif process_id in self.holders[task]:
                passed.append((load, process_id))
            else:
                break
        member_id = self._lightest_of(process_id)
        self.follow(task, process_id, member_id)
        for entry in [*passed, (self._per_member(process_id), process_id)]:
            heappush(self._line, entry)
        return member_id


def _assign_standbys(
    members: Mapping[str, Runner], kinds: TaskKinds, standbys: int, active: Mapping[str, list[TaskId]]
) -> dict[str, list[TaskId]]:
    load = _Load(members, active)
    found: dict[str, list[TaskId]] = {member_id: [] for member_id in members}
    copies = min(standbys, load.processes - 1)
    wanted = {task: copies for task in _all_tasks(kinds) if task.subtopology in kinds.with_state}
    most = -(-(sum(kinds.sizes.values()) + sum(wanted.values())) // len(members))  # of a member, of both kinds
    for member_id in sorted(members):
        member = members[member_id]
        for role in (member.target.standby, member.target.active):  # who ran a task has its state, too
            for task in _still_there(role, kinds):
                elsewhere = wanted.get(task, 0) and member.process_id not in load.holders[task]
                if elsewhere and load.of_member[member_id] < most:
                    load.follow(task, member.process_id, member_id)
                    found[member_id].append(task)
                    wanted[task] -= 1
    for task, count in wanted.items():
        for _ in range(count):
            found[load.follow_anywhere(task)].append(task)
    return found
