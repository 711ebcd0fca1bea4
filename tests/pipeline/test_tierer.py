"""Uploads as a driver makes them: how many tasks at a time, what a failure leaves behind, who is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.storage.queue_store.merges import GROUP, MergeStore
from tests.storage.queue_store.runs import make_batch

from mainstem.pipeline.errors import UploadFailed
from mainstem.pipeline.main import parse, work_of
from mainstem.pipeline.merge.merge_task import Damage, MergeSettings, input_file
from mainstem.pipeline.tier.tier_task import UploadDone, UploadFile, UploadWork, upload_all
from mainstem.pipeline.tier.tierer import TASK_BYTES, Tierer, in_tasks
from mainstem.rpc.errors import NotServed
from mainstem.rpc.messages.split import FileDescription, HeldLease
from mainstem.rpc.messages.tier import MovingFile, TierWork
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.store_files.allowance import unlimited
from mainstem.storage.store_files.object_names import file_objects
from mainstem.storage.store_files.store_file import path_of

SETTINGS = MergeSettings(rpc="127.0.0.1:1", store_dir="/nowhere")
HELD = HeldLease("lease", 1)
CONFIG = msgspec.json.encode(ObjectStoreConfig())


def moving(number: int, size: int = TASK_BYTES) -> MovingFile:
    file = FileDescription(
        name=f"{number}.pack", retention_class="forever+remote", bytes=size, batch_bytes=size, batch_count=1,
        record_count=1, queue_count=1, min_timestamp=0, max_timestamp=0, level=1, group=0,
    )  # fmt: skip
    return MovingFile(file, f"{number}-new.pack", (f"groups/0/files/packed/{number}-new.pack",))


class FakeNode:
    """Gives out some work, and notes what is handed in."""

    def __init__(self, work: TierWork, outcome: str = "recorded") -> None:
        self.work = work
        self.outcome = outcome
        self.handed_in: list[tuple[tuple[str, ...], str]] = []
        self.damaged: list[str] = []

    def tier_work(self, held: HeldLease, *, drain: bool) -> TierWork:
        return self.work

    def record_tier(self, held: HeldLease, tier_id: str, names: Sequence[str], failure: str) -> str:
        assert tier_id == self.work.tier_id
        self.handed_in.append((tuple(names), failure))
        return self.outcome

    def merge_damaged(self, merge_id: str, name: str, reason: str) -> None:
        assert not self.handed_in, "the node knows of the work until it is handed in"
        self.damaged.append(name)


class FakeSpark:
    """Notes how many tasks run at a time; `answer` is what each makes of its work."""

    def __init__(self, answer: Callable[[UploadWork], UploadDone]) -> None:
        self.jobs: list[list[str]] = []
        self._answer = answer
        self.sparkContext = SimpleNamespace(parallelize=self._parallelize)

    def _parallelize(self, work: Sequence[bytes], tasks: int) -> Any:
        assert tasks == len(work)
        asked = [msgspec.json.decode(one, type=UploadWork) for one in work]
        self.jobs.append([file.name for one in asked for file in one.files])
        answers = [msgspec.json.encode(self._answer(one)) for one in asked]
        return SimpleNamespace(map=lambda _function: SimpleNamespace(collect=lambda: answers))


def whole(work: UploadWork) -> UploadDone:
    return UploadDone(names=tuple(file.name for file in work.files))


def work_with(*files: MovingFile) -> TierWork:
    return TierWork(tier_id="t", group=0, files=files, store="s3://bucket/tier", store_config=CONFIG)


def step(node: FakeNode, spark: FakeSpark, *, drain: bool = False, tasks: int = 3) -> tuple[bool, int]:
    """Whether there may be more, and how often the split was waited for."""
    pauses: list[None] = []
    tierer = Tierer(spark, node, SETTINGS, tasks=tasks)  # type: ignore[arg-type]  # as far as it looks at them
    return tierer.step(HELD, drain=drain, pause=lambda: pauses.append(None)), len(pauses)


def test_files_share_a_task_up_to_its_bytes() -> None:
    half = TASK_BYTES // 2
    files = [moving(0, half), moving(1, half), moving(2, 1), moving(3, 5 * half), moving(4, 1)]
    assert [[one.file.name for one in some] for some in in_tasks(files)] == [
        ["0.pack", "1.pack"], ["2.pack"], ["3.pack"], ["4.pack"],
    ]  # fmt: skip


def test_a_task_is_left_to_the_split_and_waits_for_it_before_each_job() -> None:
    node, spark = FakeNode(work_with(*map(moving, range(5)))), FakeSpark(whole)
    assert step(node, spark) == (True, 3)
    assert spark.jobs == [["0-new.pack", "1-new.pack"], ["2-new.pack", "3-new.pack"], ["4-new.pack"]]
    assert node.handed_in == [(tuple(f"{number}-new.pack" for number in range(5)), "")]
    node, spark = FakeNode(work_with(*map(moving, range(2)))), FakeSpark(whole)
    assert step(node, spark, tasks=1) == (True, 2)


def test_nothing_to_upload_is_nothing_to_do_and_what_prevents_it_is_told_who_waits_for_it() -> None:
    assert step(FakeNode(TierWork()), FakeSpark(whole)) == (False, 0)
    assert step(FakeNode(TierWork()), FakeSpark(whole), drain=True) == (False, 0)
    assert step(FakeNode(TierWork(failure="the store is down")), FakeSpark(whole)) == (False, 0)
    with pytest.raises(UploadFailed, match="the store is down"):
        step(FakeNode(TierWork(failure="the store is down")), FakeSpark(whole), drain=True)


def test_a_node_of_an_earlier_version_gives_nothing_out() -> None:
    class EarlierNode(FakeNode):
        def tier_work(self, held: HeldLease, *, drain: bool) -> TierWork:
            raise NotServed("tier.work is not served here")

    assert step(EarlierNode(TierWork()), FakeSpark(whole)) == (False, 0)
    with pytest.raises(UploadFailed, match="not served"):
        step(EarlierNode(TierWork()), FakeSpark(whole), drain=True)


def test_what_was_uploaded_before_a_failure_is_handed_in_with_it_and_merges_go_on() -> None:
    def fails_at_two(work: UploadWork) -> UploadDone:
        failed = work.files[0].name == "2-new.pack"
        return UploadDone(names=(), failure="no answer") if failed else whole(work)

    node, spark = FakeNode(work_with(*map(moving, range(9))), "kept"), FakeSpark(fails_at_two)
    assert step(node, spark) == (False, 2), "not at once again"
    assert node.handed_in == [(("0-new.pack", "1-new.pack", "3-new.pack"), "no answer")]
    with pytest.raises(UploadFailed, match="no answer"):
        step(FakeNode(node.work, "kept"), FakeSpark(fails_at_two), drain=True)


def test_damage_is_reported_before_the_rest_is_handed_in() -> None:
    def damaged(work: UploadWork) -> UploadDone:
        return UploadDone(names=(), damage=Damage("0.pack", "fails its CRC"))

    node = FakeNode(work_with(moving(0)), "kept")
    assert step(node, FakeSpark(damaged)) == (False, 1)
    assert node.damaged == ["0.pack"]
    assert node.handed_in == [((), "")]


def test_a_refusal_is_told() -> None:
    assert step(FakeNode(work_with(moving(0)), "refused: gone"), FakeSpark(whole)) == (False, 1)
    with pytest.raises(UploadFailed, match="gone"):
        step(FakeNode(work_with(moving(0)), "refused: gone"), FakeSpark(whole), drain=True)


def test_a_task_uploads_to_the_store_of_the_url_and_says_what_it_could_not(tmp_path: Path) -> None:
    local = MergeStore(tmp_path / "store")
    batches = [make_batch(queue, 0, size=4_000) for queue in range(30)]
    files = local.merge([local.run(0, batches)], MergeLines(packed_bytes=30_000))
    assert len(files) > 2
    (tmp_path / "remote").mkdir()

    settings = msgspec.structs.replace(SETTINGS, store_dir=str(local.root))

    def work(url: str) -> UploadWork:
        names = [(f"new-{number}.pack", file.name) for number, file in enumerate(files)]
        uploads = (
            UploadFile(
                input_file(settings, GROUP, old), new, tuple(f"cluster/{one}" for one in file_objects(GROUP, new))
            )
            for new, old in names
        )
        return UploadWork(settings=SETTINGS, store=url, config=ObjectStoreConfig(), files=tuple(uploads))

    done = asyncio.run(upload_all(work(str(tmp_path / "remote")), unlimited))
    assert (done.damage, done.failure) == (None, "")
    assert done.names == tuple(f"new-{number}.pack" for number in range(len(files)))
    there = [path for path in (tmp_path / "remote" / "cluster").rglob("*.pack") if path.is_file()]
    assert len(there) == len(files)
    path = local.root / path_of(files[1].name)
    path.write_bytes(b"x" + path.read_bytes()[1:])
    (tmp_path / "other").mkdir()
    done = asyncio.run(upload_all(work(str(tmp_path / "other")), unlimited))
    assert done.names == ("new-0.pack",)
    assert done.damage is not None
    assert done.damage.name == files[1].name
    done = asyncio.run(upload_all(work(str(tmp_path / "missing")), unlimited))
    assert done.names == ()
    assert "missing" in done.failure
    done = asyncio.run(upload_all(work("nowhere://bucket"), unlimited))
    assert done.names == ()
    assert "nowhere://" in done.failure


def test_the_application_is_run_for_one_thing() -> None:
    def work(*options: str) -> str:
        return work_of(parse(["--node", "http://127.0.0.1:1", *options]))

    assert work() == work("--no-merge") == work("--once") == "split"
    assert [work("--merge-only"), work("--compact-only"), work("--tier-only")] == ["merge", "compaction", "upload"]
    with pytest.raises(SystemExit):
        work("--merge-only", "--tier-only")
