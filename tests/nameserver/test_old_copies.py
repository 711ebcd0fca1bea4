"""A member of the metadata quorum on an older copy of its directory: it comes back when a majority of the others has an
entry that was logged since, with the votes it may have given forgotten, and abstains until it has that entry, too."""

from __future__ import annotations

import asyncio

from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.nameserver.nameserver import Nameserver


async def with_an_old_copy(seed: int) -> tuple[Nameservers, int, int, int]:
    """The leader, a follower whose directory is a copy from before its last start, and one that has missed what these
    two have made since. The latter two are down."""
    cluster = Nameservers(seed)
    cluster.shows_starts = True
    await cluster.start_all()
    leader = await cluster.elected()
    forgetful, late = (node_id for node_id in cluster.running if node_id != leader)
    await cluster.running[leader].administration.create_topic("before", 1, 1, {})
    await cluster.settled()
    await cluster.stop(forgetful)
    copy = cluster.disks[forgetful].clone(seed)
    await cluster.start(forgetful)
    await cluster.settled()
    await cluster.kill(late)
    await cluster.running[leader].administration.create_topic("since", 1, 1, {})
    await cluster.until(lambda: cluster.running[forgetful].lookups.topic("since") is not None)
    await cluster.kill(forgetful)
    cluster.disks[forgetful] = copy
    return cluster, leader, forgetful, late


def test_it_comes_back_only_with_a_majority_of_the_others_and_abstains_until_it_has_what_these_have() -> None:
    async def scenario() -> None:
        cluster, _leader, forgetful, late = await with_an_old_copy(91)
        coming: asyncio.Task[Nameserver] = asyncio.ensure_future(cluster.start(forgetful))
        await asyncio.sleep(20)
        assert not coming.done(), "the leader alone is no majority, and this one does not count"
        assert forgetful not in cluster.running
        await cluster.start(late)
        back = await asyncio.wait_for(coming, 60)
        assert back.quorum.abstains_to > 0
        await cluster.until(lambda: not back.quorum.abstains)
        await cluster.settled()
        assert back.lookups.topic("since") is not None
        await cluster.kill(await cluster.elected())
        await cluster.elected()
        assert all(nameserver.lookups.topic("since") is not None for nameserver in cluster.running.values())
        await cluster.close()

    simulate(scenario())


def test_what_it_had_acknowledged_is_not_counted_any_more() -> None:
    """The leader goes on leading all the while, by its own word: it is told that the log it knows of is gone."""

    async def scenario() -> None:
        cluster, _leader, forgetful, late = await with_an_old_copy(92)
        await cluster.start(late)
        lead = await cluster.elected()
        leadership = cluster.running[lead].quorum
        term = leadership.term
        back = await cluster.start(forgetful)
        assert leadership.serves
        assert leadership.term == term, "the same leader told it how to come back"
        assert [peer.node_id for peer in leadership.peers() if peer.forgetful] == [forgetful]
        await cluster.until(lambda: not back.quorum.abstains)
        await cluster.settled()
        await cluster.close()

    simulate(scenario())
