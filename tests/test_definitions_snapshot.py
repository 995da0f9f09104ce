"""What Dagster shows changes only knowingly: `make snapshot` renews the file, and the diff is read."""

from tests.definitions_snapshot import SNAPSHOT, taken


def test_what_dagster_shows_is_as_it_was():
    assert taken().splitlines() == SNAPSHOT.read_text().splitlines(), "run `make snapshot` and read the diff"
