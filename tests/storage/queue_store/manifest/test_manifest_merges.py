"""The manifest with files on levels: against a model, through failures and starts; when it becomes one of version 2."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import tempfile
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.queue_store.manifest.database.manifest_database import WriteGroupSplit
from mainstem.storage.queue_store.manifest.in_memory.file_table import PAGE_FILES, SPARSE_PART, LevelSums
from mainstem.storage.queue_store.manifest.in_memory.span_lists import SpanList
from mainstem.storage.queue_store.manifest.in_memory.spans import (
    FileRange,
    Span,
    check_keys,
    check_rewritten,
    check_whole_spans,
)
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.store_files.store_file import StoreFile, kind_of

GROUPS = (0, 1, 2)


def run(name: str) -> StoreFile:
    return StoreFile(
        name=f"{name}.run", retention_class="forever", bytes=9, batch_bytes=8, batch_count=7, record_count=6,
        queue_count=5, min_timestamp=-1, max_timestamp=4,
    )  # fmt: skip


def packed(
    name: str, group: int, first: tuple[int, int], last: int, level: int = 1, clean_ms: int = -1, horizon_ms: int = -1
) -> StoreFile:
    return StoreFile(
        name=f"{name}.pack", retention_class="forever", bytes=9, batch_bytes=8, batch_count=7, record_count=6,
        queue_count=5, min_timestamp=-1, max_timestamp=4, level=level, group=group, first_queue=first[0],
        last_queue=last, first_offset=first[1], clean_ms=clean_ms, horizon_ms=horizon_ms,
    )  # fmt: skip


class Model:
    """The content that a manifest should have, kept in the plainest way."""

    def __init__(self) -> None:
        self.spans: dict[int, list[tuple[int, int, list[str]]]] = {group: [] for group in GROUPS}
        self.positions = dict.fromkeys(GROUPS, 0)
        self.files: dict[str, StoreFile] = {}
        self.dropped: set[str] = set()

    def settle(self) -> None:
        for group in GROUPS:
            self.spans[group] = [span for span in self.spans[group] if span[2]]
        named = {name for spans in self.spans.values() for _after, _upto, names in spans for name in names}
        self.files = {name: file for name, file in self.files.items() if name in named}

    def check(self, manifest: Manifest) -> None:
        assert manifest.files == self.files
        assert manifest.dropped == self.dropped
        levels: dict[object, LevelSums] = {}
        for file in self.files.values():
            level = file.level, kind_of(file.name)
            count, size, batch_bytes = levels.get(level, (0, 0, 0))
            levels[level] = LevelSums(count + 1, size + file.bytes, batch_bytes + file.batch_bytes)
        assert manifest.files.levels == levels
        rows = sum(len(page.alive) for page in manifest.files.pages.values())
        assert rows <= (SPARSE_PART + 1) * len(self.files) + 2 * manifest.files.page_files, "rows of what is gone go"
        assert {name for name in manifest.seen if name not in manifest.files} == set()
        for group in GROUPS:
            said = [(span.after, span.upto, sorted(entry.name for entry in span)) for span in manifest.spans(group)]
            assert said == [(after, upto, sorted(names)) for after, upto, names in self.spans[group]]
            assert all(
                (entry.group, entry.after, entry.upto) == (group, span.after, span.upto)
                for span in manifest.spans(group)
                for entry in span
            )
            assert manifest.position(group).position == self.positions[group]
            for name in self.files:
                assert (group in manifest.counts_for(name)) == any(
                    name in names for *_blocks, names in self.spans[group]
                )
        seen_upto = dict.fromkeys(GROUPS, 0)
        pairs = set()
        for name, groups in manifest.in_order():
            for group in groups:
                (upto,) = {entry.upto for entry in manifest.entries(name) if entry.group == group}
                assert upto >= seen_upto[group], "the files of every write group come oldest first"
                seen_upto[group] = upto
                pairs.add((name, group))
        assert pairs == {(name, group) for group in GROUPS for *_blocks, names in self.spans[group] for name in names}


async def a_change(manifest: Manifest, model: Model, choice: random.Random, number: int) -> None:
    """One random change, made in both; an error of the manifest leaves the model as it was."""
    kind = choice.choice(
        [
            "commit",
            "commit",
            "commit",
            "merge",
            "merge",
            "rewrite",
            "rewrite",
            "drop",
            "mend",
            "supersede",
            "see",
            "fold",
        ]
    )
    group = choice.choice(GROUPS)
    spans, seen, changes = model.spans[group], dict(manifest.seen), manifest.changes
    if kind == "commit":
        files = [run(f"{number}-{part}") for part in range(choice.randint(0, 2))]
        chosen = [each for each in GROUPS if choice.random() < 0.7]
        commits = []
        for each in chosen:
            after = model.positions[each]
            commits.append(WriteGroupSplit(each, after, after + choice.randint(1, 3), tuple(files), after))
        if not commits:
            return
        await manifest.record_splits(commits)
        for commit in commits:
            model.positions[commit.group] = commit.upto
            model.spans[commit.group].append((commit.after, commit.upto, [file.name for file in files]))
        model.files.update((file.name, file) for file in files)
    elif kind == "merge" and spans:
        first = choice.randrange(len(spans))
        end = choice.randint(first + 1, len(spans))
        inputs = [entry for span in manifest.spans(group)[first:end] for entry in span]
        check_whole_spans(manifest.spans(group), inputs)
        outputs = [
            packed(f"{number}-{part}", group, (10 * part, part), 10 * part + 10) for part in range(choice.randint(0, 3))
        ]
        gone = await manifest.merge(group, inputs, outputs)
        names = [file.name for file in outputs]
        spans[first:end] = [(spans[first][0], spans[end - 1][1], names)]
        model.files.update((file.name, file) for file in outputs)
        before = set(model.files)
        model.settle()
        assert set(gone) == before - set(model.files)
    elif kind == "rewrite":
        there = [entry for entry in manifest.ranges(group) if model.files[entry.name].is_merged]
        rewritten = {entry: model.files[entry.name] for entry in choice.sample(there, choice.randint(0, len(there)))}
        if not rewritten:
            return
        made = {
            entry: [
                packed(f"{number}-{at}-{part}", group, (old.first_queue, part), old.last_queue, 1, number, 9 * number)
                for part in range(choice.randint(0, 1))
            ]
            for at, (entry, old) in enumerate(rewritten.items())
        }
        gone = await manifest.rewrite(group, made)
        by_name = {entry.name: [file.name for file in new_files] for entry, new_files in made.items()}
        for at, (after, upto, held) in enumerate(spans):
            spans[at] = after, upto, [new for name in held for new in by_name.get(name, [name])]
        model.files.update((file.name, file) for new_files in made.values() for file in new_files)
        model.settle()
        assert set(gone) == set(by_name)
        for entry, new_files in made.items():
            assert all(manifest.seen.get(file.name) == seen.get(entry.name) for file in new_files)
    elif kind == "drop" and model.files:
        going = set(choice.sample(sorted(model.files), min(len(model.files), choice.randint(1, 3))))
        await manifest.drop(going, number)
        for each in GROUPS:
            model.spans[each] = [(*blocks, [n for n in held if n not in going]) for *blocks, held in model.spans[each]]  # type: ignore[misc]
        model.dropped |= going
    elif kind == "mend" and model.files:
        name = choice.choice(sorted(model.files))
        by = {
            each: [
                (*manifest.blocks_of(name, each), run(f"{number}-{each}-{part}"))
                for part in range(choice.randint(0, 2))
            ]
            for each in manifest.counts_for(name)
        }
        await manifest.replace(name, by)
        for each, entries in by.items():
            new = [file.name for _after, _upto, file in entries]
            model.spans[each] = [
                (after, upto, [n for n in held if n != name] + (new if name in held else []))
                for after, upto, held in model.spans[each]
            ]
            model.files.update((file.name, file) for _after, _upto, file in entries)
    elif kind == "supersede":
        entries = [(2 * at, 2 * at + 2, run(f"{number}-{at}")) for at in range(choice.randint(0, 3))]
        if choice.random() < 0.5:
            entries.append((6, 9, packed(f"{number}", group, (1, 0), 5)))
        await manifest.supersede(group, 9, 5, entries)
        model.spans[group] = [(after, upto, [file.name]) for after, upto, file in entries]
        model.files.update((file.name, file) for _after, _upto, file in entries)
        model.positions[group] = 9
    elif kind == "see":
        await manifest.see(number)
    elif kind == "fold":
        for _ in range(choice.randint(1, 3)):
            await manifest.fold()
        assert manifest.changes == changes
        assert dict(manifest.seen) == seen
    model.settle()
    gone_from_seen = [name for name in manifest.seen if name not in manifest.files]
    if gone_from_seen:
        await manifest.see(number)


def beside(path: Path, statement: str) -> None:
    """Run a statement on the manifest's database in a connection of its own."""
    database = sqlite3.connect(path)
    try:
        database.execute(statement)
    finally:
        database.close()


@given(st.integers(0, 2**32))
def test_at_random_the_manifest_says_what_its_model_says_and_so_does_a_start_after_any_step(seed: int) -> None:
    choice = random.Random(seed)

    async def scenario(directory: Path) -> None:
        path = directory / "manifest.sqlite"
        page_files = choice.choice([2, 3, 5, PAGE_FILES])
        manifest, model = await Manifest.open(str(path), page_files), Model()
        pictures: list[tuple[SpanList, list[list[FileRange]], list[StoreFile]]] = []
        await manifest.adopt(uuid.UUID(int=seed), 0)
        for number in range(choice.randint(1, 25)):
            fails = choice.random() < 0.15
            if fails:  # in the last statement of a change: all before it are undone
                beside(path, "CREATE TRIGGER full BEFORE INSERT ON seal BEGIN SELECT RAISE(ABORT, 'full'); END")
                before = manifest.changes
                try:
                    await a_change(manifest, model, choice, number)
                except StorageError:
                    assert manifest.changes == before
                beside(path, "DROP TRIGGER full")
            else:
                await a_change(manifest, model, choice, number)
            model.check(manifest)
            for spans, entries, described in pictures:
                assert [list(span) for span in spans] == entries, "an older picture stays as it was"
                assert [file for _after, _upto, file in spans.described()] == described
            if choice.random() < 0.3:
                spans = manifest.spans(choice.choice(GROUPS))
                described = [manifest.files[entry.name] for span in spans for entry in span]
                pictures.append((spans, [list(span) for span in spans], described))
            if choice.random() < 0.2:  # the power goes here
                copy = directory / f"{number}.sqlite"
                for suffix in ("", "-wal"):
                    shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
                await manifest.close()
                path, manifest = copy, await Manifest.open(str(copy), page_files)
                model.check(manifest)
        await manifest.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(scenario(Path(directory)))


def test_a_manifest_is_of_version_1_until_its_first_merge(tmp_path: Path) -> None:
    """So that older versions can be gone back to until then, and refuse by name afterwards."""
    path = tmp_path / "manifest.sqlite"

    def version() -> tuple[int, bool]:
        database = sqlite3.connect(path)
        try:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            return database.execute("PRAGMA user_version").fetchone()[0], "keys" in tables
        finally:
            database.close()

    async def scenario() -> None:
        manifest = await Manifest.open(str(path))
        await manifest.adopt(uuid.uuid4(), 0)
        await manifest.record_splits([WriteGroupSplit(0, 0, 1, (run("a"),), 1)])
        await manifest.replace("a.run", {0: [(0, 1, run("b"))]})
        await manifest.see(77)
        assert version() == (1, False)
        await manifest.merge(0, manifest.ranges(0), [packed("c", 0, (1, 0), 5)])
        assert version() == (2, True)
        assert manifest.seen["c.pack"] == 77, "nothing in it came later than its inputs"
        await manifest.close()
        again = await Manifest.open(str(path))
        assert again.files == {"c.pack": packed("c", 0, (1, 0), 5)}
        assert again.seen["c.pack"] == 77
        await again.close()
        database = sqlite3.connect(path)
        database.execute("PRAGMA user_version = 1")
        database.close()
        with pytest.raises(FormatError, match="its tables are not those of version 1"):
            await Manifest.open(str(path))

    asyncio.run(scenario())


def test_a_split_costs_the_same_however_much_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rows that sqlite steps over."""
    count = 0
    connect = sqlite3.connect

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    def counted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_progress_handler(step, 10)
        return connection

    monkeypatch.setattr(sqlite3, "connect", counted)

    async def scenario() -> None:
        nonlocal count
        manifest = await Manifest.open(str(tmp_path / "manifest.sqlite"))
        await manifest.adopt(uuid.uuid4(), 0)
        steps: dict[int, int] = {}
        done = 0
        for size in (10, 2000):
            await manifest.record_splits(
                [WriteGroupSplit(0, number, number + 1, (run(f"{number}"),), 1) for number in range(done, size)]
            )
            count = 0
            await manifest.record_splits([WriteGroupSplit(0, size, size + 1, (run(f"{size}"),), 1)])
            await manifest.merge(0, list(manifest.spans(0)[size - 1]), [packed(f"{size}", 0, (1, 0), 5)])
            steps[size], done = count, size + 1
        assert steps[2000] < 2 * steps[10], steps
        await manifest.close()

    asyncio.run(scenario())


def test_a_look_into_a_span_goes_to_the_file_that_may_hold_an_offset_and_those_behind_it() -> None:
    files = [
        packed("a", 0, (1, 7), 5), packed("b", 0, (5, 100), 5), packed("c", 0, (5, 200), 9), packed("d", 0, (11, 0), 20)
    ]  # fmt: skip
    check_keys(files)
    span = Span(
        [FileRange(at, 0, 3, 9, file.name) for at, file in enumerate(files)], {file.name: file for file in files}
    )

    def looked_at(queue_id: int, offset: int) -> str:
        return "".join(entry.name[0] for entry in span.keyed(queue_id, offset))

    assert looked_at(0, 0) == ""
    assert looked_at(1, 0) == looked_at(4, 1 << 40) == "a"
    assert [looked_at(5, offset) for offset in (0, 99, 100, 150, 200, 1 << 40)] == ["abc", "abc", "bc", "bc", "c", "c"]
    assert looked_at(9, 3) == "c"
    assert looked_at(10, 0) == looked_at(21, 0) == ""
    assert looked_at(11, 0) == looked_at(20, 9) == "d"


@pytest.mark.parametrize("other", [packed("b", 0, (4, 9), 4), packed("b", 0, (1, 7), 1), packed("b", 0, (2, 0), 9)])
def test_files_whose_keys_overlap_are_no_span(other: StoreFile) -> None:
    with pytest.raises(StorageError, match="keys overlap"):
        check_keys([other, packed("a", 0, (1, 7), 5)])


@pytest.mark.parametrize(
    ("outputs", "wrong"),
    [
        ({}, "nothing is rewritten"),
        ({"a": ["x"], "run": []}, "no merged file"),
        ({"gone": ["x"]}, "no merged file"),
        ({"a": ["early"]}, "other keys"),
        ({"a": ["late"]}, "other keys"),
        ({"a": ["level"]}, "other keys, or another level"),
        ({"b": ["reaching"]}, "keys overlap"),
        ({"b": ["x", "same"]}, "other keys"),
    ],
)  # fmt: skip
def test_a_file_is_rewritten_within_its_span_and_its_keys(outputs: dict[str, list[str]], wrong: str) -> None:
    files = {
        name: packed(name, 0, *keys)
        for name, keys in {
            "a": ((1, 7), 5), "b": ((5, 100), 9), "c": ((9, 50), 12), "x": ((2, 0), 4), "same": ((5, 100), 6),
            "early": ((1, 6), 5), "late": ((2, 0), 6), "reaching": ((6, 0), 9),
        }.items()
    } | {"level": packed("level", 0, (2, 0), 4, level=2), "run": run("run")}  # fmt: skip
    entries = {name: FileRange(at, 0, 3, 9, name) for at, name in enumerate(("a", "b", "c"))}
    entries |= {"gone": FileRange(7, 0, 3, 9, "gone"), "run": FileRange(8, 0, 9, 10, "run")}
    spans = [Span([entries[name] for name in "abc"], files), Span([entries["run"]], files)]
    if wrong == "keys overlap":
        files["reaching"] = packed("reaching", 0, (5, 100), 9)
        files["a"] = packed("a", 0, (1, 7), 6)
    chosen = {entries[name]: [files[one] for one in made] for name, made in outputs.items()}
    with pytest.raises(StorageError, match=wrong):
        check_rewritten(spans, files, chosen)
    whole = {entries["a"]: [files["x"]], entries["b"]: [], entries["c"]: []}
    check_rewritten(spans, files, whole)


def test_a_walk_over_all_files_has_none_twice_when_others_go_meanwhile(tmp_path: Path) -> None:
    """Whether they were of blocks before, or lay beside it."""

    async def scenario() -> None:
        manifest = await Manifest.open(str(tmp_path / "manifest.sqlite"))
        await manifest.adopt(uuid.uuid4(), 0)
        old, first, second, last = map(run, ("old", "first", "second", "last"))
        await manifest.record_splits([
            WriteGroupSplit(0, 0, 1, (old,), 1), WriteGroupSplit(0, 1, 2, (first, second), 2),
            WriteGroupSplit(0, 2, 3, (last,), 3),
        ])  # fmt: skip
        walk = manifest.in_order()
        came = [next(walk)[0] for _ in range(2)]
        assert came == ["old.run", "first.run"]
        await manifest.drop(["old.run", "second.run"], 1)
        assert [name for name, _groups in walk] == ["last.run"]
        await manifest.close()

    asyncio.run(scenario())
