"""Runs commands in this process, for tests."""

from typer.testing import CliRunner

from keras_transformer.cli.app import app


def run_command(*arguments, stdin=None, code=None):
    """Runs a command and returns typer's result.

    It fails if the exit code is not `code`, if that is given.
    """
    result = CliRunner().invoke(app, [str(one) for one in arguments], input=stdin)
    assert code in (None, result.exit_code), (result.output, result.exception)
    return result


def error_of(result):
    """Returns the line, with its end, that is the whole output of a failed command."""
    output = (result.exit_code, result.stdout, result.stderr.count("\n"))
    assert output == (2, "", 1), (result.output, result.exception)
    assert result.stderr.startswith("error: "), result.stderr
    return result.stderr
