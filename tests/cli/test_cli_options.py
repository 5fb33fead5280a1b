"""Renamed options, whose old names work with a warning."""

import pytest

from keras_transformer.cli.options import RENAMED

CASES = [(name, *pair) for name in RENAMED for pair in RENAMED[name].items()]


@pytest.mark.parametrize(("name", "old", "new"), CASES)
def test_help_shows_only_the_new_option_name(run_command, name, old, new):
    words = run_command(name, "--help").stdout.split()
    assert new in words and old not in words


def test_renamed_options_warn(run_command, model_path):
    result = run_command("translate", model_path, "--parallel-batches=1", stdin="ab\n")
    assert (result.exit_code, result.stdout) == (0, "ba\n")
    assert result.stderr == (
        "warning: --parallel-batches is now called --parallel-parts\n"
    )
    result = run_command("translate", model_path, "--parallel-batches", "0")
    assert result.exit_code == 2
    assert "'--parallel-parts'" in result.stderr


def test_filter_accepts_its_old_option_names(run_command, tmp_path):
    files = ["-s", "a", "-t", "b", "--output-source", "c", "--output-target", "d"]
    result = run_command("filter", tmp_path, *files, "--keep", "2", "--keep-copies")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "warning: --keep is now called --keep-fraction",
        "warning: --keep-copies is now called --keep-identical",
        "error: --keep-fraction 2.0: must be above 0 and at most 1",
    ]
    result = run_command("filter", tmp_path, *files, "--keep=1", "--threshold=-4")
    assert result.stderr.splitlines()[2].startswith("error: --min-score or --keep-fr")


def test_option_values_are_not_renamed(run_command, model_path):
    result = run_command("translate", model_path, "--", "--parallel-batches")
    assert result.exit_code == 2
    assert "warning" not in result.stderr
