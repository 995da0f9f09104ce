"""The columns of the tables as Dagster shows them on the assets (domain: the tables).

Belongs here: names, types and meanings for people. Does not: reading or checking anything.
"""

import dagster as dg

_LICENSE = dg.TableColumn("licenseArn", "string", description="HASH. A product code where the product is a legacy one.")
_ACCOUNT = dg.TableColumn("customerAWSAccountId", "string", description="The buyer's account: digits.")
_DIMENSION = dg.TableColumn("dimension", "string", description="What is metered, as the catalog names it.")
_ALLOCATIONS = dg.TableColumn("usageAllocations", "list", description="Optional; by tag set; adds up to the quantity.")
_CUSTOMER = dg.TableColumn("customerIdentifier", "string", description="Optional; of legacy products.")

RAW_USAGE = dg.TableSchema([
    _LICENSE,
    dg.TableColumn("customerAWSAccountId_dimension_timestamp", "string", description="RANGE: account#dimension#time."),
    _ACCOUNT,
    _DIMENSION,
    dg.TableColumn("timestamp", "string", description="YYYY-MM-DDTHH:MM:SS, UTC."),
    dg.TableColumn("quantity", "number", description="At most 6 decimals."),
    _ALLOCATIONS,
    _CUSTOMER,
    dg.TableColumn("meteringPending", "string", description="The row's hour while it waits; absent once it is final."),
    dg.TableColumn("meteringStatus", "string", description="How it ended."),
    dg.TableColumn("meteringStatusReason", "string", description="Why."),
])  # fmt: skip

AGGREGATED_USAGE = dg.TableSchema([
    _LICENSE,
    dg.TableColumn("account_dimension_hour", "string", description="RANGE: account#dimension#hour."),
    _ACCOUNT,
    _DIMENSION,
    dg.TableColumn("hourBucket", "string", description="YYYY-MM-DDTHH, UTC."),
    dg.TableColumn("quantity", "number", description="The exact sum of the group's rows."),
    _ALLOCATIONS,
    _CUSTOMER,
    dg.TableColumn("meteringPending", "string", description="The hour while it is not sent; absent once it is final."),
    dg.TableColumn("meteringStatus", "string", description="What the service answered, or RejectedClientSide."),
    dg.TableColumn("meteringStatusReason", "string", description="Why."),
    dg.TableColumn("meteringRecordId", "string", description="The service's receipt."),
])  # fmt: skip

SUBSCRIBERS = dg.TableSchema([
    _LICENSE,
    dg.TableColumn("customerAWSAccountId", "string", description="RANGE. The buyer's account."),
    dg.TableColumn("productCode", "string", description="Which product the license is of."),
    dg.TableColumn("subscriptionStatus", "string", description="active, deprovisioning or inactive."),
    dg.TableColumn("deprovisioningPendingFlag", "string", description="1 while its flush window is open."),
    dg.TableColumn("deprovisioningExpiry", "string", description="The end of that window."),
])  # fmt: skip
