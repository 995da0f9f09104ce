"""The columns of the billing tables and of `billing_changes`, as Dagster shows them on the assets.

Belongs here: names, types and descriptions. Does not: reading or checking anything.
"""

import dagster as dg

_SCOPE = dg.TableColumn("scope_id", "string", description="The tenant.")
_DATE = dg.TableColumn("date", "date", description="The day of the costs.")
_AMOUNT = dg.TableColumn("amount", "decimal(20,6)")
_CURRENCY = dg.TableColumn("currency", "string")

CLOUD_BILLING_DAILY = dg.TableSchema([
    _SCOPE,
    _DATE,
    _AMOUNT,
    _CURRENCY,
    dg.TableColumn("fetched_at", "datetime", description="When the row was last ingested: it advances at each ingest."),
    dg.TableColumn("updated_at", "datetime", description="When the row was first ingested."),
])  # fmt: skip

COST_FACTS = dg.TableSchema([
    _SCOPE,
    dg.TableColumn("integration_id", "string"),
    dg.TableColumn("resource_group", "string", description="NULL where the cost belongs to no resource group."),
    dg.TableColumn("service", "string"),
    _DATE,
    _AMOUNT,
    _CURRENCY,
    dg.TableColumn("fetched_at", "datetime", description="When the row was first ingested."),
    dg.TableColumn("updated_at", "datetime", description="When the row was last ingested: it advances at each ingest."),
])  # fmt: skip

BILLING_CHANGES = dg.TableSchema([
    dg.TableColumn("date", "date", description="The day of the costs: the partition."),
    dg.TableColumn("subscription_id", "string"),
    dg.TableColumn("external_id", "string", description="For a resource group: its name."),
    dg.TableColumn("name", "string"),
    dg.TableColumn("provider", "string"),
    dg.TableColumn("integration_id", "string"),
    dg.TableColumn("is_resource_group", "bool", description="False for a tenant."),
    dg.TableColumn(
        "last_ingested_at", "timestamp[us, UTC]",
        description="The later one of both tables' stamps; of a vanished cell the last one seen.",
    ),
    dg.TableColumn("signals", "string", description="The signals that changed at its last report, by commas."),
    dg.TableColumn(
        "amount", "decimal(38,6)",
        description="What the cell costs: the daily row's amount, else the facts' sum. Empty if currencies differ.",
    ),
    dg.TableColumn("amount_before", "decimal(38,6)", description="What the cell cost in the previous report."),
    dg.TableColumn("currency", "string", description="Such as EUR; EUR+USD where there are several."),
    dg.TableColumn(
        "touched", "bool",
        description="True for a cell ingested again since the previous report, or not in it. Another run of the day "
        "without new ingests resets it: use reported_at, or a named consumer, to find what is new to you.",
    ),
    dg.TableColumn("changed", "bool", description="True where an amount differs from the previous report."),
    dg.TableColumn("vanished", "bool", description="True for a cell reported before, and now in neither table."),
    dg.TableColumn(
        "reported_at", "timestamp[us, UTC]",
        description="When this state of the cell was first reported, by the database's clock; another run of the day "
        "keeps it. Rows new to you have a later one than the latest you have seen of that day.",
    ),
    dg.TableColumn("amounts", "string", description="JSON: the exact sums by currency."),
    dg.TableColumn("amounts_before", "string", description="JSON: those of the previous report; empty if not in it."),
    *(
        column
        for side, table in (("daily", "the daily table"), ("facts", "the facts"))
        for column in (
            dg.TableColumn(f"{side}_rows", "int", description=f"The cell's rows in {table}; empty if none."),
            dg.TableColumn(f"{side}_unstamped", "int", description="The number of these rows without a stamp."),
            dg.TableColumn(f"{side}_newest", "timestamp[us, UTC]", description="The latest stamp of these rows."),
            dg.TableColumn(f"{side}_stamps", "decimal(38,0)", description="The sum of their stamps, in µs since 1970."),
            dg.TableColumn(f"{side}_amounts", "string", description="JSON: their exact sums by currency."),
        )
    ),
])  # fmt: skip
