"""What can go wrong and who must act: one family of errors with one root.

Belongs here: errors that a person reads, each saying what happened, where, what was left untouched and what to do.
Does not: row and group faults, which are states of the tables and no errors; Dagster's own `Failure`.
"""

from metering_dagster.core.masking import printable


class MeteringError(Exception):
    """The root. `retryable` tells whether the same attempt may succeed a little later.

    Its message is printable, whatever went into it: codes of services, names of files, what a server said.
    """

    retryable = False
    has_lines = False
    """Whether line ends in the message are its own."""

    def __str__(self) -> str:
        """Return the message, in one line unless it has lines of its own."""
        said = super().__str__()
        return "\n".join(map(printable, said.split("\n"))) if self.has_lines else printable(said)


class SettingsError(MeteringError):
    """A setting is missing or malformed; nothing was read or written."""


class TableError(MeteringError):
    """A table, its key schema or an index is not as this project needs it."""


class ItemRefusedError(TableError):
    """DynamoDB refuses a request about single items of a table that is as it must be; others may go through."""


class CallerError(MeteringError):
    """AWS refuses whoever is calling: credentials, permissions, Region. Trying again does not help."""


class UnreachableError(MeteringError):
    """AWS does not answer, or answers that it is overloaded; the next tick tries again."""

    retryable = True


class HourRefusedError(MeteringError):
    """This hour must not be metered now; the message says from when on it can be."""


class UnknownShardError(MeteringError):
    """There is no such shard of the age-out; nothing was read or written."""


class LeftPendingError(MeteringError):
    """The run went through, but something is still to be done; the message counts and names it."""


class UndeliveredError(MeteringError):
    """An alert was not taken by everybody who should hear of it; it waits, and the next tick sends it again."""

    retryable = True


class DatabaseError(MeteringError):
    """The billing database refuses: who is calling, or a table or column that is not as this project needs it."""


class DatabaseAwayError(MeteringError):
    """The billing database does not answer, or not in time; the next look tries again."""

    retryable = True


class FeedRefusedError(MeteringError):
    """A request of the billing-changes feed that makes no sense; the message says what does."""


class ReplacedMeanwhileError(MeteringError):
    """Somebody else has replaced what was to be replaced; whoever reads it again and tries again succeeds."""

    retryable = True


class DamagedFileError(MeteringError):
    """A file of ours is not what we wrote; the message names it and says how it is made anew."""
