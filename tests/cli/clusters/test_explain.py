"""`mainstem cluster explain`: one subject, its sentences folded to the terminal, its facts with documented keys."""

from __future__ import annotations

import json

import click
import msgspec
import pytest
from tests.cli.documented import documented_keys, keys_of
from tests.cli.fake_node import serving

from mainstem.cli.cluster.explain import subject_path
from mainstem.cli.main import run
from mainstem.console.views.of_explanation import ExplanationView

SENTENCES = [
    "Partition 3 of orders is in slot 2014, by a hash of its number; the slot belongs to write group 1.",
    "A rebalance would have node 3 lead write group 1 instead of node 2: sent there 61.0 MB/s, here 4.2 MB/s, the mean "
    "28.1 MB/s; afterwards 33.4 MB/s and 31.8 MB/s.",
]
VIEW = ExplanationView(
    subject="partition 3 of orders", sentences=SENTENCES, topic="orders", partition=3, slot=2014, group=1
)


def test_sentences_are_folded_to_the_terminal_and_facts_have_documented_keys(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with serving({"/v1/cluster/explain/partition/orders/3": (200, msgspec.json.encode(VIEW))}) as address:
        assert run(["cluster", "explain", "orders:3", "--http", address]) == 0
        told = capsys.readouterr().out
        assert max(map(len, told.splitlines())) <= 80
        assert " ".join(told.split()) == " ".join([VIEW.subject, *SENTENCES])
        assert run(["cluster", "explain", "orders:3", "--http", address, "--json"]) == 0
        documented = documented_keys()["cluster explain"]
        assert keys_of(json.loads(capsys.readouterr().out), documented) == documented
        assert run(["cluster", "explain", "--node", "9", "--http", address]) == 1


def test_there_is_one_subject() -> None:
    assert subject_path("a:b.c:12", None, None) == "partition/a:b.c/12"
    assert subject_path(None, 0, None) == "group/0"
    assert subject_path(None, None, 3) == "node/3"
    for queue, group, node in ((None, None, None), ("a:1", 1, None), (None, 1, 1)):
        with pytest.raises(click.UsageError, match="give one of"):
            subject_path(queue, group, node)
    for queue in ("orders", ":3", "orders:", "orders:x", "orders:-1", "orders:²"):
        with pytest.raises(click.UsageError, match="is not TOPIC:PARTITION"):
            subject_path(queue, None, None)
