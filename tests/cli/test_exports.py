"""Commands on a SavedModel give the results of a `Translator` with the same model."""

import pytest
from tiny_export import TEXTS

from keras_transformer.decoding import format_pharaoh
from keras_transformer.evaluation.perplexity import perplexity_of

pytestmark = pytest.mark.usefixtures("exports_load_once")
LINES = [text.replace("\t", " ") for text in TEXTS]
TARGETS = LINES[::-1]


@pytest.fixture(scope="module")
def translator(tiny_translator):
    return tiny_translator


@pytest.fixture
def pair(tmp_path):
    """Paths of a source file and of a target file with the same lines reversed."""
    for name, lines in (("source", LINES), ("target", TARGETS)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    return tmp_path / "source", tmp_path / "target"


def one_line(text):
    return text.replace("\r", " ").replace("\n", " ")


def test_translate_prints_n_best_lists_and_alignments(
    tiny_export, translator, run_command
):
    stdin = "".join(f"{line}\n" for line in LINES)
    options = ["--n-best", "2", "--scores", "--alignments"]
    result = run_command("translate", tiny_export, *options, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    found = [line.split("\t") for line in result.stdout.split("\n")[:-1]]
    expected = [
        (number, each, line)
        for number, (line, ranked) in enumerate(
            zip(LINES, translator.n_best(LINES, 2), strict=True), 1
        )
        for each in ranked
    ]
    texts = [each.text for _, each, _ in expected]
    aligned = translator.align([line for *_, line in expected], texts)
    assert len(found) == len(expected) > len(LINES)
    for row, (number, each, _), pairs in zip(found, expected, aligned, strict=True):
        assert row[0] == str(number)
        assert float(row[1]) == pytest.approx(each.score, abs=1e-3)
        # The model has random weights, so a translation may itself contain tabs.
        assert "\t".join(row[2:-1]) == one_line(each.text)
        assert row[-1] == format_pharaoh(pairs)


def test_score_and_perplexity_match_the_translator(
    tiny_export, translator, run_command, pair
):
    expected = translator.score(LINES, TARGETS)
    result = run_command("score", tiny_export, "-s", pair[0], "-t", pair[1])
    assert result.exit_code == 0, result.stderr
    found = [float(line) for line in result.stdout.split()]
    assert found == pytest.approx([each.log_prob for each in expected], rel=1e-4)
    options = ["--source", pair[0], "--reference", pair[1], "--metric", "perplexity"]
    result = run_command("evaluate", tiny_export, *options)
    assert result.exit_code == 0, result.stderr
    perplexity = float(result.stdout.split()[2])
    assert perplexity == pytest.approx(perplexity_of(expected), abs=0.01)


def test_visualize_draws_the_mean_attention(tiny_export, run_command, tmp_path):
    arguments = ["visualize", tiny_export, "--source", "der Hund läuft"]
    output = tmp_path / "att"
    result = run_command(*arguments, "--target", "ein Hund", "--output", output)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{output}.png\n{output}.html\n"
    result = run_command(*arguments, "--output", output, "--kind", "encoder")
    assert result.exit_code == 2
    assert "a SavedModel has only the mean cross-attention" in result.stderr


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("translate", ["--n-best", "5"], "an n-best list of 5, because it was export"),
        ("translate", ["--prefix", "x"], "a SavedModel cannot use prefixes; use the"),
        ("translate", ["--forbid", "x"], "cannot search with other settings or forbid"),
        ("translate", ["--beam-size", "2"], "cannot search with other settings"),
        ("translate", ["--sampling"], "a SavedModel cannot sample translations"),
        ("translate", ["--ensemble", "{}"], "is a SavedModel, whose weights"),
        ("export", ["other"], "a SavedModel cannot be exported"),
        ("update-vocabulary", ["--text", "{}", "--size", "1", "-o", "x"], "is a Saved"),
    ],
)
def test_commands_reject_options_that_a_saved_model_lacks(
    tiny_export, run_command, name, options, message
):
    options = [option.format(tiny_export) for option in options]
    result = run_command(name, tiny_export, *options, stdin="x\n")
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    assert message in result.stderr and result.stderr.count("\n") == 1


# Options of `export` that do not suit the format.
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--format ctranslate2 --beam-size 3", "arguments of CTranslate2's translate"),
        ("--format ctranslate2 --patience 1", "arguments of CTranslate2's translate_"),
        ("--format ctranslate2 --parallel-parts 2", "--parallel-parts needs --format "),
        ("--format huggingface --jit-compile", "--jit-compile needs --format saved_mo"),
        ("--format marian --quantization none", "--quantization needs --format ctrans"),
        ("--quantization int8", "--quantization needs --format ctranslate2 or preset"),
        ("--format huggingface --quantization int8", "must be none or float16 for hug"),
        ("--format ctranslate2 --quantization int9", "quantization must be one of non"),
    ],
)
def test_export_rejects_options_of_other_formats(
    tiny_model_file, run_command, tmp_path, options, message
):
    result = run_command("export", tiny_model_file, tmp_path / "x", *options.split())
    assert result.exit_code == 2
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "x").exists()
