"""The `metering-dagster` command.

Belongs here: arguments, what is printed, exit codes: 0 good, 1 what was checked is not good, 2 it could not be done.
Does not: doing it.
"""

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from metering_dagster.core.errors import MeteringError, SettingsError
from metering_dagster.settings import SettingsWarning, read_settings

if TYPE_CHECKING:
    from metering_dagster.devstack.demo_ui import Showing
    from metering_dagster.devstack.dev import Running

_OVER = "\r\x1b[K"
"""Begins a line over the one that stands."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def main(context: click.Context) -> None:
    """Meter SaaS usage to AWS Marketplace, hour by hour."""
    context.with_resource(_warnings_in_words())
    # requirements.lock pins Dagster: which of its features are in beta is no news for whoever runs a command.
    warnings.filterwarnings("ignore", message=r".* is currently in (beta|preview), and may have breaking changes")


_PORT = click.option(
    "--port", type=click.IntRange(1, 65535), help="Of the UI, on loopback. Default: 3000, or the next free."
)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the balance as JSON on standard output.")
@click.option("--ui", "is_ui", is_flag=True, help="Open Dagster on what the last demo left, until Ctrl-C.")
@_PORT
def demo(as_json: bool, is_ui: bool, port: int | None) -> None:
    """Meter a sample day on an embedded stack, and check that nothing is billed twice or lost; then ingest some days of
    sample billing data again, and check that those cells are reported and no others.

    Needs no AWS account. METERING_NOW pins the clock of the metering to an instant of the past. Each demo deletes what
    the last one left in .metering/demo and .dagster_home/demo.
    """
    from metering_dagster.cli import demo_output
    from metering_dagster.devstack import demo as rehearsal
    from metering_dagster.devstack.demo_ui import show
    from metering_dagster.devstack.home import project_root

    if is_ui and as_json:
        raise click.UsageError("Name either --ui or --json.")
    if port is not None and not is_ui:
        raise click.UsageError("--port goes with --ui.")
    with _exit_2_where_it_fails("demo"):
        if is_ui:
            show(
                project_root(), os.environ, port,
                ready=lambda showing: click.echo(_as_guide(showing)), say=lambda words: click.echo(words, err=True),
            )  # fmt: skip
            return
        pinned = os.environ.get("METERING_NOW")
        now = _pinned(pinned) if pinned else rehearsal.rehearsal_instant(datetime.now(UTC))
        done = rehearsal.rehearse(project_root(), now, _progress)
    click.echo(json.dumps(demo_output.demo_json(done), indent=2) if as_json else demo_output.demo_text(done))
    sys.exit(0 if done.is_good else 1)


@main.command()
@_PORT
def dev(port: int | None) -> None:
    """Dagster with its schedules running, on an embedded stack where usage and billing data keep arriving.

    Needs no AWS account. Its state is kept in .metering/dev and .dagster_home/dev, for the next time. METERING_CRON
    says when schedules tick (default: every minute). Ctrl-C ends it.
    """
    from metering_dagster.devstack.dev import develop
    from metering_dagster.devstack.home import project_root

    with _exit_2_where_it_fails("dev"):
        develop(
            project_root(), os.environ, port,
            ready=lambda running: click.echo(_as_signpost(running)), say=lambda words: click.echo(words, err=True),
        )  # fmt: skip


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print what came of each table as JSON on standard output.")
def init(as_json: bool) -> None:
    """Create the tables and indexes that are missing, and say what differs in those that exist.

    Nothing that exists is changed. Of the billing tables (BILLING_DATABASE_URL) nothing is made either: it prints the
    statements for what is missing, all else as comments, so that its output can be run as SQL. Exits 1 where something
    differs that a person has to change.
    """
    from metering_dagster.admin.services.billing_init import NOT_NAMED, look_at_billing
    from metering_dagster.admin.services.init import bring_up
    from metering_dagster.cli import admin_output
    from metering_dagster.core.aws.clients import Clients

    with _exit_2_where_it_fails("init"):
        settings = read_settings(os.environ)
        # Who names a billing database alone wants to know of that alone.
        names_tables = any((settings.usage_table, settings.aggregated_usage_table, settings.subscribers_table))
        is_all = settings.billing_database_url is None or names_tables
        reports = bring_up(settings, Clients(settings), _progress) if is_all else []
        billing = look_at_billing(settings)
    if as_json:
        click.echo(json.dumps(admin_output.init_json(reports) | {"billing": billing and billing.json()}, indent=2))
    else:
        said = admin_output.init_text(reports) if is_all else ""
        click.echo(billing.sql(said) if billing else f"{said}\n{NOT_NAMED}")
    sys.exit(1 if any(report.differs for report in reports) or (billing and billing.needed) else 0)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON on standard output.")
@click.option(
    "--days", metavar="N", type=click.IntRange(0, 400), default=2, show_default=True,
    help="How far to look back beyond what can still be billed; each hour costs two COUNT queries.",
)  # fmt: skip
def status(as_json: bool, days: int) -> None:
    """What is pending, hour by hour, and until when it can be billed.

    Reads only. Exits 1 where something pending is past its window, or will be within an hour.
    """
    from metering_dagster.admin.services.status import place, survey
    from metering_dagster.cli import admin_output
    from metering_dagster.metering.services.deployment import Deployment

    with _exit_2_where_it_fails("status"):
        deployment = Deployment(read_settings(os.environ))
        where = place(deployment)
        found = survey(deployment, days, _progress)
    click.echo(
        json.dumps(admin_output.status_json(where, found), indent=2)
        if as_json
        else admin_output.status_text(where, found)
    )
    sys.exit(0 if found.is_good else 1)


@main.command()
@click.option("--since", metavar="T", help="Ask the database for what was ingested from T on: ISO-8601 with its zone.")
@click.option("--horizon", metavar="N", help="With --since: how many days back to look, 1 to 92.")
@click.option("--consumer", metavar="NAME", help="Ask for what was reported and NAME has not acknowledged yet.")
@click.option("--ack", metavar="TOKEN", help="With --consumer: what came with this token is taken.")
@click.option("--json", "as_json", is_flag=True, help="Print rows and meta as JSON on standard output.")
@click.option("--csv", "as_csv", is_flag=True, help="Print rows as CSV on standard output, meta as JSON on the other.")
def changes(
    *, since: str | None, horizon: str | None, consumer: str | None, ack: str | None, as_json: bool, as_csv: bool
) -> None:
    """Which cells (subscription, day) of cloud-billing data were ingested again, to re-pull those alone.

    Whoever asks by --since keeps the time: the complete_until of an answer is the next T. For a named --consumer it is
    kept here: the same comes again until its token is acknowledged. The meta block says what an answer does not tell.
    Exits 1 where the file of a day is damaged: the other days are given, and that one comes once it is mended.
    """
    if (since is None) == (consumer is None):
        raise click.UsageError("Name either --since or --consumer.")
    if horizon is not None and since is None:
        raise click.UsageError("--horizon goes with --since: a consumer is given whatever was reported.")
    if ack is not None and consumer is None:
        raise click.UsageError("--ack goes with --consumer.")
    if as_json and as_csv:
        raise click.UsageError("Name either --json or --csv.")
    from metering_dagster.billing_changes import feed
    from metering_dagster.cli import changes_output

    with _exit_2_where_it_fails("changes"):
        if consumer is not None and ack is not None:
            moved = feed.acknowledge(consumer, ack)
            click.echo(changes_output.acknowledged(consumer, ack, moved, as_json=as_json))
            return
        answer = feed.new_for(consumer) if consumer is not None else feed.changes(str(since), horizon_days=horizon)
    if as_csv:
        click.echo(changes_output.answer_csv(answer), nl=False, color=True)  # to the letter, escapes included
        click.echo(changes_output.meta_text(answer), err=True)
    else:
        click.echo(changes_output.answer_json(answer) if as_json else changes_output.answer_text(answer))
        for damage in answer.meta.damaged:
            click.echo(f"metering-dagster changes: {damage}", err=True)
    sys.exit(1 if answer.meta.damaged else 0)


@contextmanager
def _warnings_in_words() -> Iterator[None]:
    """What is warned of settings is for whoever runs a command: without the line of code that noticed it."""
    before = warnings.formatwarning

    def in_words(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> str:
        if issubclass(category, SettingsWarning):
            return f"metering-dagster: {message}\n"
        return before(message, category, *where, **more)

    warnings.formatwarning = in_words
    try:
        yield
    finally:
        warnings.formatwarning = before


@contextmanager
def _exit_2_where_it_fails(command: str) -> Iterator[None]:
    """What cannot be done ends in its own words, on a line of their own."""
    try:
        yield
    except MeteringError as error:
        click.echo(f"{_OVER if sys.stderr.isatty() else ''}metering-dagster {command}: {error}", err=True)
        sys.exit(2)


def _pinned(text: str) -> datetime:
    from metering_dagster.core.masking import shown_value
    from metering_dagster.settings import past_instant

    try:
        return past_instant(text)
    except ValueError as error:
        raise SettingsError(f"METERING_NOW={shown_value(text)} {error}. Nothing was started.") from None


def _progress(what: str, done: int, total: int) -> None:
    """On a terminal one line that moves, elsewhere one line a step; always on standard error."""
    if sys.stderr.isatty():
        click.echo(f"{_OVER}[{done}/{total}] {what}", err=True, nl=done == total and total > 1)
    else:
        click.echo(f"[{done}/{total}] {what}", err=True)


def _as_signpost(running: "Running") -> str:
    return f"""
  Dagster   {running.url}
  look at   {running.url}/assets/metered_usage?view=partitions     the hours, green once they are metered
            {running.url}/automation     31 schedules ({running.cron}) and 5 sensors: what ticks asked for, or why not
            {running.url}/assets/billing_changes?view=partitions     the days of billing data, and which cells moved
            {running.url}/runs     what each run of an hour or a day did
  bill      {running.stack.sandbox_url}/_sandbox/bill
  tables    AWS_ENDPOINT_URL={running.stack.dynamodb_url} (any credentials, region {running.stack.region})
  state     {running.state} (tables, bill, ledger, billing data, logs: delete it to begin anew); runs in {running.home}

Fresh usage arrives all the time, late usage now and then; every few minutes a day of billing
data is ingested again. Ctrl-C ends it; the next time goes on from there."""


def _as_guide(showing: "Showing") -> str:
    return f"""
  Dagster   {showing.url}
  look at   {showing.url}/assets/metered_usage?view=partitions     the hours, green once they are metered
            {showing.url}/assets/metering_report     the report of each day
            {showing.url}/assets/billing_changes?view=partitions     the days of billing data, and which cells moved
            {showing.url}/runs     what each run of the demo did
  bill      {showing.stack.sandbox_url}/_sandbox/bill
  tables    AWS_ENDPOINT_URL={showing.stack.dynamodb_url} (any credentials, region {showing.stack.region})
  state     {showing.state} (tables, bill, ledger, billing data, logs); runs in {showing.home}

Its clock stands at the demo's {showing.now:%Y-%m-%dT%H:%M:%SZ}: any of its hours can be materialized again, which
bills nothing twice. Schedules and sensors are stopped. Ctrl-C ends it; the next demo begins anew."""


if __name__ == "__main__":
    main()
