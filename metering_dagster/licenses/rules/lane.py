"""The lane of the licenses' jobs: it always finds a place, before all others in the queue.

Belongs here: the tags of their runs. Does not: the limits of the lanes (dagster.yaml).
"""

MOST_SECONDS = 600
"""A run that takes longer is ended: where its process is gone, nothing else ends it soon, and while it counts as under
way no other is asked for.
"""


def tags(priority: int) -> dict[str, str]:
    """Of each run. The highest of any hour is 29: its offset."""
    return {
        "metering/lane": "deprovision",
        "dagster/priority": str(priority),
        "dagster/max_runtime": str(MOST_SECONDS),
    }
