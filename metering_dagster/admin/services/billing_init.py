"""What `init` says of the billing database: what is missing there, and the statements that would make it.

Belongs here: looking, and the words. Does not: comparing (billing.shape), running any statement: we only ever read.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from metering_dagster.settings import Settings

if TYPE_CHECKING:
    from metering_dagster.billing_changes.stores.schema_check import MissingSchema

NOT_NAMED = "BILLING_DATABASE_URL is not set: the billing tables were not looked at."


@dataclass(frozen=True)
class BillingTables:
    """The billing database as it is."""

    place: str
    """Host, port and database, without user and password."""
    missing: "MissingSchema"
    ddl: list[str]
    """Statements in the database's dialect that make what is missing, for a person to run."""
    other_charsets: list[str]
    """Columns that are not in utf8mb4, in words: names with accents may be missed there."""

    @property
    def needed(self) -> list[str]:
        """Return what nothing works without, in words."""
        return self.missing.needed

    def words(self) -> str:
        """For people: what is said of it, without the statements."""
        lines = [f"BILLING_DATABASE_URL ({self.place}): {'not as needed' if self.needed else 'there, as needed'}"]
        lines += [f"  DIFFERS {fault}" for fault in self.needed]
        lines += [f"  advised, for speed: an index on {index}" for index in self.missing.advised]
        lines += [f"  advised, so that no name is missed: utf8mb4 for {column}" for column in self.other_charsets]
        if self.ddl:
            lines.append("  Nothing was changed. To be run by you, if you want it:")
        return "\n".join(lines)

    def sql(self, before: str = "") -> str:
        """Return the statements under these words and its own: text that can be run as it is, since all words are
        comments.
        """
        said = [*before.splitlines(), *self.words().splitlines()]
        return "\n".join([*(f"-- {line}" for line in said), *self.ddl])

    def json(self) -> dict[str, object]:
        """For programs."""
        return {
            "place": self.place,
            "missing": self.needed,
            "advised_indexes": self.missing.advised,
            "other_charsets": self.other_charsets,
            "ddl": self.ddl,
        }


def look_at_billing(settings: Settings) -> BillingTables | None:
    """Return what the billing database lacks; None if none is named. Raises `DatabaseError` or `DatabaseAwayError`."""
    if settings.billing_database_url is None:
        return None
    from metering_dagster.billing_changes.stores.database import Database

    database = Database(settings.billing_database_url)
    try:
        missing = database.missing()
        return BillingTables(database.place, missing, missing.ddl(database.dialect), database.other_charsets())
    finally:
        database.close()
