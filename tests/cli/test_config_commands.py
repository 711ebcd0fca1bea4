"""`mainstem config` against a real node."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.cli.documented import documented_keys, keys_of
from tests.harness.serving import Serving

from mainstem.cli.main import run


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("node"), "pipeline.mode=off").start()
    yield serving
    serving.close()


class Commands:
    def __init__(self, node: Serving, capsys: pytest.CaptureFixture[str]) -> None:
        self._at = ["--bootstrap", node.kafka]
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        assert run(["config", *words, *self._at]) == code
        captured = self._capsys.readouterr()
        return captured.err if code else captured.out


@pytest.fixture
def config(node: Serving, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(node, capsys)


def test_client_metrics_are_set_shown_and_unset(config: Commands) -> None:
    lags = ["--client-metrics", "lags"]
    assert "altered client metrics lags" in config("alter", *lags, "--set", "metrics=a.,b.", "--set", "interval.ms=30s")
    assert "lags" in config("list")
    told = json.loads(config("describe", *lags, "--json"))
    assert {each["name"]: (each["value"], each["source"]) for each in told["configs"]} == {
        "interval.ms": ("30000", "set"), "match": ("", "default"), "metrics": ("a.,b.", "set"),
    }  # fmt: skip
    assert "30000" in config("describe", *lags)
    assert "speed" in config("alter", *lags, "--set", "speed=1", code=1)
    assert "a whole number from 100" in config("alter", *lags, "--set", "interval.ms=1", code=1)
    outputs = {
        "config list": config("list", "--json"),
        "config describe": config("describe", *lags, "--json"),
        "config alter": config("alter", *lags, "--unset", "metrics", "--unset", "interval.ms", "--json"),
    }
    documented = documented_keys()
    for words, output in outputs.items():
        assert keys_of(json.loads(output), documented[words]) == documented[words], words
    assert "lags" not in config("list")


def test_one_thing_is_named(config: Commands) -> None:
    assert "say of which one thing" in config("describe", code=2)
    assert "nothing to change" in config("alter", "--client-metrics", "s", code=2)
