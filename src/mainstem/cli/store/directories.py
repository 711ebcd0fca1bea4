"""Which directories a command about a store's files works on: those of the options, else those a node would use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from mainstem.cli.errors import CommandFailed

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


def found(file: Path | None, write_dir: str | None, store_dir: str | None, *, of_files: bool) -> Directories:
    """The directories, of which the store's is there. `of_files`: the command is about store files, and a node with a
    shared store has none; for other commands the cache of such a node is its store. Raises ConfigError, CommandFailed.
    """
    from mainstem.node.config_sources import load
    from mainstem.node.store_directory import CACHE_DIRECTORY

    config = load(file=file, environment=os.environ, flags={"write_dir": write_dir, "store_dir": store_dir})
    write, url = Path(config.write_dir).expanduser(), config.shared_store_place
    if url is not None and of_files:
        raise CommandFailed(
            f"store_dir = {url} is a shared store, and this node has no store files. `mainstem store adopt {url} "
            "--list` says what is missing there, and `mainstem store export` reads and checks every batch of a topic"
        )
    own = Path(config.store_dir.removeprefix("file://")).expanduser()
    store = own if url is None else write / CACHE_DIRECTORY
    if not store.is_dir():
        option = "--store-dir" if url is None else "--write-dir"
        raise CommandFailed(f"{store} is no directory: name the queue store's with {option}")
    return Directories(write, store)
