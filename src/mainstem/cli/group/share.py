"""A share group as `mainstem group describe` shows it: its members read partitions together."""

from __future__ import annotations

from typing import Any

from mainstem.cli.group.coordinators import GroupCoordinators, ShareOffset, state_of
from mainstem.cli.terminal.output import counted, print_json, print_table, print_text
from mainstem.protocol.messages.share_groups import DescribedShareGroup


def show_share_group(nodes: GroupCoordinators, group: DescribedShareGroup, *, as_json: bool) -> None:
    """Raises RequestRefused."""
    offsets = {(each.topic, each.partition): each for each in nodes.share_offsets(group.group_id)}
    readers: dict[tuple[str, int], list[str]] = {}
    for member in group.members:
        for topic in member.assignment.topic_partitions:
            for partition in topic.partitions:
                readers.setdefault((topic.topic_name, partition), []).append(member.client_id)
    queues = sorted(offsets.keys() | readers.keys())
    state = state_of(group.group_state)
    if as_json:
        print_json(_as_json(group, state, [(queue, offsets.get(queue), readers.get(queue, [])) for queue in queues]))
        return
    lag = sum(each.lag or 0 for each in offsets.values())
    told = counted(len(group.members), "member")
    print_text(f"share group {group.group_id}: {state}, epoch {group.group_epoch}, {told}, lag {lag:,}\n")
    rows = []
    for queue in queues:
        each = offsets.get(queue)
        start = "-" if each is None or each.start < 0 else each.start
        left = "-" if each is None or each.lag is None else each.lag
        rows.append((*queue, start, left, ", ".join(readers.get(queue, [])) or "-"))
    print_table(["~TOPIC", ">PARTITION", ">START", ">LAG", "~MEMBERS"], rows, empty="nothing read yet")


def _as_json(
    group: DescribedShareGroup, state: str, rows: list[tuple[tuple[str, int], ShareOffset | None, list[str]]]
) -> dict[str, Any]:
    members = [{"member": one.member_id, "client_id": one.client_id, "host": one.client_host} for one in group.members]
    partitions = [
        {
            "topic": topic,
            "partition": partition,
            "start": each.start if each is not None and each.start >= 0 else None,
            "lag": each.lag if each is not None else None,
            "clients": clients,
        }
        for (topic, partition), each, clients in rows
    ]
    return {
        "group": group.group_id, "type": "share", "state": state, "epoch": group.group_epoch, "members": members,
        "partitions": partitions,
    }  # fmt: skip
