"""The configurations of several nodes, made of one."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from mainstem.cli.processes.layout import node_configs, note_voters
from mainstem.errors import ConfigError
from mainstem.node.config import NodeConfig
from mainstem.node.config_sources import load

APART = ("rpc=10.0.0.1:9193", "http=10.0.0.1:9293", "listen=10.0.0.1:9092")


def configured(processes: int, *assignments: str) -> NodeConfig:
    return load(environment={}, flags={"processes": str(processes)}, assignments=(*APART, *assignments))


def test_ports_numbers_and_directories_are_each_nodes_own() -> None:
    configs = node_configs(configured(3, "node_id=11", "write_dir=/d1", "store_dir=/d2"))
    assert [each.node_id for each in configs] == [11, 12, 13]
    assert [each.nameserver.node_id for each in configs] == [11, 12, 13]
    assert [each.listen for each in configs] == [("10.0.0.1:9092",), ("10.0.0.1:9093",), ("10.0.0.1:9094",)]
    assert [each.server.listen for each in configs] == [each.listen for each in configs]
    assert [(each.rpc, each.http) for each in configs][2] == ("10.0.0.1:9195", "10.0.0.1:9295")
    assert [each.write_dir for each in configs] == ["/d1/node-11", "/d1/node-12", "/d1/node-13"]
    assert configs[1].store_dir == "/d2/node-12"
    assert {each.machine for each in configs} == {socket.gethostname()}
    assert {each.processes for each in configs} == {0}


def test_the_label_of_the_machine_and_a_shared_store_are_the_same_for_all() -> None:
    configs = node_configs(configured(2, "machine=box-7", "store_dir=/shared", "shared_store=true"))
    assert {each.machine for each in configs} == {"box-7"}
    assert {each.store_dir for each in configs} == {"/shared"}


@pytest.mark.parametrize(("processes", "voters"), [(1, ["1"]), (2, ["1"]), (3, ["1", "2", "3"]), (8, ["1", "2", "3"])])
def test_a_machine_alone_is_a_cluster_with_an_odd_number_of_voters(processes: int, voters: list[str]) -> None:
    for each in node_configs(configured(processes, "rpc=0.0.0.0:9193")):
        assert list(each.nameserver.peers) == voters
        assert each.nameserver.peers["1"] == "127.0.0.1:9193"
        assert each.nameserver.storage_nodes_min == processes, "a new cluster waits for all"
        assert each.nameserver.write_groups == max(4, processes), "each has one to lead"


def test_a_cluster_keeps_its_first_voters_when_it_gets_more_nodes_or_fewer(tmp_path: Path) -> None:
    """Its id follows from them."""
    where = f"write_dir={tmp_path / 'd1'}"
    note_voters(configured(2, where))
    assert list(node_configs(configured(5, where))[4].nameserver.peers) == ["1"]
    (tmp_path / "d1" / "first_voters").write_text("3\n")
    note_voters(configured(2, where))
    assert list(node_configs(configured(2, where))[0].nameserver.peers) == ["1", "2", "3"]
    (tmp_path / "d1" / "first_voters").write_text("many")
    with pytest.raises(ConfigError, match="first_voters"):
        node_configs(configured(2, where))


def test_machines_of_one_cluster_keep_the_peers_that_are_configured() -> None:
    peers = 'nameserver.peers={"1": "a:9193", "11": "b:9193", "21": "c:9193"}'
    for each in node_configs(configured(4, "node_id=11", peers, "nameserver.storage_nodes_min=12")):
        assert list(each.nameserver.peers) == ["1", "11", "21"]
        assert each.nameserver.storage_nodes_min == each.nameserver.write_groups == 12


def test_listeners_files_and_addresses_of_listeners_are_each_nodes_own(tmp_path: Path) -> None:
    file = tmp_path / "mainstem.toml"
    file.write_text("""
        processes = 2
        listen = []
        rpc = "127.0.0.1:9193"
        [server.listeners.OUTSIDE]
        listen = "0.0.0.0:9300"
        advertise = "box.example.com:19300"
        bootstrap_listen = "0.0.0.0:9299"
        protocol = "SSL"
        certificate = "/certs/node-{node_id}.pem"
        [rpc_tls]
        certificate = "/certs/mainstem-node-{node_id}.pem"
        key = "/certs/mainstem-node-{node_id}.key"
        ca = "/certs/ca.pem"
        [audit]
        file = "/var/log/audit-{node_id}.jsonl"
    """)
    _first, second = node_configs(load(file=file, environment={}, flags={}))
    outside = second.server.listeners["OUTSIDE"]
    assert (outside.listen, outside.advertise) == ("0.0.0.0:9301", "box.example.com:19301")
    assert outside.bootstrap_listen == "0.0.0.0:9299", "all nodes share it"
    assert outside.certificate == "/certs/node-2.pem"
    assert second.rpc_tls.certificate == "/certs/mainstem-node-2.pem"
    assert second.rpc_tls.ca == "/certs/ca.pem"
    assert second.audit.file == "/var/log/audit-2.jsonl"


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        (["rpc=10.0.0.1:9094"], "listen of node 3 and rpc of node 1 would both have port 9094"),
        (["rpc=0.0.0.0:9094"], "both have port 9094"),
        (["server.bootstrap_listen=10.0.0.1:9093"], "listen of node 2 and server.bootstrap_listen would"),
        (["http=10.0.0.1:65535"], "node 2 of processes = 3: 10.0.0.1:65535: there is no port 65536"),
        (["rpc=10.0.0.1:0"], "rpc has port 0"),
    ],
)
def test_nodes_that_would_be_in_each_others_way_are_named(assignments: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        node_configs(configured(3, *assignments))


def test_ports_that_are_picked_by_the_system_and_other_hosts_ports_are_in_nobodys_way() -> None:
    node_configs(configured(3, "listen=10.0.0.1:0", "http=10.0.0.1:0"))
    node_configs(configured(3, "rpc=10.0.0.2:9092"))
