"""A prefix is what a tuple of the same items would be, and stays so whatever is added to the list it is of."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.storage.queue_store.manifest.prefix import Prefix


@given(st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(), max_size=3)), max_size=12))
def test_prefixes_are_as_tuples(steps: list[tuple[int, list[int]]]) -> None:
    kept: list[tuple[Prefix[int], tuple[int, ...]]] = [(Prefix(), ())]
    for which, items in steps:
        prefix, model = kept[-1 - which % len(kept)]
        kept.append((prefix.extended(items), (*model, *items)))
    for prefix, model in kept:
        assert prefix == model
        assert (len(prefix), tuple(prefix)) == (len(model), model)
        for place in range(-len(model), len(model)):
            assert prefix[place] == model[place]
        assert prefix[1:-1] == list(model[1:-1])
        assert prefix[::-2] == list(model[::-2])
        with pytest.raises(IndexError):
            prefix[len(model)]


def test_what_is_added_costs_no_copy_of_what_was_there() -> None:
    prefix = Prefix(range(100_000)).extended([1])  # the list has room for more now
    tracemalloc.start()
    try:
        longer = prefix.extended([2])
        _, bytes_most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(prefix), len(longer)) == (100_001, 100_002)
    assert bytes_most < len(prefix), "a copy takes eight bytes for each item"
