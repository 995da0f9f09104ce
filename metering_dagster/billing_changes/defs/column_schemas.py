"""The columns of the billing tables and of `billing_changes` as Dagster shows them on the assets.

Belongs here: names, types and meanings for people. Does not: reading or checking anything.
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
    dg.TableColumn("fetched_at", "datetime", description="When the row was last ingested: this tells of an ingest."),
    dg.TableColumn("updated_at", "datetime", description="Stays as it was at the first ingest."),
])  # fmt: skip

COST_FACTS = dg.TableSchema([
    _SCOPE,
    dg.TableColumn("integration_id", "string"),
    dg.TableColumn("resource_group", "string", description="NULL where a cost belongs to none."),
    dg.TableColumn("service", "string"),
    _DATE,
    _AMOUNT,
    _CURRENCY,
    dg.TableColumn("fetched_at", "datetime", description="Stays as it was at the first ingest."),
    dg.TableColumn("updated_at", "datetime", description="When the row was last ingested: this tells of an ingest."),
])  # fmt: skip

BILLING_CHANGES = dg.TableSchema([
    dg.TableColumn("date", "date", description="The day of the costs: the partition."),
    dg.TableColumn("subscription_id", "string"),
    dg.TableColumn("external_id", "string", description="Of a resource group: its name."),
    dg.TableColumn("name", "string"),
    dg.TableColumn("provider", "string"),
    dg.TableColumn("integration_id", "string"),
    dg.TableColumn("is_resource_group", "bool", description="Else it is a tenant."),
    dg.TableColumn(
        "last_ingested_at", "timestamp[us, UTC]",
        description="The later one of both tables' stamps; of a vanished cell the last one that was seen.",
    ),
    dg.TableColumn("signals", "string", description="Which tables told of its present state, by commas."),
    dg.TableColumn(
        "amount", "decimal(38,6)",
        description="What the cell costs: the daily row's amount, else the facts' sum. Empty if currencies differ.",
    ),
    dg.TableColumn("amount_before", "decimal(38,6)", description="The same by the report before."),
    dg.TableColumn("currency", "string", description="Such as EUR; EUR+USD where there are several."),
    dg.TableColumn(
        "touched", "bool",
        description="Ingested again since the report before, or not in it. A run of the day again with nothing new "
        "says false: go by reported_at, or by a named consumer, for what is new to you.",
    ),
    dg.TableColumn("changed", "bool", description="An amount of either table moved since the report before."),
    dg.TableColumn("vanished", "bool", description="Reported before, and now in neither table."),
    dg.TableColumn(
        "reported_at", "timestamp[us, UTC]",
        description="When this state of the cell was first reported, by the database's clock; a run of the day again "
        "keeps it. What is new to you has a later one than the latest you have seen of that day.",
    ),
    dg.TableColumn("amounts", "string", description="JSON: the exact sums by currency."),
    dg.TableColumn("amounts_before", "string", description="JSON: the same by the report before; empty if not in it."),
    *(
        column
        for side, table in (("daily", "the daily table"), ("facts", "the facts"))
        for column in (
            dg.TableColumn(f"{side}_rows", "int", description=f"The cell's rows in {table}; empty if none."),
            dg.TableColumn(f"{side}_unstamped", "int", description="Those of them without a stamp."),
            dg.TableColumn(f"{side}_newest", "timestamp[us, UTC]", description="Their latest stamp."),
            dg.TableColumn(f"{side}_stamps", "decimal(38,0)", description="Their stamps in µs since 1970, added up."),
            dg.TableColumn(f"{side}_amounts", "string", description="JSON: their exact sums by currency."),
        )
    ),
])  # fmt: skip
