"""`mainstem store repair --manifest`: a manifest is made anew from its copy on disk 2."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from mainstem.cli.errors import CommandFailed
from mainstem.cli.store.directories import Directories
from mainstem.cli.terminal.output import counted, print_fields, print_json, print_text, size

if TYPE_CHECKING:
    from mainstem.storage.verifying.rebuilding import Absent, Rebuild

SHOWN_MAX = 20
"""Files of a kind told to people; `--json` has them all."""


def repair_manifest(where: Directories, *, yes: bool, as_json: bool) -> int:
    """Say why the manifest cannot be used and what its copy has, and with `yes` put that in its place. The exit code is
    1 while it cannot be used. The caller holds the lock of the directory. Raises CommandFailed."""
    from mainstem.storage.errors import StorageError
    from mainstem.storage.verifying.rebuilding import put

    try:
        why, rebuild = asyncio.run(_examined(where))
        if rebuild is not None and yes:
            put(where.manifest, rebuild, int(time.time() * 1000))
    except (StorageError, OSError) as error:
        raise CommandFailed(
            f"{error}\nNothing was changed. Restore write_dir and store_dir as a whole, or have another node take the "
            "place of this one (mainstem cluster replace)"
        ) from error
    if as_json:
        print_json(_data(why, rebuild, made=yes and rebuild is not None))
    elif rebuild is None:
        print_text("the manifest is sound, and is left as it is")
    else:
        _print(where, why, rebuild, made=yes)
    return 0 if yes or rebuild is None else 1


async def _examined(where: Directories) -> tuple[str, Rebuild | None]:
    """Why the manifest cannot be used, and what can take its place; None: it can be used."""
    from mainstem.storage.disks.disk_files import DiskFiles
    from mainstem.storage.verifying.rebuilding import examine, marked, needs_rebuild

    files = DiskFiles(os.fspath(where.store_dir))
    try:
        mark = await marked(files)
        why = await asyncio.to_thread(needs_rebuild, str(where.manifest), mark)
        return why, await examine(files, mark) if why else None
    finally:
        await files.close()


def _data(why: str, rebuild: Rebuild | None, *, made: bool) -> dict[str, object]:
    return {
        "ok": made or rebuild is None,
        "why": why,
        "made": made,
        "changes": rebuild.copied.contents.changes if rebuild is not None else None,
        "files": len(rebuild.copied.contents.files) if rebuild is not None else None,
        "bytes": _bytes(rebuild) if rebuild is not None else None,
        "faults": list(rebuild.faults) if rebuild is not None else [],
        "absent": [_absent(one) for one in (rebuild.absent if rebuild is not None else ())],
        "unnamed": [
            {"path": one.path, "bytes": one.bytes, "kind": one.kind}
            for one in (rebuild.unnamed if rebuild is not None else ())
        ],
    }


def _absent(one: Absent) -> dict[str, object]:
    from mainstem.storage.store_files.store_file import path_of

    return {
        "path": path_of(one.file.name),
        "bytes": one.bytes,
        "bytes_expected": one.file.bytes,
        "blocks": [{"group": entry.group, "after": entry.after, "upto": entry.upto} for entry in one.ranges],
    }


def _bytes(rebuild: Rebuild) -> int:
    return sum(file.bytes for file in rebuild.copied.contents.files)


def _print(where: Directories, why: str, rebuild: Rebuild, *, made: bool) -> None:
    contents, copied = rebuild.copied.contents, rebuild.copied
    base = "the first change" if copied.image is None else f"an image of change {copied.image:,}"
    fields = [
        ("manifest", f"{where.manifest}: {why}"),
        ("copy", f"whole up to change {contents.changes:,}, from {base} on"),
        ("mark", f"vouches for {counted(rebuild.mark.changes, 'change')}"),
        ("files", f"{counted(len(contents.files), 'file')}, {size(_bytes(rebuild))}, of {_groups(rebuild)}"),
    ]
    fields += [("damaged", fault) for fault in rebuild.faults]
    print_fields(fields)
    if rebuild.absent:
        print_text()
        print_text("Named, and not there whole; a replica's, or a copy of the file under its name, is needed:")
        for one in rebuild.absent[:SHOWN_MAX]:
            blocks = ", ".join(f"write group {it.group} ({it.after:,}, {it.upto:,}]" for it in one.ranges)
            there = "missing" if one.bytes is None else f"{size(one.bytes)} of {size(one.file.bytes)}"
            print_text(f"  {one.file.name}: {there}, blocks of {blocks}")
        _print_more(len(rebuild.absent))
    if rebuild.unnamed:
        print_text()
        print_text("Not named, so they do not count: other files took their place, or they were never recorded:")
        for found in rebuild.unnamed[:SHOWN_MAX]:
            print_text(f"  {found.path} ({found.kind}, {size(found.bytes)})")
        _print_more(len(rebuild.unnamed))
    print_text()
    if made:
        print_text("the manifest is made anew; what was there is in set-aside, beside it")
    else:
        print_text("With --yes the manifest is made anew from its copy, and what is there now is moved to set-aside.")


def _print_more(count: int) -> None:
    if count > SHOWN_MAX:
        print_text(f"  and {count - SHOWN_MAX:,} more")


def _groups(rebuild: Rebuild) -> str:
    return counted(len(rebuild.copied.contents.positions), "write group")
