"""Which directories a command about a store's files works on: those of the options, else those a node would use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mainstem.cli.errors import CommandFailed

if TYPE_CHECKING:
    from mainstem.node.config import NodeConfig

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

MANIFEST_NAME = "manifest.sqlite"


class Directories(NamedTuple):
    write_dir: Path
    store_dir: Path

    @property
    def manifest(self) -> Path:
        return self.write_dir / MANIFEST_NAME


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`file`, `write_dir` and `store_dir` for the command."""
    for option in (
        click.option("--store-dir", metavar="DIR", help="The queue store, disk 2. Default: as `serve` would have it."),
        click.option(
            "--write-dir",
            metavar="DIR",
            help="Disk 1 of the same node, where the manifest is. Default: as `serve` would have it.",
        ),
        click.option(
            "--config",
            "file",
            type=click.Path(path_type=Path),
            help="Take both from this file. Default: mainstem.toml, if there is one.",
        ),
    ):
        command = option(command)
    return command


def found(file: Path | None, write_dir: str | None, store_dir: str | None) -> Directories:
    """The directories, of which the store's is there; of a node with a shared store, that is its cache. Raises
    ConfigError, CommandFailed."""
    from mainstem.node.config_sources import load

    config = load(file=file, environment=os.environ, flags={"write_dir": write_dir, "store_dir": store_dir})
    return of_config(config, is_named=write_dir is not None)


def of_config(config: NodeConfig, *, is_named: bool) -> Directories:
    """As `found`, of a configuration; `is_named`: its `write_dir` is that of one node."""
    from mainstem.node.storage_role.store_directory import CACHE_DIRECTORY

    if config.processes and not is_named:
        raise CommandFailed(
            f"the configuration is of {config.processes} nodes: name the directories of one, for example --write-dir "
            f"{Path(config.write_dir) / f'node-{config.node_id}'}"
        )
    write, url = Path(config.write_dir).expanduser(), config.shared_store_place
    own = Path(config.store_dir.removeprefix("file://")).expanduser()
    store = own if url is None else write / CACHE_DIRECTORY
    if not store.is_dir():
        option = "--store-dir" if url is None else "--write-dir"
        raise CommandFailed(f"{store} is no directory: name the queue store's with {option}")
    return Directories(write, store)
