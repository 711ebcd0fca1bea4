"""The timers against a dictionary that is searched."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from mainstem.broker.consumer_groups.timers import TimerKey, TimerKind, Timers

KEYS = st.builds(TimerKey, st.just(TimerKind.SESSION), st.sampled_from("ab"), st.sampled_from("xyz"))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(0, 50)),
        st.tuples(st.just("cancel"), KEYS, st.just(0)),
        st.tuples(st.just("due"), st.none(), st.integers(0, 50)),
    ),
    max_size=60,
)


@settings(max_examples=examples(200), deadline=None)
@given(STEPS)
def test_timers_behave_like_a_dictionary(steps: list[tuple[str, TimerKey | None, int]]) -> None:
    timers = Timers()
    model: dict[TimerKey, int] = {}
    for kind, key, time_ms in steps:
        if kind == "set":
            assert key is not None
            timers.set(key, time_ms)
            model[key] = time_ms
        elif kind == "cancel":
            assert key is not None
            timers.cancel(key)
            model.pop(key, None)
        else:
            due = sorted((deadline, key) for key, deadline in model.items() if deadline <= time_ms)
            assert list(timers.due(time_ms)) == [key for _, key in due]
            for _, fired in due:
                del model[fired]
        assert timers.next_deadline_ms() == min(model.values(), default=None)
        assert len(timers) == len(model)


def test_heartbeats_do_not_pile_up() -> None:
    timers = Timers()
    key = TimerKey(TimerKind.SESSION, "g", "m")
    for now_ms in range(0, 100_000, 10):
        timers.set(key, now_ms + 45_000)
        assert list(timers.due(now_ms)) == []
    assert timers.entries == 1
