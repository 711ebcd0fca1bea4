"""The ends of TLS records, however a stream is cut: pieces end with their records, and all bytes are passed once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainstem.server.tls.record_ends import PIECE_BYTES, RecordEnds

lengths = st.lists(st.integers(0, 700), min_size=1, max_size=12)


def stream_of(sizes: list[int]) -> bytes:
    return b"".join(b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size) for size in sizes)


@given(sizes=lengths, cuts=st.lists(st.integers(1, 900), max_size=40), bytes_max=st.integers(1, 1_000))
def test_a_piece_ends_with_its_record_or_with_what_has_come(sizes: list[int], cuts: list[int], bytes_max: int) -> None:
    stream, records = stream_of(sizes), RecordEnds()
    ends = [sum(5 + size for size in sizes[: number + 1]) for number in range(len(sizes))]
    passed = 0
    for cut in [*cuts, len(stream)]:
        received = memoryview(stream[passed : passed + cut])
        at = 0
        while at < len(received):
            end = records.end_of(received, at, bytes_max)
            assert at < end <= min(len(received), at + bytes_max)
            inside = [place for place in ends if passed + at < place < passed + end]
            assert not inside, "a piece has bytes of one record"
            at = end
            assert records.whole == (passed + at in ends)
        passed += at
    assert passed == len(stream)


def test_a_record_of_the_largest_size_is_one_piece_and_a_longer_one_several() -> None:
    whole = memoryview(stream_of([PIECE_BYTES - 5]))
    records = RecordEnds()
    assert records.end_of(whole, 0) == len(whole)
    assert records.whole
    longer = memoryview(stream_of([0xFFFF]))
    at, pieces = 0, 0
    while at < len(longer):
        at, pieces = records.end_of(longer, at), pieces + 1
        assert records.whole == (at == len(longer))
    assert pieces == 4


@given(sizes=lengths, cut=st.integers(1, 9_000))
def test_bytes_that_others_took_are_counted(sizes: list[int], cut: int) -> None:
    stream, records = stream_of(sizes), RecordEnds()
    records.pass_over(memoryview(stream[:cut]))
    rest = memoryview(stream[cut:])
    at = 0
    while at < len(rest):
        at = records.end_of(rest, at)
    assert records.whole
