"""No two members ever run one task, no process has two parts in one, whatever members do and lose; and all tasks run
once it is quiet. The assignor is checked for itself."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.consumer_groups.heartbeats import GROUP, Table
from tests.broker.consumer_groups.streams_clients import StreamsClient, settle, with_standbys

from mainstem.broker.consumer_groups.streams.task_assignor import Runner, TaskKinds, assign_tasks
from mainstem.broker.consumer_groups.streams.tasks import NO_TASKS, TaskSet, count_of, ids_of

PROCESSES = ("p", "p", "q", "q", "r")
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["beat"] * 6 + ["lost", "leave", "crash", "restart", "compact", "wait"]), st.integers(0, 4)
    ),
    max_size=60,
)


def check_parts(table: Table, clients: list[StreamsClient]) -> None:
    """By what clients have, and by the group's own books."""
    running = Counter(task for client in clients for task in client.active)
    assert not [task for task, count in running.items() if count > 1]
    group = table.machine.state.streams.get(GROUP)
    if group is None:
        return
    held: Counter[object] = Counter()
    run: Counter[object] = Counter()
    for member in group.members.values():
        for of in (member.current.assigned, member.current.revoking):
            held.update((member.process_id, task) for role in of.roles for task in ids_of(role))
            run.update(ids_of(of.active))
    assert not [key for key, count in run.items() if count > 1]
    assert not [key for key, count in held.items() if count > 1]


@settings(max_examples=60, deadline=None)
@given(actions=ACTIONS, standbys=st.integers(0, 2))
def test_no_task_runs_twice_and_all_run_in_the_end(actions: list[tuple[str, int]], standbys: int) -> None:
    table = Table(with_standbys(standbys), lines=3)
    clients = [StreamsClient(table, f"m{number}", process=process) for number, process in enumerate(PROCESSES)]
    alive = {0}
    for action, number in actions:
        client = clients[number]
        if action == "beat":
            alive.add(number)
            client.beat()
        elif action == "lost" and client.epoch > 0:
            client.beat(loses_answer=True)
        elif action == "leave" and client.epoch > 0:
            client.leave()
            alive.discard(number)
        elif action == "crash" and client.epoch > 0:  # a new process, under another id; the old one stays behind
            clients[number] = StreamsClient(table, f"{client.member_id}'", process=f"{client.process}'")
        elif action == "restart":
            table.restart()
        elif action == "compact":
            table.compact()
        elif action == "wait":
            table.wait(1_000)
        check_parts(table, clients)
    here = [clients[number] for number in sorted(alive)]
    if not here:
        return  # all have left: nobody is there to run tasks
    for _ in range(12):  # those who crashed are gone after their sessions
        for client in here:
            client.beat()
            check_parts(table, clients)
        table.wait(5_000)
    settle(*here)
    check_parts(table, clients)
    assert {task for client in here for task in client.active} == {(part, n) for part in "01" for n in range(3)}
    followers = Counter(task for client in here for task in client.standby)
    wanted = min(standbys, len({client.process for client in here}) - 1)
    assert all(followers[("1", n)] == wanted for n in range(3))


def test_a_member_that_keeps_its_process_follows_what_it_ran() -> None:
    table = Table(with_standbys(1), lines=4)
    one = StreamsClient(table, "m1", process="p")
    settle(one)
    two = StreamsClient(table, "m2", process="q")
    settle(one, two)
    moved = {task for task in two.active if task[0] == "1"}
    assert moved
    assert moved <= one.standby, "it has the state of what went to the other"
    two.leave()
    settle(one)
    assert len(one.active) == 8


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Runner], TaskKinds, int]:
    sizes = {f"t{number}": draw(st.integers(1, 9)) for number in range(draw(st.integers(1, 4)))}
    with_state = frozenset(draw(st.sets(st.sampled_from(sorted(sizes)))))
    tasks = st.dictionaries(st.sampled_from([*sorted(sizes), "gone"]), st.frozensets(st.integers(0, 11), min_size=1))
    targets = st.builds(lambda active, standby: TaskSet(active=active, standby=standby), tasks, tasks)
    members = draw(
        st.dictionaries(
            st.text("abcdef", min_size=1, max_size=3),
            st.tuples(st.sampled_from("pqrs"), targets),
            min_size=1,
            max_size=8,
        )
    )
    runners = {name: Runner(process, target) for name, (process, target) in members.items()}
    return runners, TaskKinds(sizes, with_state), draw(st.integers(0, 2))


@settings(max_examples=100, deadline=None)
@given(case=cases())
def test_every_task_has_a_runner_and_its_standbys_in_other_processes(
    case: tuple[dict[str, Runner], TaskKinds, int],
) -> None:
    members, kinds, standbys = case
    found = assign_tasks(members, kinds, standbys)
    assert found.keys() == members.keys()
    every = [(name, index) for name, size in kinds.sizes.items() for index in range(size)]
    assert sorted(task for has in found.values() for task in ids_of(has.active)) == sorted(every)
    loads = [count_of(has.active) for has in found.values()]
    assert max(loads) - min(loads) <= 1
    parts = Counter(
        (members[name].process_id, task) for name, has in found.items() for role in has.roles for task in ids_of(role)
    )
    assert max(parts.values()) == 1
    followers = Counter(task for has in found.values() for task in ids_of(has.standby))
    wanted = min(standbys, len({member.process_id for member in members.values()}) - 1)
    assert followers == Counter({task: wanted for task in every if task[0] in kinds.with_state and wanted})


@settings(max_examples=50, deadline=None)
@given(case=cases())
def test_a_second_assignment_moves_no_running_task(case: tuple[dict[str, Runner], TaskKinds, int]) -> None:
    members, kinds, standbys = case
    found = assign_tasks(members, kinds, standbys)
    again = assign_tasks(
        {name: Runner(member.process_id, found[name]) for name, member in members.items()}, kinds, standbys
    )
    assert {name: has.active for name, has in again.items()} == {name: has.active for name, has in found.items()}


def test_a_new_member_takes_as_few_tasks_as_it_must() -> None:
    kinds = TaskKinds({"t": 12}, frozenset({"t"}))
    before = assign_tasks({name: Runner(name, NO_TASKS) for name in "abc"}, kinds, 0)
    after = assign_tasks({name: Runner(name, before.get(name, NO_TASKS)) for name in "abcd"}, kinds, 0)
    assert sorted(count_of(has.active) for has in after.values()) == [3, 3, 3, 3]
    assert all(after[name].active["t"] < before[name].active["t"] for name in "abc")


def test_a_lost_members_tasks_go_to_those_that_follow_them() -> None:
    kinds = TaskKinds({"t": 6}, frozenset({"t"}))
    before = assign_tasks({name: Runner(name, NO_TASKS) for name in "abc"}, kinds, 1)
    after = assign_tasks({name: Runner(name, before[name]) for name in "ab"}, kinds, 1)
    moved = {name: set(ids_of(after[name].active)) - set(ids_of(before[name].active)) for name in "ab"}
    warm = {name: moved[name] & set(ids_of(before[name].standby)) for name in "ab"}
    assert sum(map(len, warm.values())) >= 1
    assert sum(map(len, moved.values())) == 2, "nothing else moves"
