"""The bounded cache of what was used last."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from mainstem.lru import Lru

STEP = st.tuples(st.sampled_from(["get", "peek", "put", "pop"]), st.integers(0, 5), st.integers(1, 6))
STEPS = st.lists(STEP, max_size=60)


def test_the_one_used_longest_ago_goes_first() -> None:
    kept: Lru[str, int] = Lru(2)
    kept.put("a", 1)
    kept.put("b", 2)
    assert kept.get("a") == 1
    kept.put("c", 3)
    assert list(kept) == ["a", "c"]
    assert kept.peek("a") == 1
    kept.put("d", 4)
    assert list(kept) == ["c", "d"], "a peek is no use"


def test_the_newest_stays_even_if_it_exceeds_the_bound_alone() -> None:
    kept: Lru[str, int] = Lru(10, lambda value: value)
    kept.put("a", 4)
    kept.put("b", 11)
    assert (list(kept), kept.held) == (["b"], 11)
    kept.put("c", 3)
    assert (list(kept), kept.held) == (["c"], 3)


def test_what_goes_is_let_go_of_once_and_what_is_taken_out_is_the_takers() -> None:
    gone: list[int] = []
    kept: Lru[str, int] = Lru(2, let_go=gone.append)
    for key, value in (("a", 1), ("b", 2), ("c", 3), ("b", 4)):
        kept.put(key, value)
    assert gone == [1, 2]
    assert kept.pop("c") == 3
    kept.put("d", 5)
    assert gone == [1, 2]
    kept.clear()
    kept.clear()
    assert (gone, len(kept), kept.held) == ([1, 2, 4, 5], 0, 0)


@given(STEPS, st.integers(1, 12), st.booleans())
def test_it_keeps_what_a_plain_model_keeps(steps: list[tuple[str, int, int]], bound: int, weighed: bool) -> None:
    kept: Lru[int, int] = Lru(bound, (lambda value: value) if weighed else None)
    model: OrderedDict[int, int] = OrderedDict()

    def held() -> int:
        return sum(model.values()) if weighed else len(model)

    for step, key, value in steps:
        if step == "put":
            kept.put(key, value)
            model.pop(key, None)
            model[key] = value
            while held() > bound and len(model) > 1:
                model.popitem(last=False)
        elif step == "get":
            assert kept.get(key) == model.get(key)
            if key in model:
                model.move_to_end(key)
        elif step == "peek":
            assert kept.peek(key) == model.get(key)
        else:
            assert kept.pop(key) == model.pop(key, None)
        assert (list(kept), kept.held, len(kept)) == (list(model), held(), len(model))


def test_a_bound_of_nothing_keeps_nothing() -> None:
    kept: Lru[str, int] = Lru(0)
    kept.put("a", 1)
    assert (list(kept), kept.held) == ([], 0)
