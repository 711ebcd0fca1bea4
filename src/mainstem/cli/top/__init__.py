"""`mainstem top`: rates, lags and disks of a cluster, again and again until Ctrl-C.

On a terminal each look takes the place of the one before; elsewhere they follow each other. A node that goes away while
the command runs is shown as silent, and does not end it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

import click

from mainstem.cli.parameters import names, options
from mainstem.cli.terminal.output import print_json, print_json_line


@click.command("top")
@click.option(
    "--interval",
    type=options.SecondsType(0.1, 3600),
    default="2s",
    show_default=True,
    metavar="DURATION",
    help="Time between two looks; rates are those of this time.",
)
@click.option("--once", is_flag=True, help="Look once, print that and end; it takes one interval.")
@click.option(
    "-g",
    "--group",
    "groups",
    type=names.GROUP,
    multiple=True,
    help="Show the lag of this consumer group; repeatable. Default: of those there are.",
)
@options.both
@options.as_json
def command(interval: float, once: bool, groups: tuple[str, ...], bootstrap: str, http: str, as_json: bool) -> None:
    """Watch the rates, lags and disks of a cluster until Ctrl-C.

    IN and OUT are bytes from and to clients, REQ their requests. UNSPLIT is what the splitter has still to move from
    disk 1 to disk 2; DISK 1 and DISK 2 are what Mainstem holds on them, and STORE what a shared store holds, which is
    the whole cluster's. The lag of a consumer group counts what it has
    not committed. With --json every look is an object on a line of its own.
    """
    from mainstem.cli.top.look import Looks
    from mainstem.cli.top.screen import Screen, print_look

    with _Stop() as stop:
        looks = Looks(http, bootstrap, groups)
        looks.begin()
        if once:
            if not stop.wait(interval):
                look = looks.next()
                (print_json if as_json else print_look)(look)
            return
        with Screen(shown=not as_json) as screen:
            while not stop.wait(interval):
                look = looks.next()
                if as_json:
                    print_json_line(look)
                else:
                    screen.show(look)


class _Stop:
    """SIGINT and SIGTERM end the waiting, so that the command ends as one that has done its work."""

    def __init__(self) -> None:
        self._came = threading.Event()
        self._previous: list[tuple[int, Callable[[int, FrameType | None], object] | int | None]] = []

    def __enter__(self) -> _Stop:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous.append((number, signal.signal(number, self._on_signal)))
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous:
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._came.set()

    def wait(self, seconds: float) -> bool:
        """Whether a signal came, at the latest after so many seconds."""
        return self._came.wait(seconds)
