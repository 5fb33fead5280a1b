"""Options of `export`, and what commands refuse to do with a SavedModel."""

import pytest
from commands import error_of, run_command

pytestmark = pytest.mark.usefixtures("exports_load_once")


def test_visualize_draws_the_mean_attention(tiny_export, tmp_path):
    arguments = ["visualize", tiny_export, "--source", "der Hund läuft"]
    output = tmp_path / "att"
    result = run_command(*arguments, "--target", "ein Hund", "--output", output, code=0)
    assert result.stdout == f"{output}.png\n{output}.html\n"
    result = run_command(*arguments, "--output", output, "--kind", "encoder", code=2)
    assert "a SavedModel has only the mean cross-attention" in result.stderr


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("translate", ["--n-best", "5"], "an n-best list of 5, because it was export"),
        ("translate", ["--prefix", "x"], "a SavedModel cannot use prefixes. Use the"),
        ("translate", ["--forbid", "x"], "cannot search with other settings or forbid"),
        ("translate", ["--beam-size", "2"], "cannot search with other settings"),
        ("translate", ["--sampling"], "a SavedModel cannot sample translations"),
        ("translate", ["--ensemble", "{}"], "is a SavedModel, whose weights"),
        ("export", ["other"], "a SavedModel cannot be exported"),
        (
            "filter",
            [
                *("-s", __file__, "-t", __file__, "--min-score", "1"),
                *("--output-source", "a", "--output-target", "b"),
            ],
            "cannot filter pairs",
        ),
        ("extend-vocabulary", ["--text", "{}", "--size", "1", "-o", "x"], "is a Saved"),
    ],
)
def test_commands_reject_options_that_a_saved_model_lacks(
    tiny_export, name, options, message
):
    options = [option.format(tiny_export) for option in options]
    assert message in error_of(run_command(name, tiny_export, *options, stdin="x\n"))


# Options of `export` that do not suit the format.
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--format ctranslate2 --beam-size 3", "format contains no search settings"),
        ("--format ctranslate2 --patience 1", "format contains no search settings"),
        ("--format ctranslate2 --parallel-parts 2", "--parallel-parts: needs --format"),
        ("--format huggingface --jit-compile", "--jit-compile: needs --format saved_m"),
        ("--format marian --quantization none", "--quantization: needs --format ctran"),
        ("--quantization int8", "--quantization: needs --format ctranslate2 or preset"),
        ("--format huggingface --quantization int8", "must be none or float16 for hug"),
        ("--format ctranslate2 --quantization int9", "quantization must be one of non"),
    ],
)
def test_export_rejects_options_of_other_formats(
    tiny_model_file, tmp_path, options, message
):
    command = "export", tiny_model_file, tmp_path / "x", *options.split()
    assert message in error_of(run_command(*command))
    assert not (tmp_path / "x").exists()
