"""`mainstem audit`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="audit",
    help="See who did what.",
    commands_by_name={"tail": LazyCommand("mainstem.cli.audit.tail", "Show the youngest audit records.")},
)
