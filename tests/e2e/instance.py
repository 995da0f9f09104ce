"""A running Dagster, spoken to as its own pages do: over GraphQL."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.processes import HOST, PATIENCE_SECONDS, ask, free_port, started, until

LOCATION = "metering_dagster"
REPOSITORY = "__repository__"
HOURLY = ("pending_usage", "aggregated_usage", "metered_usage")
SELECTOR = {"repositoryName": REPOSITORY, "repositoryLocationName": LOCATION}
ENDED = ("SUCCESS", "FAILURE", "CANCELED")


class Instance:
    """What a person can do in the UI, and see there."""

    def __init__(self, url: str) -> None:
        self.url = url

    def graphql(self, query: str, **variables: Any) -> Any:
        """The data of an answer without errors."""
        answer = ask(f"{self.url}/graphql", {"query": query, "variables": variables})
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def backfill(self, partitions: Sequence[str], assets: Sequence[str] = HOURLY) -> str:
        """Start one, as the dialog of the assets' page does; its id."""
        launched = self.graphql(
            """mutation ($params: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $params) {
            __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }""",
            params={"assetSelection": [{"path": [name]} for name in assets], "partitionNames": list(partitions)},
        )["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        return str(launched["backfillId"])

    def backfill_ended(self, backfill: str, runs: int) -> list[dict[str, Any]]:
        """Its runs, once there are so many and all have ended (its own status follows up to 30 s later)."""

        def look() -> list[dict[str, Any]] | None:
            found = self.graphql(
                """query ($id: String!) { partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill {
                status error { message } runs(limit: 100) { runId status tags { key value } } } } }""",
                id=backfill,
            )["partitionBackfillOrError"]
            assert not found["error"], found["error"]
            ended = [run for run in found["runs"] if run["status"] in ENDED]
            return ended if len(ended) == len(found["runs"]) >= runs else None

        return until(look, f"backfill {backfill} to end", 3 * PATIENCE_SECONDS)

    def materialize(self, partition: str, assets: Sequence[str] = HOURLY) -> str:
        """A run of one partition, as the button of the assets' page starts it; its id."""
        launched = self.graphql(
            """mutation ($params: ExecutionParams!) { launchPipelineExecution(executionParams: $params) { __typename
            ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }""",
            params={
                "mode": "default",
                "runConfigData": "{}",
                "executionMetadata": {"tags": [{"key": "dagster/partition", "value": partition}]},
                "selector": SELECTOR | {
                    "jobName": "__ASSET_JOB", "assetSelection": [{"path": [name]} for name in assets],
                },
            },
        )["launchPipelineExecution"]  # fmt: skip
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return str(launched["run"]["runId"])

    def run_ended(self, run: str) -> str:
        """How it ended."""

        def look() -> str | None:
            status = self.graphql("query ($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }", id=run)[
                "runOrError"
            ]["status"]
            return str(status) if status in ENDED else None

        return until(look, f"run {run} to end")

    def failures(self, run: str) -> dict[str, str]:
        """What each failed step says."""
        events = self.graphql(
            """query ($id: ID!) { logsForRun(runId: $id, limit: 1000) { ... on EventConnection { events {
            ... on ExecutionStepFailureEvent { stepKey error { message causes { message } }
              failureMetadata { description } } } } } }""",
            id=run,
        )["logsForRun"]["events"]
        return {event["stepKey"]: str(event) for event in events if event}

    def start_schedule(self, name: str) -> None:
        started_ = self.graphql(
            """mutation ($s: ScheduleSelector!) { startSchedule(scheduleSelector: $s) { __typename
            ... on ScheduleStateResult { scheduleState { status } } } }""",
            s=SELECTOR | {"scheduleName": name},
        )["startSchedule"]
        assert started_.get("scheduleState") == {"status": "RUNNING"}, started_

    def stop_schedule(self, name: str) -> None:
        state = self._schedule(name)
        self.graphql("mutation ($id: String!) { stopRunningSchedule(id: $id) { __typename } }", id=state["id"])

    def ticks(self, name: str, at_least: int = 1) -> list[dict[str, Any]]:
        """Its ticks that have ended, oldest first, once there are so many."""

        def look() -> list[dict[str, Any]] | None:
            ended = [tick for tick in self._schedule(name)["ticks"] if tick["status"] != "STARTED"]
            return ended[::-1] if len(ended) >= at_least else None

        return until(look, f"{at_least} ticks of {name}")

    def start_sensor(self, name: str) -> None:
        answer = self.graphql(
            """mutation ($s: SensorSelector!) { startSensor(sensorSelector: $s) { __typename
            ... on Sensor { sensorState { status } } } }""",
            s=SELECTOR | {"sensorName": name},
        )["startSensor"]
        assert answer.get("sensorState") == {"status": "RUNNING"}, answer

    def sensor_ticks(self, name: str, at_least: int = 1) -> list[dict[str, Any]]:
        """Its ticks that have ended, oldest first, once there are so many."""

        def look() -> list[dict[str, Any]] | None:
            found = self.graphql(
                """query ($s: SensorSelector!) { sensorOrError(sensorSelector: $s) { ... on Sensor { sensorState {
                ticks(limit: 200) { status skipReason runIds error { message } } } } } }""",
                s=SELECTOR | {"sensorName": name},
            )["sensorOrError"]["sensorState"]["ticks"]
            ended = [tick for tick in found if tick["status"] != "STARTED"]
            return ended[::-1] if len(ended) >= at_least else None

        return until(look, f"{at_least} ticks of {name}")

    def runs_of(self, job: str) -> list[dict[str, Any]]:
        """All its runs, newest first."""
        return list(self.graphql(
            """query ($job: String!) { runsOrError(filter: {pipelineName: $job}) { ... on Runs { results {
            runId status tags { key value } } } } }""",
            job=job,
        )["runsOrError"]["results"])  # fmt: skip

    def _schedule(self, name: str) -> dict[str, Any]:
        return dict(self.graphql(
            """query ($s: ScheduleSelector!) { scheduleOrError(scheduleSelector: $s) { ... on Schedule {
            scheduleState { id status ticks(limit: 50) { status skipReason runIds
            error { message } logEvents { events { message } } } } } } }""",
            s=SELECTOR | {"scheduleName": name},
        )["scheduleOrError"]["scheduleState"])  # fmt: skip

    def check(self, asset: str, name: str, partition: str) -> dict[str, Any]:
        """The latest execution of a check for a partition."""
        (latest,) = self.graphql(
            """query ($asset: AssetKeyInput!, $name: String!, $partition: String) {
            assetCheckExecutions(assetKey: $asset, checkName: $name, partition: $partition, limit: 1) {
            status partition runId evaluation { success severity description metadataEntries {
              label ... on IntMetadataEntry { intValue } } } } }""",
            asset={"path": [asset]}, name=name, partition=partition,
        )["assetCheckExecutions"]  # fmt: skip
        return dict(latest)

    def told(self, asset: str, partition: str) -> list[dict[str, int]]:
        """The numbers in the metadata of each materialization of a partition, oldest first."""
        found = self.graphql(
            """query ($asset: AssetKeyInput!, $partition: String!) { assetNodeOrError(assetKey: $asset) {
            ... on AssetNode { assetMaterializations(partitions: [$partition], limit: 100) { metadataEntries { label
            ... on IntMetadataEntry { intValue } } } } } }""",
            asset={"path": [asset]}, partition=partition,
        )["assetNodeOrError"]["assetMaterializations"]  # fmt: skip
        return [{entry["label"]: entry["intValue"] for entry in each["metadataEntries"] if "intValue" in entry}
                for each in found[::-1]]  # fmt: skip

    def materialized(self, asset: str) -> set[str]:
        """The partitions that are green."""
        found = self.graphql(
            """query ($asset: AssetKeyInput!) { assetNodeOrError(assetKey: $asset) { ... on AssetNode {
            assetPartitionStatuses { ... on TimePartitionStatuses { ranges { status startKey endKey } } }
            partitionKeys } } }""",
            asset={"path": [asset]},
        )["assetNodeOrError"]
        keys: list[str] = found["partitionKeys"]
        green: set[str] = set()
        for span in found["assetPartitionStatuses"]["ranges"]:
            if span["status"] == "MATERIALIZED":
                green |= set(keys[keys.index(span["startKey"]) : keys.index(span["endKey"]) + 1])
        return green

    def loaded(self) -> dict[str, str]:
        """Each code location with how it loaded."""
        entries = self.graphql("""{ workspaceOrError { ... on Workspace { locationEntries {
            name locationOrLoadError { __typename ... on PythonError { message } } } } } }""")
        return {
            entry["name"]: (entry["locationOrLoadError"] or {}).get("__typename", "LOADING")
            for entry in entries["workspaceOrError"]["locationEntries"]
        }

    def is_alive(self, daemon: str) -> bool:
        found = self.graphql("{ instance { daemonHealth { allDaemonStatuses { daemonType healthy } } } }")
        statuses = found["instance"]["daemonHealth"]["allDaemonStatuses"]
        return any(each["daemonType"] == daemon and each["healthy"] for each in statuses)


def _await(instance: Instance) -> Instance:
    until(lambda: instance.loaded() == {LOCATION: "RepositoryLocation"} or None, "the code location to load")
    until(lambda: instance.is_alive("SCHEDULER") or None, "the daemon's first sign of life")
    return instance


def make_home(folder: Path, project: Path) -> Path:
    """A DAGSTER_HOME with the project's own settings, which is the working directory as well."""
    home = folder / "home"
    home.mkdir()
    for name in ("dagster.yaml", "workspace.yaml"):
        (home / name).write_text((project / name).read_text())
    return home


@contextmanager
def webserver_and_daemon(folder: Path, project: Path, environment: dict[str, str]) -> Iterator[Instance]:
    """The two as they run in production: a process each, with the project's workspace.yaml."""
    home, port = make_home(folder, project), free_port()
    environment = environment | {"DAGSTER_HOME": str(home), "PYTHONPATH": str(project)}
    page = ["dagster_webserver", "-h", HOST, "-p", str(port), "-w", "workspace.yaml"]
    daemon = ["dagster._daemon", "run", "-w", "workspace.yaml"]
    with started("webserver", page, folder, environment, home) as webserver:
        # First one, then the other: two that make the same SQLite files at once get in each other's way.
        webserver.answers(f"http://{HOST}:{port}/server_info")
        with started("daemon", daemon, folder, environment, home):
            yield _await(Instance(f"http://{HOST}:{port}"))


@contextmanager
def plain_dagster_dev(folder: Path, project: Path, environment: dict[str, str]) -> Iterator[Instance]:
    """`dagster dev` and nothing more, in a folder that holds the project's two YAML files."""
    home, port = make_home(folder, project), free_port()
    environment = environment | {"DAGSTER_HOME": str(home), "PYTHONPATH": str(project)}
    with started("dev", ["dagster", "dev", "-h", HOST, "-p", str(port)], folder, environment, home) as dev:
        dev.answers(f"http://{HOST}:{port}/server_info")
        yield _await(Instance(f"http://{HOST}:{port}"))
