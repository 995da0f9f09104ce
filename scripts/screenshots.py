"""Take the pictures of docs/images from a running instance (`make dev`, or `make ui` after `make demo`).

    uv run --no-project --with playwright python scripts/screenshots.py [http://127.0.0.1:3000 [NAME ...]]

NAME is one of lineage, partitions, run, check, report, billing_lineage, billing_partitions, billing_run; default: all.
Needs Chromium at /usr/bin/chromium (or CHROMIUM=/path/to/it). What is not there yet is skipped and named. Playwright is
no dependency of the project.
"""

import json
import os
import sys
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
MOST_BYTES = 120_000
WIDTH = 1440
SETTLE_MS = 8000
"""Dagster's pages draw in several rounds."""
WITHOUT_THIS_MACHINE = r"""() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    walker.currentNode.data = walker.currentNode.data.replace(/^\/.*?(?=\.metering\/|\.dagster_home\/)/, "…/");
  }
}"""
"""Paths begin at the project's folder."""


class Nothing(Exception):  # noqa: N818 (it is no fault)
    """There is nothing to take a picture of."""


class Instance:
    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def graphql(self, query: str, **variables: Any) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=60) as answer:
            return json.load(answer)["data"]

    def busiest_hour(self, asset: str, counts: str | None = None) -> tuple[str, str]:
        """The partition of an asset whose run had most to tell lately, and that run's time as the pages know it.

        `counts`: the only number of its metadata that counts; default: all of them.
        """
        found = self.graphql(
            """query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
            assetMaterializations(limit: 100) { partition timestamp metadataEntries { label
            ... on IntMetadataEntry { intValue } } } } } }""",
            key={"path": [asset]},
        )["assetNodeOrError"]
        told = found.get("assetMaterializations")
        if not told:
            raise Nothing(f"{asset} has not been materialized")
        most = max(told, key=lambda each: sum(
            entry.get("intValue") or 0 for entry in each["metadataEntries"] if counts in {None, entry["label"]}
        ))  # fmt: skip
        return most["partition"], most["timestamp"]

    def hour_that_warns(self, asset: str, check: str) -> str:
        """The latest one for which the check found something."""
        found = self.graphql(
            """query ($key: AssetKeyInput!, $check: String!) {
            assetCheckExecutions(assetKey: $key, checkName: $check, limit: 100) { status partition } }""",
            key={"path": [asset]},
            check=check,
        )["assetCheckExecutions"]
        for each in found:
            if each["status"] == "FAILED":
                return str(each["partition"])
        raise Nothing(f"{check} has warned of no hour")


def main() -> None:
    """All pictures, one after the other."""
    instance = Instance(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:3000")
    pictures: list[Callable[[Instance, Page], None]] = [
        lineage, partitions, run, check, report, billing_lineage, billing_partitions, billing_run,
    ]  # fmt: skip
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"],
        )
        for picture in pictures:
            if len(sys.argv) > 2 and picture.__name__ not in sys.argv[2:]:
                continue
            page = browser.new_page(viewport={"width": WIDTH, "height": 900}, timezone_id="UTC")
            try:
                picture(instance, page)
            except Nothing as nothing:
                print(f"{picture.__name__}: skipped, {nothing}")  # noqa: T201
            finally:
                page.close()
        browser.close()


def lineage(instance: Instance, page: Page) -> None:
    page.set_viewport_size({"width": 2000, "height": 1000})  # in a narrower one the assets are drawn as bare names
    _open(page, f"{instance.url}/locations/metering_dagster/asset-groups/metering/lineage")
    _shoot(page, "lineage", left=290, top=260, right=1940, bottom=860)


def partitions(instance: Instance, page: Page) -> None:
    hour, _ = instance.busiest_hour("metered_usage")
    days = f"{datetime.now(UTC) - timedelta(hours=30):%Y-%m-%dT%H}...{datetime.now(UTC):%Y-%m-%dT%H}"
    _open(page, f"{instance.url}/assets/metered_usage?view=partitions&partition={hour}&default_range=[{days}]")
    _shoot(page, "partitions", bottom=800)


def run(instance: Instance, page: Page) -> None:
    """What a run tells of its hour: an asset's event with its metadata."""
    page.set_viewport_size({"width": WIDTH, "height": 1400})
    _, instant = instance.busiest_hour("metered_usage")
    _open(page, f"{instance.url}/assets/metered_usage?view=events&time={instant}")
    page.evaluate(WITHOUT_THIS_MACHINE)
    _shoot(page, "run", left=540, top=162, bottom=1200)


def check(instance: Instance, page: Page) -> None:
    instance.hour_that_warns("aggregated_usage", "no_rejected_rows")
    page.set_viewport_size({"width": 1800, "height": 900})
    _open(page, f"{instance.url}/assets/aggregated_usage?view=checks&checkDetail=no_rejected_rows")
    page.get_by_text("Execution history").click()
    page.wait_for_timeout(SETTLE_MS)
    _shoot(page, "check", right=1800, bottom=640)


def report(instance: Instance, page: Page) -> None:
    """The picture that a day's run left, out of the dialog in which Dagster shows it."""
    page.set_viewport_size({"width": WIDTH, "height": 1400})
    _, instant = instance.busiest_hour("metering_report")
    _open(page, f"{instance.url}/assets/metering_report?view=events&time={instant}")
    page.get_by_text("Show markdown").first.click()
    page.wait_for_timeout(SETTLE_MS)
    box = page.locator("[role=dialog] img, .bp5-dialog img, .bp4-dialog img, img[src^=data]").last.bounding_box()
    if box is None:
        raise Nothing("its run shows no picture")
    left, top = int(box["x"]), int(box["y"])
    _shoot(page, "report", left=left, top=top, right=left + int(box["width"]), bottom=top + int(box["height"]))


def billing_lineage(instance: Instance, page: Page) -> None:
    page.set_viewport_size({"width": 1600, "height": 700})
    _open(page, f"{instance.url}/locations/metering_dagster/asset-groups/billing/lineage")
    _shoot(page, "billing_lineage", left=540, top=190, right=1300, bottom=640)


def billing_partitions(instance: Instance, page: Page) -> None:
    day, _ = instance.busiest_hour("billing_changes", "amounts_changed")
    days = f"{datetime.now(UTC) - timedelta(days=33):%Y-%m-%d}...{datetime.now(UTC):%Y-%m-%d}"
    _open(page, f"{instance.url}/assets/billing_changes?view=partitions&partition={day}&default_range=[{days}]")
    _shoot(page, "billing_partitions", bottom=800)


def billing_run(instance: Instance, page: Page) -> None:
    """What a run tells of its day: what moved, and what nobody would have noticed."""
    page.set_viewport_size({"width": 1900, "height": 1500})
    _, instant = instance.busiest_hour("billing_changes", "amounts_changed")
    _open(page, f"{instance.url}/assets/billing_changes?view=events&time={instant}")
    page.evaluate(WITHOUT_THIS_MACHINE)
    _shoot(page, "billing_run", left=665, top=162, right=1900, bottom=1100)


def _open(page: Page, url: str) -> None:
    page.goto(url, wait_until="load")
    page.wait_for_timeout(SETTLE_MS)


def _shoot(page: Page, name: str, *, left: int = 240, top: int = 0, right: int = WIDTH, bottom: int) -> None:
    """Without the navigation, unless `left` says otherwise."""
    path = IMAGES / f"{name}.png"
    page.screenshot(path=path, clip={"x": left, "y": top, "width": right - left, "height": bottom - top})
    size = path.stat().st_size
    print(f"{name}: {size} bytes" + (f", more than {MOST_BYTES}" if size > MOST_BYTES else ""))  # noqa: T201


if __name__ == "__main__":
    main()
