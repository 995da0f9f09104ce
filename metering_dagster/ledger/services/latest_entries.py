"""The latest of the ledger's entries of each group, as Arrow tables."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

GROUP = ["license_arn", "customer_aws_account_id", "dimension"]


def in_order_of_time(table: "pa.Table") -> "pa.Table":
    """Return the entries by the instant at which they were told; those of a version that did not say it are
    the oldest.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    instants = table["at"].cast(pa.int64())
    return table.take(pc.sort_indices(pc.fill_null(instants, 0)))


def last_of_each_group(table: "pa.Table") -> "pa.Table":
    """Return the last entry of each group; `table` is in the order of time."""
    import pyarrow as pa

    numbered = table.append_column("number", pa.array(range(table.num_rows), pa.int64()))
    latest = numbered.group_by(GROUP).aggregate([("number", "max")])
    return table.take(latest["number_max"])
