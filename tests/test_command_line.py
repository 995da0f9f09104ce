"""A number that makes no sense is refused by argparse, with exit code 2, before anything is started."""

import importlib

import pytest

PROGRAMS = {
    "tests.simulation.__main__": ("--seeds", "--first", "--jobs"),
    "tests.simulation.planted.__main__": ("--most", "--first", "--jobs"),
    "tests.billing_changes.simulation": ("--seeds",),
    "tests.crash.__main__": ("--kills",),
    "benchmarks.billing": ("--rows",),
}
FROM_ZERO = [("tests.billing_changes.simulation", "--first"), ("tests.crash.__main__", "--seed")]
NUMBERS = [(name, option, text) for name, options in PROGRAMS.items() for option in options
           for text in ("0", "-3", "1.5", "many", "")]  # fmt: skip


def refused(monkeypatch: pytest.MonkeyPatch, program: str, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", [program, *arguments])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(program).main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(("program", "option", "text"), [*NUMBERS, *((*each, "-1") for each in FROM_ZERO)])
def test_a_number_that_makes_no_sense_is_refused(monkeypatch, capsys, program, option, text):
    assert refused(monkeypatch, program, option, text) == 2
    said = capsys.readouterr().err
    assert f"argument {option}: must be a whole number from" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_explains_every_option(monkeypatch, capsys, program):
    assert refused(monkeypatch, program, "--help") == 0
    lines = capsys.readouterr().out.splitlines()
    options = [line for line in lines if line.lstrip().startswith("--")]
    assert options
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if line in options:
            assert len(line.split("  ")) > 2 or after.startswith("   "), f"{line} is not explained"
