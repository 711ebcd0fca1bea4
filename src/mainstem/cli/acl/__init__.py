"""`mainstem acl`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="acl",
    help="Say who may do what, and see why.",
    commands_by_name={
        "add": LazyCommand("mainstem.cli.acl.add", "Allow or deny a principal something."),
        "list": LazyCommand("mainstem.cli.acl.list", "List the access rules."),
        "remove": LazyCommand("mainstem.cli.acl.remove", "Remove access rules."),
        "why": LazyCommand("mainstem.cli.acl.why", "Tell whether a principal may do something, and by which rule."),
    },
)
