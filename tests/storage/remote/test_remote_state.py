"""The conditions under which a change of the remote tier counts, and how large changes are logged."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.remote.remote_files import packed, span

from mainstem.rpc.messages.split import FileDescription
from mainstem.rpc.messages.tier import GivenUpFile
from mainstem.storage.errors import FormatError
from mainstem.storage.remote.chain import chain_format
from mainstem.storage.remote.chain.chain_format import decode_change, encode_change
from mainstem.storage.remote.decided.remote_changes import COMMAND_BYTES_MAX, WantedChange, commands
from mainstem.storage.remote.decided.remote_state import NOWHERE, RemotePosition, RemoteState
from mainstem.storage.write_groups import control
from mainstem.storage.write_groups.control import QueuesDeleted, RemoteChanged

A, B, C = (packed(name) for name in "abc")


class Group:
    """A replica of a write group, as far as its remote files go."""

    def __init__(self) -> None:
        self.state = RemoteState()
        self.counting: set[str] = set()

    def apply(self, change: RemoteChanged, now_ms: int = 0) -> str:
        verdict = self.state.verdict(0, change, self.counting.__contains__)
        if verdict == "recorded":
            self.state.apply(change, self.counting.intersection(change.gone), now_ms)
            self.counting.difference_update(change.gone)
            self.counting.update(file.name for one in change.spans for file in one.files)
        return verdict

    @property
    def said(self) -> object:
        return self.state.position, self.state.notes(), frozenset(self.counting)


def uploaded() -> Group:
    """One in which a and b count, and c is intended; all in term 2."""
    group = Group()
    assert group.apply(RemoteChanged(1, 2, 0, intended=(A.name, B.name, C.name)), 5) == "recorded"
    assert group.apply(RemoteChanged(2, 2, 10, (span(0, 10, A, B),))) == "recorded"
    return group


def test_a_command_is_read_as_it_was_written() -> None:
    change = RemoteChanged(3, 2, 10, (span(0, 10, A, B),), ("x.pack",), ("y.pack",), ("z.pack",))
    assert control.decode(control.encode([QueuesDeleted(1), change]), "") == (QueuesDeleted(1), change)


def test_programs_that_do_not_know_the_command_refuse_the_block() -> None:
    earlier = msgspec.msgpack.Decoder(tuple[control.QueuesCreated | QueuesDeleted | control.LogStartMoved, ...])
    with pytest.raises(msgspec.ValidationError, match="remote"):
        earlier.decode(control.encode([RemoteChanged(1, 1, 0)]))
    with pytest.raises(FormatError, match="block 7"):
        control.decode(control.encode([RemoteChanged(1, 1, 0)])[:-1], "block 7")


def test_fields_that_a_later_version_adds_are_passed_over() -> None:
    longer = msgspec.msgpack.encode([["remote", 1, 2, 3, [], [], [], [], [], "more"]])
    assert control.decode(longer, "") == (RemoteChanged(1, 2, 3),)


LOST = GivenUpFile(A.name, 0, 10, 5, 500, 0, 1, 7, "somebody", "is missing")


def test_a_change_that_gives_nothing_up_has_the_bytes_that_earlier_programs_write_to_the_chain() -> None:
    change = RemoteChanged(3, 2, 10, (span(0, 10, A),), ("x.pack",), ("y.pack",), ("z.pack",))
    fields = ["remote", 3, 2, 10, [[0, 10, [A.message()]]], ["x.pack"], ["y.pack"], ["z.pack"]]
    content = encode_change(4, change)
    assert content == chain_format.frame(chain_format.CHANGE_MAGIC, [4, fields])
    assert decode_change(content, "", 4, 3) == change
    lossy = msgspec.structs.replace(change, gone=(A.name,), given_up=(LOST,))
    assert decode_change(encode_change(4, lossy), "", 4, 3) == lossy


def test_earlier_programs_let_files_go_that_are_given_up() -> None:
    (fields,) = msgspec.msgpack.decode(control.encode([RemoteChanged(3, 2, 10, gone=(A.name,), given_up=(LOST,))]))
    assert fields[:8] == ["remote", 3, 2, 10, [], [A.name], [], []]
    group = uploaded()
    change = RemoteChanged(3, 3, 10, gone=(A.name,), given_up=(LOST,))
    assert group.apply(change) == "recorded"
    assert group.counting == {B.name}
    assert group.state.given_up == [LOST]
    assert set(group.state.leaving) == {A.name}
    assert group.apply(RemoteChanged(4, 3, 10, deleted=(A.name,))) == "recorded"
    assert group.state.given_up == [LOST], "for good"


def test_what_does_not_count_is_not_noted_as_given_up() -> None:
    group = uploaded()
    group.apply(RemoteChanged(3, 2, 10, gone=(A.name,)))
    assert group.apply(RemoteChanged(4, 2, 10, gone=(A.name,), given_up=(LOST,))) == "recorded"
    assert not group.state.given_up
    assert "would go on to count" in group.apply(RemoteChanged(5, 2, 10, given_up=(LOST,)))


def test_commands_give_up_no_file_that_they_do_not_let_go() -> None:
    lost = [msgspec.structs.replace(LOST, name=f"{number}.pack") for number in range(400)]
    changes = commands(WantedChange(0, given_up=lost), NOWHERE, 1)
    assert len(changes) > 1
    assert [one for change in changes for one in change.given_up] == lost
    assert all(change.gone == tuple(one.name for one in change.given_up) for change in changes)
    assert all(len(control.encode([change])) < COMMAND_BYTES_MAX + 1000 for change in changes)


def test_a_file_goes_its_way() -> None:
    group = uploaded()
    assert set(group.state.intended) == {C.name}
    assert group.state.intended[C.name] == (2, 5)
    assert group.counting == {A.name, B.name}
    assert group.apply(RemoteChanged(3, 4, 10, gone=(A.name,)), 9) == "recorded"
    assert group.state.leaving == {A.name: (4, 9)}
    assert group.apply(RemoteChanged(4, 4, 10, deleted=(A.name, C.name))) == "recorded"
    assert not group.state.leaving
    assert not group.state.intended
    assert group.state.position == RemotePosition(4, 4, 10)
    assert group.counting == {B.name}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (RemoteChanged(4, 2, 10), "does not follow change 2"),
        (RemoteChanged(3, 1, 10), "the leader of term 1 was followed by that of term 2"),
        (RemoteChanged(3, 2, 9), "blocks up to 10 were considered"),
        (RemoteChanged(3, 3, 20, (span(10, 20, C),)), "was not intended by the leader of term 3"),
        (RemoteChanged(3, 2, 20, (span(10, 20, packed("d")),)), "was not intended"),
        (RemoteChanged(3, 2, 20, (span(10, 20, A),)), "was not intended"),
        (RemoteChanged(3, 2, 20, (span(10, 20, C, C),)), "named twice"),
        (RemoteChanged(3, 2, 20, (span(20, 20, C),)), r"no blocks \(20, 20]"),
        (RemoteChanged(3, 2, 20, (span(10, 20, packed("c", group=1)),)), "of write group 1, not 0"),
        (RemoteChanged(3, 2, 10, intended=(A.name,)), "is the name of another file"),
        (RemoteChanged(3, 3, 10, intended=(C.name,)), "is the name of another file"),
        (RemoteChanged(3, 2, 10, intended=("../x",)), "cannot be the name of a file"),
        (RemoteChanged(3, 2, 10, deleted=(A.name,)), "a.pack counts"),
    ],
)
def test_what_breaks_a_rule_is_refused_with_the_reason(change: RemoteChanged, said: str) -> None:
    group = uploaded()
    before = group.said
    verdict = group.apply(change)
    assert verdict.startswith("refused: ")
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(verdict)
    assert group.said == before


def test_a_file_that_left_cannot_be_intended_again() -> None:
    group = uploaded()
    group.apply(RemoteChanged(3, 2, 10, gone=(A.name,)))
    assert "is the name of another file" in group.apply(RemoteChanged(4, 2, 10, intended=(A.name,)))


def test_files_that_go_and_do_not_count_are_passed_over() -> None:
    group = uploaded()
    assert group.apply(RemoteChanged(3, 2, 10, gone=("none.pack",))) == "recorded"
    assert not group.state.leaving
    assert set(group.state.intended) == {C.name}


def test_an_intended_file_that_is_given_up_cannot_count_any_more() -> None:
    group = uploaded()
    assert group.apply(RemoteChanged(3, 2, 10, gone=(C.name,)), 99) == "recorded"
    assert group.state.intended == {C.name: (0, 5)}, "it may still be uploaded, a day from when it was intended"
    assert "was not intended" in group.apply(RemoteChanged(4, 2, 20, (span(10, 20, C),)))
    assert group.apply(RemoteChanged(4, 2, 10, deleted=(C.name,))) == "recorded"
    assert not group.state.intended


CHANGES: list[Callable[[int, int], RemoteChanged]] = [
    lambda number, epoch: RemoteChanged(number, epoch, 0, intended=(A.name, B.name)),
    lambda number, epoch: RemoteChanged(number, epoch, 10, (span(0, 10, A, B),)),
    lambda number, epoch: RemoteChanged(number, epoch, 10, gone=(A.name,)),
    lambda number, epoch: RemoteChanged(number, epoch, 20, deleted=(A.name, B.name)),
    lambda number, epoch: RemoteChanged(number, epoch, 30, (span(10, 20, C),)),
    lambda number, epoch: RemoteChanged(number, epoch, 0, intended=(C.name,)),
]


@given(
    st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(1, 6), st.integers(1, 3)), max_size=12),
    st.integers(0, 12),
)
def test_a_log_that_is_applied_again_from_anywhere_says_the_same(
    log: list[tuple[Callable[[int, int], RemoteChanged], int, int]], again_from: int
) -> None:
    """As after a crash, when what the manifest has is applied once more; no file ever counts that is not the last
    leader's, or is nobody's twice."""
    changes = [make(number, epoch) for make, number, epoch in log]
    group = Group()
    for change in changes:
        group.apply(change)
        state = group.state
        assert not group.counting & {*state.intended, *state.leaving}
        assert not set(state.intended) & set(state.leaving)
        assert all(noted.epoch <= state.position.epoch for noted in state.intended.values())
    said = group.said
    for change in changes[again_from:]:
        if change.number <= group.state.position.number:
            assert group.apply(change) == "replayed"
    assert group.said == said


# --- large changes ------------------------------------------------------------------------------------------


def test_nothing_is_logged_where_nothing_changes() -> None:
    assert commands(WantedChange(0), NOWHERE, 1) == []
    assert commands(WantedChange(5), RemotePosition(3, 1, 8), 1) == []
    assert commands(WantedChange(9), RemotePosition(3, 1, 8), 1) == [RemoteChanged(4, 1, 9)]


@given(
    st.lists(st.lists(st.integers(1, 250), max_size=40), max_size=4),
    st.lists(st.integers(1, 250), max_size=60),
    st.lists(st.integers(1, 250), max_size=60),
)
def test_a_large_change_is_logged_in_commands_that_fit_and_say_the_same(
    spans: list[list[int]], intended: list[int], others: list[int]
) -> None:
    files = [
        [packed("x" * length + f"{at}-{place}") for place, length in enumerate(lengths)]
        for at, lengths in enumerate(spans)
    ]
    wanted = WantedChange(
        100,
        [span(10 * at, 10 * at + 10, *of_span) for at, of_span in enumerate(files)],
        [f"{'g' * length}{at}.pack" for at, length in enumerate(others)],
        [f"{'i' * length}{at}.pack" for at, length in enumerate(intended)],
        [f"{'d' * length}{at}.pack" for at, length in enumerate(others)],
    )
    logged = commands(wanted, RemotePosition(7, 2, 50), 3)
    assert [(change.number, change.epoch) for change in logged] == [(8 + at, 3) for at in range(len(logged))]
    assert all(len(control.encode([change])) <= COMMAND_BYTES_MAX + 1024 for change in logged)
    said: list[tuple[int, int, FileDescription]] = [
        (one.after, one.upto, file) for change in logged for one in change.spans for file in one.files
    ]
    assert said == [(one.after, one.upto, file) for one in wanted.spans for file in one.files]
    for field in ("gone", "intended", "deleted"):
        assert [name for change in logged for name in getattr(change, field)] == list(getattr(wanted, field))
    assert logged[-1].upto == 100
    if any(spans):
        moved = next(at for at, change in enumerate(logged) if change.upto == 100)
        assert moved == max(at for at, change in enumerate(logged) if change.spans)
        assert all(change.upto == 50 for change in logged[:moved])
        assert not any(change.gone or change.deleted for change in logged[:moved])
