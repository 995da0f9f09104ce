"""The mutation score of each module, out of what `mutmut run` left behind; and the mutants that no test noticed.

    .venv/bin/python -m scripts.mutation_score [--survivors]

Belongs here: counting and showing. Does not: which modules and tests take part (pyproject.toml, [tool.mutmut]).
"""

import json
import subprocess
import sys
from pathlib import Path

RESULTS = Path("mutants")
KILLED = {1, 3}
"""Of pytest: a test failed; it broke down."""
TIMED_OUT = {24, -24, 36, 152, 255}


def verdicts() -> dict[str, dict[str, int | None]]:
    """By module, and by mutant: how pytest ended; None where it has not run yet."""
    found = {}
    for path in sorted(RESULTS.glob("metering_dagster/**/*.py.meta")):
        module = str(path.relative_to(RESULTS)).removesuffix(".py.meta").replace("/", ".")
        found[module] = json.loads(path.read_text())["exit_code_by_key"]
    return found


def row(module: str, codes: list[int | None]) -> str:
    """One line of the table."""
    run = [code for code in codes if code is not None]
    killed = sum(code in KILLED or code in TIMED_OUT for code in run)
    score = f"{100 * killed / len(run):.1f} %" if run else "not run"
    return f"| {module.removeprefix('metering_dagster.')} | {len(run)} | {killed} | {len(run) - killed} | {score} |"


def main() -> None:
    """Print the table, and on request what the survivors changed."""
    found = {module: mutants for module, mutants in verdicts().items() if mutants}
    lines = ["| module | mutants | killed | left | score |", "| --- | --- | --- | --- | --- |"]
    lines += [row(module, list(mutants.values())) for module, mutants in found.items()]
    lines.append(row("all", [code for mutants in found.values() for code in mutants.values()]))
    sys.stdout.write("\n".join(lines) + "\n")
    if "--survivors" in sys.argv[1:]:
        for mutants in found.values():
            for name, code in mutants.items():
                if code is not None and code not in KILLED | TIMED_OUT:
                    show(name)


def show(name: str) -> None:
    """The lines that the mutant changes."""
    shown = subprocess.run(
        [Path(sys.executable).parent / "mutmut", "show", name], capture_output=True, text=True, check=True
    )
    changed = [line for line in shown.stdout.splitlines() if line[:1] in "+-" and line[:3] not in {"+++", "---"}]
    sys.stdout.write("\n".join([f"== {name}", *changed]) + "\n")


if __name__ == "__main__":
    main()
