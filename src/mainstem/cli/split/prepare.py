"""`mainstem split prepare`"""

from __future__ import annotations

import click

from mainstem.cli.parameters import options
from mainstem.cli.terminal.output import print_json
from mainstem.pipeline.embedded.config import PipelineConfig


@click.command("prepare")
@options.neither
@options.as_json
def command(as_json: bool) -> None:
    """Have Spark start in half the time on this machine.

    The command runs Spark once and writes the classes that it loads to a file of some 170 MB below ~/.cache (or
    XDG_CACHE_HOME), from which every local splitter of this user then starts. Run it again after an update of Java or
    Spark.
    """
    from mainstem.pipeline.spark.java import require_java

    java = require_java()
    from mainstem.pipeline.spark.class_archive import archive_of, write_archive

    archive = archive_of(java)
    existed = archive.exists()
    if not existed:
        write_archive(java, PipelineConfig().driver_memory)
    if as_json:
        print_json({"archive": str(archive), "written": not existed})
    elif existed:
        click.echo(f"{archive} exists already; splitters start from it")
    else:
        click.echo(f"wrote {archive}; splitters start from it")
