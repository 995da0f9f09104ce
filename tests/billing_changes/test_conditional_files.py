"""Files replaced as a whole by whoever has read what they replace, in a folder and on S3 (the emulator's)."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config

from metering_dagster.billing_changes.stores.conditional_files import Bucket, FileStore, Folder
from metering_dagster.core.errors import CallerError, ReplacedMeanwhileError, UnreachableError
from metering_dagster.devstack.stack import LocalStack

NAME = "day=2026-11-20/cells.parquet"
PATIENCE_SECONDS = 60


def s3_of(stack: LocalStack) -> object:
    return boto3.client(
        "s3", endpoint_url=stack.environment()["AWS_ENDPOINT_URL_S3"], region_name=stack.region,
        aws_access_key_id="local", aws_secret_access_key="local", config=Config(proxies={}),
    )  # fmt: skip


@pytest.fixture
def bucket(emulator: LocalStack) -> Bucket:
    client = s3_of(emulator)
    name = f"places-{uuid4().hex}"
    client.create_bucket(Bucket=name)
    return Bucket(client, f"s3://{name}/some/prefix/")


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> FileStore:
    return request.getfixturevalue("bucket") if request.param == "s3" else Folder(tmp_path / "deep" / "changes")


def test_a_file_that_is_not_there_is_none(place):
    assert place.read(NAME) is None
    assert place.generations("day=*/cells.parquet") == {}


def test_what_was_put_is_read_with_its_generation(place):
    generation = place.replace(NAME, b"one", None)
    found = place.read(NAME)
    assert (found.content, found.generation) == (b"one", generation)
    assert place.generations("day=*/cells.parquet") == {NAME: generation}


def test_the_generation_that_was_read_can_be_replaced(place):
    one = place.replace(NAME, b"one", None)
    two = place.replace(NAME, b"two", one)
    assert place.read(NAME).content == b"two"
    assert two != one


def test_another_generation_than_the_one_read_is_left_alone(place):
    one = place.replace(NAME, b"one", None)
    place.replace(NAME, b"two", one)
    with pytest.raises(ReplacedMeanwhileError, match="replaced by another"):
        place.replace(NAME, b"three", one)
    assert place.read(NAME).content == b"two"


def test_a_file_that_came_meanwhile_is_left_alone(place):
    place.replace(NAME, b"one", None)
    with pytest.raises(ReplacedMeanwhileError):
        place.replace(NAME, b"two", None)
    assert place.read(NAME).content == b"one"


def test_a_file_that_was_deleted_meanwhile_does_not_come_back(place):
    with pytest.raises(ReplacedMeanwhileError):
        place.replace(NAME, b"two", "some-generation")
    assert place.read(NAME) is None


def test_only_names_that_match_are_listed(place):
    for name in (NAME, "day=2026-11-21/cells.parquet", "_consumers/warehouse.json", "day=2026-11-21/other"):
        place.replace(name, b"content", None)
    assert sorted(place.generations("day=*/cells.parquet")) == [NAME, "day=2026-11-21/cells.parquet"]


def test_of_many_who_replace_the_same_generation_one_succeeds(place):
    def attempt(number: int) -> bool:
        try:
            place.replace(NAME, f"number {number}".encode(), None)
        except ReplacedMeanwhileError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        succeeded = list(pool.map(attempt, range(8)))
    assert sum(succeeded) == 1
    assert place.read(NAME).content == f"number {succeeded.index(True)}".encode()


def test_two_who_write_the_same_content_are_told_apart(place):
    generation = place.replace(NAME, b"same", None)
    with pytest.raises(ReplacedMeanwhileError):
        place.replace(NAME, b"same", None)
    assert place.read(NAME).generation == generation


COUNT_UP = """
import sys
from pathlib import Path
from metering_dagster.billing_changes.stores.conditional_files import Folder
from metering_dagster.core.errors import ReplacedMeanwhileError

place = Folder(Path(sys.argv[1]))
for _ in range(50):
    while True:
        found = place.read("counter")
        try:
            place.replace("counter", str(int(found.content) + 1).encode(), found.generation)
            break
        except ReplacedMeanwhileError:
            continue
"""


def test_processes_that_count_in_one_file_lose_no_step(tmp_path: Path) -> None:
    Folder(tmp_path).replace("counter", b"0", None)
    counting = [subprocess.Popen([sys.executable, "-c", COUNT_UP, str(tmp_path)]) for _ in range(3)]
    assert [process.wait(PATIENCE_SECONDS) for process in counting] == [0, 0, 0]
    assert Folder(tmp_path).read("counter").content == b"150"


STAND_BEFORE_RENAME = """
import sys, time
from pathlib import Path
from metering_dagster.billing_changes.stores.conditional_files import Folder

def stand(self, target):
    print("written", flush=True)
    time.sleep(600)

Path.replace = stand
place = Folder(Path(sys.argv[1]))
found = place.read("day=2026-11-20/cells.parquet")
place.replace("day=2026-11-20/cells.parquet", b"new" * 100_000, found.generation)
"""


def test_a_kill_between_write_and_rename_leaves_the_old_file_and_nothing_in_the_way(tmp_path: Path) -> None:
    place = Folder(tmp_path)
    generation = place.replace(NAME, b"old", None)
    command = [sys.executable, "-c", STAND_BEFORE_RENAME, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "written\n"
        os.kill(process.pid, signal.SIGKILL)
    assert (place.read(NAME).content, place.read(NAME).generation) == (b"old", generation)
    place.replace(NAME, b"newer", generation)
    assert place.read(NAME).content == b"newer"
    assert [path.name for path in (tmp_path / NAME).parent.iterdir() if path.suffix == ".part"] == []


def test_generations_tell_contents_of_one_size_apart_under_a_clock_that_stands_still(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(
        "metering_dagster.billing_changes.stores.conditional_files.time",
        SimpleNamespace(time_ns=lambda: 1_800_000_000_000),
    )
    place = Folder(tmp_path)
    generations = [place.replace(NAME, b"0", None)]
    for number in range(1, 5):
        generations.append(place.replace(NAME, str(number).encode(), generations[-1]))
    assert len(set(generations)) == 5


def test_a_file_system_of_whole_seconds_tells_generations_apart(tmp_path: Path, monkeypatch):
    exact = os.utime

    def coarse(path: int, ns: tuple[int, int]) -> None:
        exact(path, ns=tuple(instant // 10**9 * 10**9 for instant in ns))

    monkeypatch.setattr("metering_dagster.billing_changes.stores.conditional_files.os.utime", coarse)
    place = Folder(tmp_path)
    one = place.replace(NAME, b"1", None)
    assert place.replace(NAME, b"2", one) != one


def test_a_folder_that_cannot_be_made_is_told_with_its_setting(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UnreachableError, match=r"BILLING_CHANGES_URI.*Check that it exists") as caught:
        Folder(tmp_path / "file" / "changes").replace(NAME, b"one", None)
    assert caught.value.retryable


def test_a_folder_in_the_place_of_a_file_is_told(tmp_path: Path):
    (tmp_path / NAME).mkdir(parents=True)
    with pytest.raises(UnreachableError, match="cannot be used"):
        Folder(tmp_path).read(NAME)


def test_a_bucket_that_is_not_there_is_told_and_not_tried_again(emulator: LocalStack):
    place = Bucket(s3_of(emulator), "s3://no-such-bucket/prefix")
    for use in (lambda: place.read(NAME), lambda: place.replace(NAME, b"", None), lambda: place.generations("day=*/c")):
        with pytest.raises(CallerError, match=r"s3://no-such-bucket/prefix.*Name an existing bucket"):
            use()


def test_an_endpoint_that_does_not_answer_is_told():
    client = boto3.client(
        "s3", endpoint_url="http://127.0.0.1:1", region_name="us-east-1", aws_access_key_id="local",
        aws_secret_access_key="local", config=Config(retries={"total_max_attempts": 1}, proxies={}),
    )  # fmt: skip
    with pytest.raises(UnreachableError, match=r"s3://bucket.*AWS_ENDPOINT_URL_S3"):
        Bucket(client, "s3://bucket").read(NAME)


def test_a_write_whose_answer_was_lost_and_that_the_sdk_sent_again_counts_as_ours(bucket: Bucket):
    sent = []

    def send_again(attempts: int, **_: object) -> int | None:
        sent.append(attempts)
        return 0 if attempts == 1 else None

    bucket.client.meta.events.register("needs-retry.s3.PutObject", send_again)
    generation = bucket.replace(NAME, b"ours", None)
    assert sent == [1, 2]
    assert (bucket.read(NAME).content, bucket.read(NAME).generation) == (b"ours", generation)


@pytest.mark.parametrize(("status", "code", "error"), [
    (403, "AccessDenied", CallerError), (400, "InvalidToken", CallerError), (403, "RequestTimeTooSkewed", CallerError),
    (503, "SlowDown", UnreachableError),
])  # fmt: skip
def test_a_refusal_of_the_look_after_a_lost_race_is_told_as_what_it_is(bucket: Bucket, status, code, error):
    bucket.replace(NAME, b"theirs", None)

    def refuse(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        return AWSResponse(request.url, status, {}, SimpleNamespace(stream=lambda: iter([body])))

    bucket.client.meta.events.register("before-send.s3.GetObject", refuse)
    with pytest.raises(error, match=rf"{code}.*unless this was a write whose response was lost"):
        bucket.replace(NAME, b"ours", None)


def test_a_bucket_without_a_prefix_is_used_from_its_root(bucket: Bucket):
    place = Bucket(bucket.client, f"s3://{bucket.bucket}")
    place.replace(NAME, b"one", None)
    assert list(place.generations("day=*/cells.parquet")) == [NAME]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_what_is_made_on_disk_is_its_owners_alone_whatever_the_umask(tmp_path: Path, umask):
    before = os.umask(umask)
    try:
        place = Folder(tmp_path / "deep" / "changes")
        for name in (NAME, "_looked.json", "_consumers/warehouse.json"):
            place.replace(name, b"2", place.replace(name, b"1", None))
    finally:
        os.umask(before)
    made = list((tmp_path / "deep").rglob("*"))
    assert {path.name for path in made} >= {"cells.parquet", "_looked.json", "warehouse.json", ".lock"}
    for path in (tmp_path / "deep", *made):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_folder_that_was_there_keeps_its_mode_and_a_file_that_was_there_becomes_private(tmp_path: Path):
    (tmp_path / "changes").mkdir(mode=0o755)
    place = Folder(tmp_path / "changes")
    (tmp_path / "changes" / "one").write_bytes(b"old")
    (tmp_path / "changes" / ".one.part").write_bytes(b"a killed writer's")
    (tmp_path / "changes" / ".one.part").chmod(0o644)
    found = place.read("one")
    assert found is not None
    place.replace("one", b"new", found.generation)
    assert (tmp_path / "changes").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "changes" / "one").stat().st_mode & 0o777 == 0o600
