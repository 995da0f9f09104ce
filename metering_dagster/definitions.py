"""The whole project as Dagster sees it: the only place that knows every room.

`build_defs()` makes it from the environment; tests and second deployments swap parts of it.
"""

import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import dagster as dg

from metering_dagster.alerting.defs.sensors import run_failures_sensor
from metering_dagster.billing_changes.defs import assets as billing_room
from metering_dagster.billing_changes.defs.io_manager import BillingChangesIO
from metering_dagster.billing_changes.defs.sensors import billing_changes_sensor
from metering_dagster.billing_changes.services.deployment import Billing
from metering_dagster.core.dagster_partitions import FIRST_HOUR, daily, hourly
from metering_dagster.core.dagster_previews import used_knowingly
from metering_dagster.core.errors import SettingsError
from metering_dagster.expiry.defs.assets import age_out, expired_usage
from metering_dagster.expiry.defs.schedules import age_out_schedules
from metering_dagster.licenses.defs.event_job import apply_marketplace_events
from metering_dagster.licenses.defs.event_sensor import marketplace_events_sensor
from metering_dagster.licenses.defs.finalize_job import finalize_deprovisioned
from metering_dagster.licenses.defs.flush_job import flush_deprovisioning
from metering_dagster.licenses.defs.flush_sensors import license_sensors
from metering_dagster.metering.defs.assets import external_assets, hourly_assets, meter_hour, mode_of
from metering_dagster.metering.defs.schedules import meter_schedules
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.reporting.defs.assets import metering_report, refresh_report, report_schedule
from metering_dagster.settings import Settings, read_settings


def build_defs(
    settings: Settings | None = None,
    resources: Mapping[str, Any] | None = None,
    first_hour: datetime = FIRST_HOUR,
) -> dg.Definitions:
    """Return the definitions for these settings (default: the environment), with these resources in the place of ours
    and with partitions that begin with this hour.

    An empty environment loads: what is missing is told by the run that needs it. Raises `SettingsError` for a malformed
    setting.
    """
    if settings is None:
        settings = read_settings(os.environ)
    _check_cron(settings.cron)
    assets = hourly_assets(settings, hourly(first_hour))
    report = metering_report(mode_of(settings), daily(first_hour))
    expired = expired_usage(settings)
    billing_changes = billing_room.billing_changes(settings, daily(first_hour))
    made = {"metering": Deployment(settings), "billing": Billing(settings), **(resources or {})}
    with used_knowingly():  # the page of an asset leads to its code
        materialized = dg.with_source_code_references([*assets, report, expired, billing_changes])
    return dg.Definitions(
        assets=[
            *external_assets(settings),
            *billing_room.external_assets(settings),
            *materialized,
        ],
        jobs=[
            meter_hour,
            refresh_report,
            age_out,
            apply_marketplace_events,
            flush_deprovisioning,
            finalize_deprovisioned,
            billing_room.refresh_billing_changes,
        ],
        schedules=[
            *meter_schedules(settings, first_hour),
            report_schedule(settings),
            *age_out_schedules(settings),
        ],
        sensors=[
            marketplace_events_sensor(settings),
            *license_sensors(settings, flush_deprovisioning, finalize_deprovisioned),
            billing_changes_sensor(settings, daily(first_hour)),
            run_failures_sensor(settings, first_hour),
        ],
        resources={"billing_changes_io": BillingChangesIO(billing=made["billing"]), **made},
        executor=dg.in_process_executor,
    )


def _check_cron(cron: str) -> None:
    """Dagster's own words about it name a schedule, and not the setting."""
    try:
        dg.ScheduleDefinition(name="checked", job_name="none", cron_schedule=cron)
    except dg.DagsterInvalidDefinitionError:
        raise SettingsError(
            f"Malformed settings, nothing was read or written: METERING_CRON={cron!r}: must be a cron expression "
            "of five fields, such as 0 * * * *, that comes to pass."
        ) from None


defs = build_defs()
