"""The DAGSTER_HOME of the embedded stack: one ignored folder in the project.

Belongs here: where it is, the link to the project's dagster.yaml. Does not: what runs in it. A DAGSTER_HOME that the
environment names is left alone: rehearsals must not turn a real instance's partitions green.
"""

from pathlib import Path

HOME = ".dagster_home"


def project_root() -> Path:
    """The folder with dagster.yaml: the working directory, else the one that holds this package."""
    here = Path.cwd()
    return here if (here / "dagster.yaml").is_file() else Path(__file__).resolve().parents[2]


def dagster_home(root: Path) -> Path:
    """The instance's folder, made if it is not there, with dagster.yaml linked into it."""
    home = root / HOME
    home.mkdir(parents=True, exist_ok=True)
    link = home / "dagster.yaml"
    target = root / "dagster.yaml"
    if target.is_file() and not link.exists():
        link.unlink(missing_ok=True)  # a link that points nowhere
        link.symlink_to(target)
    return home
