"""The completions of shells, as bash asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "PATH": os.environ["PATH"]}


def completed(line: str, **environment: str) -> list[str]:
    """The words offered for the last word of a line."""
    words = line.split(" ")
    asked = {"_MAINSTEM_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "mainstem.cli.main"], env=ENVIRONMENT | asked | environment, timeout=PATIENCE_SECONDS,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stderr == ""
    return [entry.split(",", 1)[1] for entry in done.stdout.splitlines() if entry]


def test_commands_and_options_and_choices() -> None:
    assert completed("mainstem top") == ["topic", "top"]
    assert completed("mainstem cluster re") == ["recover", "rebalance", "remove", "replace"]
    assert completed("mainstem topic create --part") == ["--partitions"]
    assert completed("mainstem produce t --compression z") == ["zstd"]
    assert completed("mainstem completion ") == ["bash", "zsh", "fish"]


def test_completing_a_command_imports_none() -> None:
    code = (
        "import os, sys; from mainstem.cli.main import run\n"
        "try: run([])\n"
        "except SystemExit: pass\n"
        "heavy = {'rich', 'msgspec', 'confluent_kafka', 'numpy', 'mainstem.cli.topic'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    asked = {"_MAINSTEM_COMPLETE": "bash_complete", "COMP_WORDS": "mainstem to", "COMP_CWORD": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT | asked)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("node"), "pipeline.mode=off").start()
    yield serving
    serving.close()


def test_topics_are_asked_of_the_node_that_the_command_would_ask(node: Serving, tmp_path: Path) -> None:
    for topic in ("orders", "ordinary", "payments"):
        subprocess.run(
            [sys.executable, "-m", "mainstem.cli.main", "topic", "create", topic, "--bootstrap", node.kafka],
            env=ENVIRONMENT, check=True, timeout=PATIENCE_SECONDS, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    assert completed("mainstem topic describe or", MAINSTEM_BOOTSTRAP=node.kafka) == ["orders", "ordinary"]
    (tmp_path / "profiles.toml").write_text(f'[profiles.here]\nbootstrap = "{node.kafka}"\n')
    profiles = {"MAINSTEM_PROFILES": str(tmp_path / "profiles.toml"), "MAINSTEM_BOOTSTRAP": "127.0.0.1:1"}
    assert completed("mainstem consume --profile here pa", **profiles) == ["payments"]
    assert completed("mainstem consume --profile nowhere pa", **profiles) == []
    assert completed("mainstem topic describe or", MAINSTEM_BOOTSTRAP="127.0.0.1:1") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_name_the_variable_of_the_program(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mainstem.cli.main", "completion", shell], env=ENVIRONMENT, timeout=PATIENCE_SECONDS,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"_MAINSTEM_COMPLETE={shell}_complete" in done.stdout
    if shell == "bash":
        told = subprocess.run(
            ["bash", "-c", f"{done.stdout}\ncomplete -p mainstem"], capture_output=True, text=True, check=True
        )
        assert "mainstem" in told.stdout
