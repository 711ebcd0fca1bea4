"""`mainstem store probe`"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import duration, print_json, print_table

if TYPE_CHECKING:
    from mainstem.storage.object_stores.config import ObjectStoreConfig
    from mainstem.storage.object_stores.probing import Tried


@click.command("probe")
@click.argument("url")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="Take the section object_store from this file. Default: mainstem.toml, if there is one.",
)
@click.option(
    "--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Set any key of the configuration; repeatable."
)
@options.neither
@options.as_json
def command(url: str, file: Path | None, assignments: tuple[str, ...], as_json: bool) -> int:
    """Find out whether an object store does what Mainstem asks of one.

    URL is a directory, s3://bucket/prefix, gs://bucket/prefix or hdfs://namenode:8020/folder. Small objects are written
    below it, read, written again where that must be refused, uploaded in parts, listed and deleted. The exit code is 1
    when something of that fails.
    """
    from mainstem.node.config_sources import load
    from mainstem.storage.object_stores.probing import Ability

    config = load(file=file, environment=os.environ, flags={}, assignments=assignments)
    found = asyncio.run(tried(url, config.object_store))
    ok = all(one.ability is not Ability.FAILED for one in found)
    if as_json:
        print_json(
            {
                "ok": ok,
                "tried": [
                    {
                        "name": one.name,
                        "ability": one.ability.value,
                        "seconds": round(one.seconds, 3),
                        "found": one.found or None,
                    }
                    for one in found
                ],
            }
        )
    else:
        rows = [(one.name, one.ability.value, duration(one.seconds), one.found or "-") for one in found]
        print_table(["WHAT", "STATE", ">TOOK", "~FOUND"], rows, empty="")
    return 0 if ok else 1


async def tried(url: str, config: ObjectStoreConfig) -> list[Tried]:
    """The steps of a probe of a store, and how each went, in the order in which it was asked. Raises ConfigError."""
    from mainstem.storage.object_stores.probing import StoreProbe
    from mainstem.storage.object_stores.urls import open_object_store

    store = open_object_store(url, config)
    return [one async for one in StoreProbe(store, config.part_bytes).run()]
