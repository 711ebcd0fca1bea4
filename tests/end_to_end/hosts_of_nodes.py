"""Clusters whose nodes have a host each (`namespaces.py`), for tests that cut the network between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
from tests.end_to_end.both_loads import PYTHON
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.namespaces import Network, Unavailable

CLIENTS = 100
"""The host of everything that is no node: the test, its clients, the questions it asks of the nodes."""


@contextmanager
def entered_network(nodes: Iterable[int]) -> Iterator[Network]:
    """The network of these nodes and of the clients, whose host the test enters. Skips the test where the machine makes
    no namespaces."""
    try:
        network = Network((*nodes, CLIENTS))
    except Unavailable as reason:
        pytest.skip(str(reason))
    try:
        with network.hosts[CLIENTS].entered():
            yield network
    finally:
        network.close()


@contextmanager
def started(cluster: Cluster, network: Network) -> Iterator[Cluster]:
    """The cluster, with a topic for the load of kafka-python, until it is closed."""
    try:
        cluster.start()
        cluster.create_topic(PYTHON, 1)
        yield cluster
    finally:
        network.mend()
        cluster.close()
