"""Bounds on the connections of single addresses, as text."""

from __future__ import annotations

import pytest

from mainstem.host_bounds import HOSTS_MAX, HostBoundsError, host_bounds


def test_addresses_are_read_in_the_form_that_connections_have() -> None:
    assert host_bounds(" 127.0.0.1:200, ::1:3,[2001:DB8::1]:0 ") == {"127.0.0.1": 200, "::1": 3, "2001:db8::1": 0}
    assert host_bounds("") == {}


@pytest.mark.parametrize("text", ["host:1", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:-1", ":5", "::1:1,0::1:2"])
def test_what_is_no_bound_of_an_address_is_refused(text: str) -> None:
    with pytest.raises(HostBoundsError):
        host_bounds(text)


def test_there_are_not_too_many_of_them() -> None:
    with pytest.raises(HostBoundsError, match="at most"):
        host_bounds(",".join(f"10.0.{number // 250}.{number % 250}:1" for number in range(HOSTS_MAX + 1)))
