"""The defaults of topics on one node: those of its configuration file, in the place of these those that are set for all
nodes, and in the place of these those that are set for this one. The rest are Kafka's.

A value that this program does not take (a later version does) is passed over, as with a node's other settings.
"""

from __future__ import annotations

from collections.abc import Mapping

from mainstem.nameserver.errors import InvalidConfig
from mainstem.nameserver.state.resource_configs.broker_configs import ALL_BROKERS, defaults_of_topics
from mainstem.nameserver.state.topic_config import config_named

_NOTHING: Mapping[str, str] = {}


class TopicDefaults:
    def __init__(self, in_file: Mapping[str, str] = _NOTHING, node_id: int = 1) -> None:
        self.in_file = in_file
        self._node = str(node_id)

    def in_force(self, brokers: Mapping[str, Mapping[str, str]], node: str | None = None) -> Mapping[str, str]:
        """By the configs of topics. `brokers`: what is set, by the name of the resource; `node`: as another node has
        them if its file is like this node's."""
        mine = self._node if node is None else node
        found = dict(self.in_file)
        for name in dict.fromkeys((ALL_BROKERS, mine)):
            for config, text in defaults_of_topics(brokers.get(name, _NOTHING)).items():
                try:
                    config_named(config).parse(text)
                except InvalidConfig:
                    continue
                found[config] = text
        return found
