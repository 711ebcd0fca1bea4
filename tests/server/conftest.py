"""On which event loops the tests over real sockets run, and over which transports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.tls.certificates import Authority
from tests.server.tls.over_tls import OVER_TLS

from mainstem.process.event_loop import LOOP_VARIABLE

LOOPS = ("asyncio", "uvloop")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """On both loops, over TLS as well; a test that is marked `plain` looks at what TLS has otherwise: the client's own
    socket, or the half of a connection that is left when the other has ended."""
    if "event_loop_of_the_test" in metafunc.fixturenames:
        plain = metafunc.definition.get_closest_marker("plain") is not None
        transports = [*LOOPS, *(() if plain else (f"{loop}, TLS" for loop in LOOPS))]
        metafunc.parametrize("event_loop_of_the_test", transports, indirect=True)


@pytest.fixture
def event_loop_of_the_test(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    loop, _, tls = request.param.partition(", ")
    monkeypatch.setenv(LOOP_VARIABLE, loop)
    if tls:
        OVER_TLS.append(Authority(tmp_path))
    yield
    OVER_TLS.clear()
