"""Costs on paper: compared with the same sums done by hand."""

from __future__ import annotations

import pytest
from bench.store.tier_costs import NONE, Design, Prices, Requests, Traffic, bill, priced

PRICES = Prices(
    store_gb_month=0.02,
    write_requests_1000=5,
    read_requests_1000=0.5,
    disk_gb_month=0.07,
    disk_mb_per_second_month=0.1,
    across_zones_gb=0.02,
)
DAY = Traffic(megabytes_per_second=200, days=1, reads=2)
"""17,280 GB a day."""


def test_three_replicas_pay_for_what_they_keep_and_for_the_room_they_leave() -> None:
    design = Design("", None, 0, (0.5,), False, NONE, NONE)
    one = bill(design, DAY, PRICES)
    assert one.disks == pytest.approx(3 * 17_280 / 0.7 * 0.07)
    assert (one.store, one.requests) == (0, 0)


def test_throughput_is_paid_per_volume_beyond_what_is_included() -> None:
    design = Design("", 0, 0, (1, 2), False, NONE, NONE)
    assert bill(design, DAY, PRICES).disks == pytest.approx(3 * ((200 - 125) + (400 - 125)) * 0.1)


def test_what_lies_in_a_store_lies_there_once_and_is_paid_by_request_when_it_comes_and_when_it_is_read() -> None:
    design = Design("", 6, 10, (0.5,), True, Requests(4, 2), Requests(0, 100))
    one = bill(design, DAY, PRICES)
    assert one.store == pytest.approx(17_280 * 0.02)
    assert one.requests == pytest.approx(30 * 17_280 * ((4 * 5 + 2 * 0.5) + 2 * 100 * 0.5) / 1000)
    assert one.disks == pytest.approx(3 * (17_280 / 4 + 10) / 0.7 * 0.07)
    assert one.all == pytest.approx(one.disks + one.store + one.requests)


def test_nothing_stays_on_disk_for_longer_than_it_is_kept() -> None:
    longer = Design("", 48, 0, (0.5,), True, NONE, NONE)
    whole = Design("", None, 0, (0.5,), True, NONE, NONE)
    assert bill(longer, DAY, PRICES) == bill(whole, DAY, PRICES)


def test_deletions_cost_nothing() -> None:
    assert priced({"DeleteObjects": 1000, "AbortMultipartUpload": 9}) == 0
    assert priced({"UploadPart": 1000}) == pytest.approx(0.005)
    assert priced({"GetObject": 1000}) == pytest.approx(0.0004)
