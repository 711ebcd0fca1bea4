"""`mainstem cert`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="cert",
    help="Make, renew, revoke and show certificates.",
    commands_by_name={
        "authority": LazyCommand("mainstem.cli.cert.authority", "Make the authorities of a cluster."),
        "create": LazyCommand("mainstem.cli.cert.create", "Make a certificate of a node, a splitter or a user."),
        "renew": LazyCommand("mainstem.cli.cert.renew", "Make certificates anew before they expire."),
        "revoke": LazyCommand("mainstem.cli.cert.revoke", "Revoke certificates before they expire."),
        "show": LazyCommand("mainstem.cli.cert.show", "Show what certificates say and when they expire."),
    },
)
