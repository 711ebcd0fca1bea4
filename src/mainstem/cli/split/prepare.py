"""`mainstem split prepare`"""

from __future__ import annotations

import click

from mainstem.cli import options
from mainstem.pipeline.config import PipelineConfig


@click.command("prepare")
@options.neither
def command() -> None:
    """Have Spark start in half the time on this machine.

    Runs Spark once and keeps the classes it loads in a file of some 170 MB below ~/.cache (or XDG_CACHE_HOME), from
    which every local splitter of this user then starts. After an update of Java or Spark there is a new one to write.
    """
    from mainstem.pipeline.java import require_java

    java = require_java()
    from mainstem.pipeline.class_archive import archive_of, write_archive

    archive = archive_of(java)
    if archive.exists():
        click.echo(f"{archive} is there already; splitters start from it")
        return
    write_archive(java, PipelineConfig().driver_memory)
    click.echo(f"{archive} is written; splitters start from it")
