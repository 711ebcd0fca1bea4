"""TLS records, however a stream is cut: pieces end with their records, all bytes are passed once, all data are read,
and both twins take the same steps."""

from __future__ import annotations

import ssl
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.server.tls.certificates import Authority

from mainstem.kernel import compiled, pure
from mainstem.server.tls.tls_transport import BARREN, BARREN_PIECE_BYTES, PIECE_BYTES

TWINS = pytest.mark.parametrize("kernel", [pure, compiled], ids=["pure", "compiled"])
Step = tuple[int, int, bool, bool, int]

lengths = st.lists(st.integers(0, 700), min_size=1, max_size=12)
several = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


class Session:
    """Both ends of a TLS session in memory, behind the handshake."""

    def __init__(self, authority: Authority, certificate: tuple[str, str], kernel: ModuleType) -> None:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(*certificate)
        incoming, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._leaving = ssl.MemoryBIO()
        self._end = server.wrap_bio(incoming, to_client, server_side=True)
        self.client = authority.client().wrap_bio(to_client, self._leaving, server_hostname="localhost")
        for end in (self.client, self._end, self.client, self._end):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
            incoming.write(self._leaving.read())
        self.records = kernel.TlsRecords(incoming, PIECE_BYTES, BARREN_PIECE_BYTES, BARREN)
        self.read = bytearray()

    def sent(self) -> bytes:
        return self._leaving.read()

    def take(self, received: bytes, room: int) -> list[Step]:
        """Read all that has come, into one buffer after the other."""
        records, steps = self.records, []
        view, buffer = memoryview(received), memoryview(bytearray(room))
        records.begin_turn()
        while not (records.ended or records.failure):
            if records.over:
                if not records.turn_over or records.at == len(view):
                    break
                view = view[records.at :]
                records.begin_turn()
            filled = records.read(self._end, view, buffer)
            assert filled <= room
            self.read += buffer[:filled]
            steps.append((filled, records.at, records.over, bool(records.unread), records.barren_bytes))
        return steps


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, tuple[str, str]]:
    made = Authority(Path(tmp_path_factory.mktemp("tls")))
    return made, made.issue()


def stream_of(sizes: list[int]) -> bytes:
    return b"".join(b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size) for size in sizes)


@several
@given(
    sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 30_000), max_size=8),
    room=st.integers(1_000, 50_000),
)
def test_both_twins_read_what_was_sent_in_the_same_steps(
    authority: tuple[Authority, tuple[str, str]], sizes: list[int], cuts: list[int], room: int
) -> None:
    data = b"".join(bytes([number]) * size for number, size in enumerate(sizes, 1))
    found = []
    for kernel in (pure, compiled):
        session = Session(*authority, kernel)
        at = 0
        for size in sizes:
            session.client.write(data[at : at + size])
            at += size
        stream = session.sent()
        steps: list[Step] = []
        at = 0
        for cut in [*cuts, len(stream)]:
            steps += session.take(stream[at : at + cut], room)
            at += cut
        assert session.read == data
        assert session.records.whole
        found.append(steps)
    assert found[0] == found[1]


@TWINS
def test_a_stream_that_is_spoilt_fails_behind_what_was_right(
    authority: tuple[Authority, tuple[str, str]], kernel: ModuleType
) -> None:
    session = Session(*authority, kernel)
    session.client.write(b"right")
    right = session.sent()
    session.client.write(b"spoilt")
    spoilt = bytearray(session.sent())
    spoilt[-1] ^= 1
    session.take(right + spoilt, 100)
    assert session.read == b"right"
    assert isinstance(session.records.failure, ssl.SSLError)
    assert session.records.failure.__traceback__ is None
    assert not session.records.ended


@TWINS
def test_a_stream_that_its_peer_ends_is_ended(authority: tuple[Authority, tuple[str, str]], kernel: ModuleType) -> None:
    session = Session(*authority, kernel)
    session.client.write(b"all of it")
    with pytest.raises(ssl.SSLWantReadError):
        session.client.unwrap()
    session.take(session.sent(), 100)
    assert session.read == b"all of it"
    assert session.records.ended
    assert session.records.failure is None


@TWINS
def test_records_without_data_end_the_turn(authority: tuple[Authority, tuple[str, str]], kernel: ModuleType) -> None:
    session = Session(*authority, kernel)
    for _ in range(PIECE_BYTES // 10):
        session.client.write(b"x")
    barren = memoryview(session.sent())
    session.records.begin_turn()
    end, buffer = session._end, memoryview(bytearray(100_000))  # noqa: SLF001
    while not session.records.over:
        session.records.read(end, barren, buffer)
    assert session.records.turn_over
    assert PIECE_BYTES < session.records.at <= PIECE_BYTES * 3 // 2
    before = session.records.at
    session.records.begin_turn()
    session.records.read(end, barren[before:], buffer)
    assert session.records.over
    assert 0 < session.records.at <= BARREN_PIECE_BYTES


@TWINS
@given(sizes=lengths, cuts=st.lists(st.integers(1, 900), max_size=40), bytes_max=st.integers(1, 1_000))
def test_a_piece_ends_with_its_record_or_with_what_has_come(
    kernel: ModuleType, sizes: list[int], cuts: list[int], bytes_max: int
) -> None:
    stream, records = stream_of(sizes), of_no_session(kernel)
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


@TWINS
def test_a_record_of_the_largest_size_is_one_piece_and_a_longer_one_several(kernel: ModuleType) -> None:
    whole = memoryview(stream_of([PIECE_BYTES - 5]))
    records = of_no_session(kernel)
    assert records.end_of(whole, 0, PIECE_BYTES) == len(whole)
    assert records.whole
    longer = memoryview(stream_of([0xFFFF]))
    at, pieces = 0, 0
    while at < len(longer):
        at, pieces = records.end_of(longer, at, PIECE_BYTES), pieces + 1
        assert records.whole == (at == len(longer))
    assert pieces == 4


@TWINS
@given(sizes=lengths, cut=st.integers(1, 9_000))
def test_bytes_that_others_took_are_counted(kernel: ModuleType, sizes: list[int], cut: int) -> None:
    stream, records = stream_of(sizes), of_no_session(kernel)
    records.pass_over(memoryview(stream[:cut]))
    rest = memoryview(stream[cut:])
    at = 0
    while at < len(rest):
        at = records.end_of(rest, at, PIECE_BYTES)
    assert records.whole


def of_no_session(kernel: ModuleType) -> pure.TlsRecords:
    records = kernel.TlsRecords(ssl.MemoryBIO(), PIECE_BYTES, BARREN_PIECE_BYTES, BARREN)
    assert isinstance(records, kernel.TlsRecords)
    return records  # type: ignore[no-any-return]
