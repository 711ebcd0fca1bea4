"""Names of objects: every name of a file has objects of its own, whatever its topic is called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.storage.errors import StorageError
from mainstem.storage.object_stores.names import checked
from mainstem.storage.store_files.object_names import change_object, file_objects, head_object, image_object
from mainstem.storage.store_files.store_file import paths_of, segment_name

TOPICS = st.text("abAB09._-", min_size=1, max_size=249).filter(lambda name: name not in (".", ".."))


def test_objects_lie_below_their_write_group() -> None:
    assert file_objects(3, "ab12.pack") == ["groups/3/files/packed/ab12.pack"]
    segment = segment_name("flights", 7, "ab12", 4096)
    assert file_objects(0, segment) == [
        f"groups/0/files/queues/flights/7/ab12/00000000000000004096{suffix}"
        for suffix in (".log", ".extents", ".index", ".timeindex")
    ]
    (joined,) = file_objects(0, segment_name("flights", 7, "ab12", 4096, joined=True))
    assert joined == "groups/0/files/queues/flights/7/ab12/00000000000000004096.seg"
    assert change_object(0, 17) == "groups/0/chain/00000000000000000017"
    assert image_object(12, 17) == "groups/12/images/00000000000000000017"
    assert head_object(1) == "groups/1/head"


@given(st.lists(TOPICS, min_size=2, max_size=2, unique=True))
def test_topics_of_any_names_have_objects_of_their_own(topics: list[str]) -> None:
    names = [[*file_objects(0, segment_name(topic, 0, "ab", 0))] for topic in topics]
    for of_one in names:
        assert len(of_one) == len(paths_of(segment_name("t", 0, "ab", 0)))
        assert [checked(name) for name in of_one] == of_one
    assert not set(names[0]) & set(names[1])


@pytest.mark.parametrize("topic", ["." + "a" * 248, "a" * 198 + "." * 51, "." * 249, "a" * 197, "a" * 200])
def test_topics_at_the_bounds_of_a_part_have_objects(topic: str) -> None:
    for name in file_objects(0, segment_name(topic, 0, "ab", 0)):
        assert checked(name) == name


def test_what_is_no_name_of_a_file_has_no_objects() -> None:
    with pytest.raises(StorageError, match="cannot be the name"):
        file_objects(0, "../head")
