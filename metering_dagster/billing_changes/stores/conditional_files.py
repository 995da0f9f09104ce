"""Small files in a folder or a bucket, each replaced as a whole on the condition that it is the file that was read.

Belongs here: generations, conditional replacing, error messages of a place. Does not: the files' content (day_files).

A generation is a text that changes whenever a file is replaced by other content. A missing file has the generation
None.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from metering_dagster.core.errors import CallerError, MeteringError, ReplacedMeanwhileError, UnreachableError

_SECOND = 1_000_000_000
_REFUSED = frozenset({
    "AccessDenied", "AllAccessDisabled", "AuthorizationHeaderMalformed", "ExpiredToken", "InvalidAccessKeyId",
    "InvalidBucketName", "InvalidToken", "NoSuchBucket", "PermanentRedirect", "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
})  # fmt: skip
"""Error codes of S3 that a retry does not mend."""
_LOST_RACE = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey"})
"""Error codes of S3 for a conditional write that came too late; the last one after a deletion of the object."""

_WRITE = "write"
"""The metadata key of an object's write. It tells two writers of equal content apart."""


@dataclass(frozen=True)
class StoredFile:
    """File as it was read."""

    content: bytes
    generation: str


class FileStore(Protocol):
    """Place of files. Its methods raise `UnreachableError`, or `CallerError` where a retry does not help."""

    def read(self, name: str) -> StoredFile | None:
        """Read the whole file of this name; None if there is none."""

    def replace(self, name: str, content: bytes, generation: str | None) -> str:
        """Replace the file of this generation by the content; return the new generation.

        Raises `ReplacedMeanwhileError`, and leaves the file alone, if its generation is another one by now.
        """

    def generations(self, pattern: str) -> dict[str, str]:
        """Return the generations of files whose names match, such as `day=*/cells.parquet`, without reading them."""


class Folder:
    """Folder of this machine. Files appear whole and survive a power cut; a kill leaves the old file or the new one.

    Only the owner can read what is made here, whatever the umask: it holds costs and names of customers. An existing
    folder keeps its mode.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def read(self, name: str) -> StoredFile | None:
        """See `FileStore`."""
        with self._explained(), _if_there(), (self.root / name).open("rb") as file:
            return StoredFile(file.read(), _generation(os.fstat(file.fileno())))
        return None

    def replace(self, name: str, content: bytes, generation: str | None) -> str:
        """See `FileStore`."""
        path = self.root / name
        with self._explained():
            _make(path.parent)
            with _locked(path.parent):
                found = _stat(path)
                if (_generation(found) if found else None) != generation:
                    raise _replaced(str(path))
                part = path.with_name(f".{path.name}.part")  # one of a killed writer is replaced: we hold the lock
                part.unlink(missing_ok=True)  # it might have another mode
                with open(part, "xb", opener=_private) as file:
                    file.write(content)
                    file.flush()
                    _date(file.fileno(), found.st_mtime_ns if found else 0)
                    os.fsync(file.fileno())
                    written = _generation(os.fstat(file.fileno()))
                part.replace(path)
                _sync(path.parent)
                return written

    def generations(self, pattern: str) -> dict[str, str]:
        """See `FileStore`."""
        with self._explained():
            found = [(path, _stat(path)) for path in self.root.glob(pattern)]
        return {path.relative_to(self.root).as_posix(): _generation(stat) for path, stat in found if stat}

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # a ValueError: no file system has a path like this
            raise UnreachableError(
                f"The folder {self.root} (BILLING_CHANGES_URI) cannot be used: {error}. Its files were left as they "
                "were. Check that it exists, and its permissions."
            ) from error


class Bucket:
    """Prefix in a bucket of S3. An object's ETag is its generation."""

    def __init__(self, client: Any, uri: str) -> None:
        """Split `uri`, which is `s3://bucket/prefix`."""
        self.client, self.uri = client, uri.rstrip("/")
        self.bucket, _, self.prefix = self.uri.removeprefix("s3://").partition("/")

    def read(self, name: str) -> StoredFile | None:
        """See `FileStore`."""
        with self._explained():
            stored, _ = self._get(name)
        return stored

    def replace(self, name: str, content: bytes, generation: str | None) -> str:
        """See `FileStore`."""
        condition = {"IfNoneMatch": "*"} if generation is None else {"IfMatch": generation}
        write = uuid4().hex
        with self._explained():
            try:
                put = self.client.put_object(
                    Bucket=self.bucket, Key=self._key(name), Body=content, Metadata={_WRITE: write}, **condition
                )
                return str(put["ETag"])
            except self.client.exceptions.ClientError as error:
                if error.response.get("Error", {}).get("Code") not in _LOST_RACE:
                    raise
            found, written_by = self._get(name)
        if found is not None and written_by == write:
            return found.generation  # our own write: its response was lost, and the SDK sent the request again
        raise _replaced(f"{self.uri}/{name}")

    def generations(self, pattern: str) -> dict[str, str]:
        """See `FileStore`."""
        start = self._key(pattern.partition("*")[0])
        with self._explained():
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=start)
            found = {self._name(one["Key"]): one["ETag"] for page in pages for one in page.get("Contents", [])}
        return {name: generation for name, generation in found.items() if fnmatchcase(name, pattern)}

    def _get(self, name: str) -> tuple[StoredFile | None, str | None]:
        """Read the object of this name, and the id of its write."""
        try:
            found = self.client.get_object(Bucket=self.bucket, Key=self._key(name))
        except self.client.exceptions.NoSuchKey:
            return None, None
        return StoredFile(found["Body"].read(), found["ETag"]), found["Metadata"].get(_WRITE)

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    def _name(self, key: str) -> str:
        return key.removeprefix(f"{self.prefix}/") if self.prefix else key

    @contextmanager
    def _explained(self) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise _explain(error, self.uri) from error


def _explain(error: Exception, uri: str) -> MeteringError:
    from botocore.exceptions import ClientError

    from metering_dagster.core.aws.dynamodb import is_connection_error
    from metering_dagster.core.masking import mask_text

    words = (
        f"{uri} (BILLING_CHANGES_URI) cannot be used: {mask_text(str(error)).rstrip('.')}. Its files were left as they "
        "were, unless this was a write whose response was lost."
    )
    if isinstance(error, ClientError):
        if error.response.get("Error", {}).get("Code") in _REFUSED:
            return CallerError(f"{words} Name an existing bucket, renew the credentials, or allow s3:GetObject, "
                               "s3:PutObject and s3:ListBucket. Check this machine's clock as well.")  # fmt: skip
        return UnreachableError(f"{words} The next attempt may succeed.")
    if is_connection_error(error):
        return UnreachableError(f"{words} Check the network and AWS_ENDPOINT_URL_S3.")
    return CallerError(f"{words} Set or renew the credentials and the Region.")


def _replaced(place: str) -> ReplacedMeanwhileError:
    return ReplacedMeanwhileError(
        f"{place} was replaced by another run or program since it was read. It was left as the other wrote it. The "
        "next attempt reads it again."
    )


def _generation(stat: os.stat_result) -> str:
    return f"{stat.st_mtime_ns:x}-{stat.st_size:x}"


def _date(file: int, after: int) -> None:
    """Give an open file a time that is later than that of the file it replaces, whatever the clock says."""
    instant = max(time.time_ns(), after + 1)
    os.utime(file, ns=(instant, instant))
    if os.fstat(file).st_mtime_ns <= after:  # file systems exist that keep whole seconds only
        os.utime(file, ns=(after + _SECOND, after + _SECOND))


def _stat(path: Path) -> os.stat_result | None:
    with _if_there():
        return path.stat()
    return None


@contextmanager
def _if_there() -> Iterator[None]:
    """Give a block that ends without an error where its file is missing."""
    try:
        yield
    except FileNotFoundError:
        return


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder among all processes of this machine, for one writer at a time; a killed writer's lock is free."""
    with open(folder / ".lock", "ab", opener=_private) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(folder: Path) -> None:
    """Make the folder so that it survives a power cut."""
    if folder.is_dir():
        return
    _make(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    _sync(folder.parent)


def _private(path: str, flags: int) -> int:
    """Open a file; a new one is readable for its owner alone."""
    return os.open(path, flags, 0o600)


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
