"""The two kernels' Produce against each other: the same bytes in, the same verdicts, fields, errors and bytes out."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.kernel.produce.produce_bodies import PREFIX, VERSIONS, WireRequest, WireTopic, records, requests, resolver
from tests.kernel.produce.test_produce_response import ERRORS

from mainstem.kernel import MalformedProduce, ProduceScan, Verdict, compiled, pure
from mainstem.model import AppendResult, Outcome

numbers = st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 300)
results = st.lists(
    st.builds(AppendResult, st.sampled_from(list(Outcome)), numbers, numbers, numbers), min_size=1, max_size=5
)
endings = st.tuples(st.sampled_from(["settle", "fail", "settle and fail", "refuse"]), results)


def everything_of(kernel: ModuleType, frame: bytes, position: int, version: int, ending: Any) -> Any:
    """All that can be seen of a scan, before and after its end."""
    asked: list[bytes] = []
    resolve = resolver(kernel)

    def listening(key: bytes) -> Any:
        asked.append(key)
        return resolve(key)

    buffer = bytearray(frame)
    with memoryview(buffer) as view:
        try:
            found: ProduceScan = kernel.scan_produce(view, position, version, listening)
        except MalformedProduce as error:
            return asked, str(error)
        before = (
            (found.version, found.transactional, found.acks, found.timeout_ms, found.topics),
            (found.batch_count, found.accepted_count, len(found)),
            found.scanned(),
            [(batch[0], bytes(batch.data), batch[2:]) for batch in found],
            [(number, bytes(data)) for number, data in found.compacted()],
        )
        kind, results = ending
        if kind == "refuse":
            for number in [number for number, _ in found.compacted()]:
                found.refuse(number, Verdict.KEYLESS)
        found.release()
    buffer += b"nobody has a view of it"
    first = found.response(7, ERRORS), found.errors(ERRORS)
    if kind != "fail":
        found.settle((results * len(found))[: len(found)])
    if "fail" in kind:
        found.fail(Verdict.STORAGE_FAILED)
    after = found.response(-7, ERRORS), found.errors(ERRORS), found.scanned()
    return asked, before, first, after


def assert_alike(frame: bytes, position: int, version: int, ending: Any) -> None:
    assert everything_of(pure, frame, position, version, ending) == everything_of(
        compiled, frame, position, version, ending
    )


@given(request=requests, version=st.sampled_from(list(VERSIONS)), ending=endings)
@settings(max_examples=examples(200), deadline=None)
def test_requests(request: WireRequest, version: int, ending: Any) -> None:
    assert_alike(PREFIX + request.body(version), len(PREFIX), version, ending)


@given(
    request=requests,
    version=st.sampled_from(list(VERSIONS)),
    ending=endings,
    changes=st.lists(
        st.tuples(
            st.sampled_from([*["set"] * 6, "cut", "insert", "remove"]),
            st.integers(0, 10_000),
            st.binary(min_size=1, max_size=1)
            | st.binary(min_size=2, max_size=6)
            | st.sampled_from([b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff"]),
        ),
        min_size=1,
        max_size=3,
    ),
)
@settings(max_examples=examples(300), deadline=None)
def test_requests_gone_wrong(
    request: WireRequest, version: int, ending: Any, changes: list[tuple[str, int, bytes]]
) -> None:
    body = request.body(version)
    for kind, place, data in changes:
        place %= len(body) + 1
        if kind == "set":
            body = body[:place] + data + body[place + len(data) :]
        elif kind == "cut":
            body = body[:place]
        elif kind == "insert":
            body = body[:place] + data + body[place:]
        else:
            body = body[:place] + body[place + len(data) :]
    assert_alike(PREFIX + body, len(PREFIX), version, ending)


@given(
    cut=st.integers(0, 60),
    noise=st.binary(max_size=90),
    version=st.sampled_from(list(VERSIONS)),
    ending=endings,
)
@settings(max_examples=examples(300), deadline=None)
def test_noise(cut: int, noise: bytes, version: int, ending: Any) -> None:
    """From the beginning of a body, or from anywhere in a good one."""
    request = WireRequest(None, 1, 0, [WireTopic(b"stamped", [(1, None)]), WireTopic(b"plain", [])], [])
    assert_alike(request.body(version)[:cut] + noise, 0, version, ending)


@given(data=records(), acks=st.sampled_from([-1, 1]), version=st.sampled_from([6, 7]))
@settings(max_examples=examples(200), deadline=None)
def test_one_batch(data: bytes | None, acks: int, version: int) -> None:
    """More of the cases between OK and BAD_FIELD than whole requests reach."""
    request = WireRequest(None, acks, 0, [WireTopic(b"stamped", [(1, data)]), WireTopic(b"plain", [(1, data)])], [])
    assert_alike(request.body(version), 0, version, ("settle", [AppendResult(Outcome.OK, 1, 2, 3)]))
