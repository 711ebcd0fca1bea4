"""The summary that the demo prints at its end: the claims it proved, and which tier served which reading."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

TIERS = {
    "write_cache": "memory",
    "journal": "journal, disk 1",
    "queue_store": "queue store, disk 2",
    "read_cache": "read ahead of it",
    "remote": "object store",
}
"""The node's tiers -> what they are called here."""

console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)


class Check(NamedTuple):
    claim: str
    holds: bool
    evidence: str


def say(text: str) -> None:
    """Tell one step of the story."""
    console.print(f"[dim]·[/] {text}")


def show(title: str, text: str) -> None:
    """Show what a command printed, as it is."""
    say(f"{title}\n")
    for line in text.rstrip().splitlines():
        console.print(f"    {line}".rstrip(), markup=False, soft_wrap=True)


def summary(checks: Sequence[Check], served: Mapping[str, Mapping[str, int]], seconds: float) -> int:
    """Print what was proved and which tier served which reading; returns the exit code."""
    claims = Table("", "claim", "evidence", title="What was proved", title_justify="left", box=box.SIMPLE_HEAD)
    for check in checks:
        claims.add_row("[green]true[/]" if check.holds else "[red]FALSE[/]", check.claim, check.evidence)
    console.print("", claims)
    tiers = Table("MB read by", title="Which tier served it", title_justify="left", box=box.SIMPLE_HEAD)
    used = [tier for tier in TIERS if any(sizes.get(tier) for sizes in served.values())]
    for tier in used:
        tiers.add_column(TIERS[tier], justify="right")
    for reading, sizes in served.items():
        tiers.add_row(reading, *(f"{sizes.get(tier, 0) / 1e6:.1f}" for tier in used))
    console.print(tiers)
    false = sum(not check.holds for check in checks)
    if false:
        console.print(f"[red]{false} of {len(checks)} claims are false[/] ({seconds:.0f} s)")
        return 1
    console.print(f"[green]All {len(checks)} claims hold[/] ({seconds:.0f} s)")
    return 0
