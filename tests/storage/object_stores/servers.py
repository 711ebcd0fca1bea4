"""Object stores on this machine, for tests: S3 as moto's server plays it, a real HDFS."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from tests.harness.free_port import free_port
from tests.harness.patience import PATIENCE_SECONDS

from tools import s3_server as moto

BUCKET = "mainstem-tests"


class Server(NamedTuple):
    """`options`: what the store's configuration has to say besides."""

    endpoint: str
    options: dict[str, str]
    bucket: str = BUCKET

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.endpoint.removeprefix("http://").partition(":")
        return host, int(port)


@contextmanager
def s3_server() -> Iterator[Server]:
    """moto's server in a process of its own, with an empty bucket."""
    with moto.s3_server(BUCKET) as server:
        yield Server(server.endpoint, moto.CREDENTIALS)


HADOOP_JARS = Path(__file__).parents[3] / ".cache" / "hadoop"
"""The directory in which `tools/prepare hadoop` puts them."""

_HDFS = """<configuration>
<property><name>fs.defaultFS</name><value>hdfs://127.0.0.1:{port}</value></property>
<property><name>hadoop.tmp.dir</name><value>{directory}</value></property>
<property><name>dfs.replication</name><value>1</value></property>
<property><name>dfs.namenode.http-address</name><value>127.0.0.1:{http_port}</value></property>
<property><name>dfs.datanode.address</name><value>127.0.0.1:0</value></property>
<property><name>dfs.datanode.http.address</name><value>127.0.0.1:0</value></property>
<property><name>dfs.datanode.ipc.address</name><value>127.0.0.1:0</value></property>
<property><name>dfs.namenode.safemode.extension</name><value>0</value></property>
<property><name>dfs.webhdfs.enabled</name><value>false</value></property>
<property><name>dfs.permissions.enabled</name><value>false</value></property>
<property><name>dfs.namenode.datanode.registration.ip-hostname-check</name><value>false</value></property>
</configuration>
"""


@contextmanager
def hdfs_server() -> Iterator[str]:
    """A name node and a data node of Hadoop 2.7: the URL of the name node."""
    if not (HADOOP_JARS / "complete").exists():
        pytest.skip("Hadoop's classes are not here: tools/prepare hadoop")
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.nio", "sun.nio.ch")]
    with TemporaryDirectory() as directory:
        port, http_port = free_port(), free_port()
        for name in ("core-site.xml", "hdfs-site.xml"):
            (Path(directory) / name).write_text(_HDFS.format(port=port, http_port=http_port, directory=directory))
        (Path(directory) / "log4j.properties").write_text(
            "log4j.rootLogger=WARN,out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.out.layout=org.apache.log4j.SimpleLayout\n"
        )
        for application in ("hdfs", "datanode"):  # their pages, which the jars lack
            (Path(directory) / "webapps" / application).mkdir(parents=True)
        java = ["java", "-Xmx256m", *opened, "-cp", f"{directory}:{HADOOP_JARS}/*"]
        nodes = "org.apache.hadoop.hdfs.server"
        subprocess.run([*java, f"{nodes}.namenode.NameNode", "-format", "-force"], check=True, capture_output=True)
        live = f"http://127.0.0.1:{http_port}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        with (
            _process([*java, f"{nodes}.namenode.NameNode"], live),
            _process([*java, f"{nodes}.datanode.DataNode"], live, says=b'"NumLiveDataNodes" : 1'),
        ):
            yield f"hdfs://127.0.0.1:{port}"


def _request(url: str, method: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, data=body, method=method)
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        content: bytes = answer.read()
        return content


@contextmanager
def _process(command: list[str], url: str, says: bytes = b"") -> Iterator[None]:
    """A server that is ready once the URL answers so."""
    with TemporaryDirectory() as directory:
        output = Path(directory) / "output"
        with (
            output.open("wb") as log,
            subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL) as process,
        ):
            try:
                _wait_for(url, says, process, output)
                yield
            finally:
                process.kill()


def _wait_for(url: str, says: bytes, process: subprocess.Popen[bytes], output: Path) -> None:
    ends = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if says in _request(url, "GET"):
                return
        except urllib.error.HTTPError:
            return  # it answers
        except OSError:
            pass
        assert process.poll() is None, f"the server ended: {output.read_text()}"
        assert time.monotonic() < ends, f"the server does not answer at {url}: {output.read_text()}"
        time.sleep(0.05)
