"""`mainstem store`"""

from __future__ import annotations

from mainstem.cli.lazy_group import LazyCommand, LazyGroup

command = LazyGroup(
    name="store",
    help="Look after the files of the queue store on disk 2.",
    commands_by_name={
        "adopt": LazyCommand("mainstem.cli.store.adopt", "Show or export what an object store holds."),
        "export": LazyCommand("mainstem.cli.store.exporting.export", "Write a topic as the files that Kafka keeps."),
        "compact": LazyCommand("mainstem.cli.store.compact", "Compact queues of topics that ask for it."),
        "give-up": LazyCommand("mainstem.cli.store.give_up", "Give up files of an object store that are lost."),
        "merge": LazyCommand("mainstem.cli.store.merge", "Merge runs into packed files and queue segments."),
        "probe": LazyCommand("mainstem.cli.store.probe", "Find out what an object store can do."),
        "repair": LazyCommand("mainstem.cli.store.repair", "Make anew what the rest of the store tells."),
        "retain": LazyCommand("mainstem.cli.store.retain", "Apply retention now, not at its next round."),
        "status": LazyCommand("mainstem.cli.store.status", "Show levels, merges and damaged files."),
        "tier": LazyCommand("mainstem.cli.store.tier", "Upload merged files to the remote tier."),
        "usage": LazyCommand("mainstem.cli.store.usage", "Show which topic takes how much, on which level."),
        "verify": LazyCommand("mainstem.cli.store.verify", "Read every byte and compare it with what describes it."),
    },
)
