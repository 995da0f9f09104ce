"""What judges the project from outside must not lean on it."""

import ast
from pathlib import Path

OURS = Path(__file__).parent
SHARED = ("tests.mariadb",)
"""A server for several kinds of tests; it is held to the same rule."""


def test_the_end_to_end_tests_import_nothing_of_the_project() -> None:
    shared = [OURS.parents[1] / f"{name.replace('.', '/')}.py" for name in SHARED]
    for module in [*OURS.glob("*.py"), *shared]:
        for node in ast.walk(ast.parse(module.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert not name.startswith("metering_dagster"), f"{module.name} imports {name}"
                known = name.startswith("tests.e2e") or name in SHARED
                assert known or not name.startswith("tests."), f"{module.name} imports {name}"
