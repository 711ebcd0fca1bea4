"""A node that tells the turns of its event loop: `python -m bench.nodes.turning_node PIPE serve …`.

All else is the node of `mainstem serve`, on asyncio's own loop, with the arguments behind PIPE: the path of a socket
that it listens to. Each line that comes there is answered by a line about the turns since the last, as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path

from bench.nodes.turn_timer import LoopTurns, TurnTimer

ANSWER_SECONDS_MAX = 10.0


def turns_of(path: Path) -> LoopTurns:
    """Since the last question. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(ANSWER_SECONDS_MAX)
        asked.connect(str(path))
        asked.sendall(b"\n")
        with asked.makefile() as answer:
            return LoopTurns(*json.loads(answer.readline()))


def _tell(listener: socket.socket, timer: TurnTimer) -> None:
    while True:
        asker, _ = listener.accept()
        with asker, asker.makefile("rw") as lines:
            for _ in lines:
                lines.write(json.dumps(timer.take()) + "\n")
                lines.flush()


def main() -> None:
    os.environ["MAINSTEM_LOOP"] = "asyncio"
    from mainstem.cli.main import main as command_line

    path = Path(sys.argv[1])
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    threading.Thread(target=_tell, args=(listener, TurnTimer()), name="turns", daemon=True).start()
    command_line(sys.argv[2:])


if __name__ == "__main__":
    main()
