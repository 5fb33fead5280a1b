"""The commands `evaluate` and `score` with a `ReversingTranslator`.

Expected scores come from `evaluation`, which its own tests compare with sacreBLEU, or
are computed by hand: the translator gives a target of n characters n + 1 tokens and the
log-probability -n. The references have 8, 13, and 5 characters, so their perplexity per
token is exp(26 / 29).
"""

import json
import math
import pathlib
import sys
import urllib.error

import pytest
from commands import error_of, run_command

from keras_transformer import evaluation
from keras_transformer.cli import console

SOURCES = ["eniL eno", "owt senil dna", "eerht"]
REFERENCES = ["one Line", "and lines too", "three"]
HYPOTHESES = [line[::-1] for line in SOURCES]


@pytest.fixture
def files(tmp_path):
    """Arguments that name a source file and a reference file of three lines."""
    source, reference = tmp_path / "source", tmp_path / "reference"
    source.write_text("\n".join(SOURCES) + "\n")
    reference.write_text("\n".join(REFERENCES) + "\n")
    return ["--source", source, "--reference", reference]


@pytest.fixture
def evaluate(model_path, files):
    return lambda *options: run_command("evaluate", model_path, *files, *options)


def test_evaluate_prints_bleu_with_its_signature(evaluate, translator):
    result = evaluate("--patience", "2", "--beam-size", "3")
    assert translator.searches == [{"patience": 2, "beam_size": 3}]
    expected = evaluation.bleu(HYPOTHESES, REFERENCES)
    assert result.exit_code == 0
    assert result.stdout == f"BLEU = {expected.score:.2f}  {expected.signature}\n"


def test_evaluate_prints_few_warnings_about_lines(evaluate, files):
    _, source, _, reference = files
    for count in (3, 5):
        for path in (source, reference):
            path.write_text("short\n" + f"{'x' * 30}\n" * count)
        names = [f"warning: {source}:{n}: too long\n" for n in (2, 3, 4, 5, 6)]
        more = "warning: 2 more; --verbose prints all\n" if count == 5 else ""
        printed = evaluate().stderr
        assert printed.startswith("".join(names[:3]) + more + f"{1 + count} lines in")
    printed = evaluate("--verbose").stderr
    assert "".join(names) in printed and "more" not in printed


def test_evaluate_prints_all_metrics_as_json(evaluate, tmp_path):
    metrics = [f"--metric={each}" for each in ("bleu", "chrf", "ter", "perplexity")]
    options = ["--json", "--output", tmp_path / "out", "--tokenize=none", "--lowercase"]
    report = json.loads(evaluate(*metrics, *options).stdout)
    assert report["lines"] == 3
    *found, perplexity = report["results"]
    for one, expected in zip(
        found,
        (
            evaluation.bleu(HYPOTHESES, REFERENCES, "none", lowercase=True),
            evaluation.chrf(HYPOTHESES, REFERENCES, lowercase=True),
            evaluation.ter(HYPOTHESES, REFERENCES),
        ),
        strict=True,
    ):
        assert one["score"] == pytest.approx(expected.score)
        assert one["signature"] == expected.signature
    assert perplexity["score"] == pytest.approx(math.exp(26 / 29))
    assert (tmp_path / "out").read_text().splitlines() == HYPOTHESES


@pytest.mark.parametrize(
    ("options", "tokenize", "lowercase"),
    [
        ([], "char", True),
        (["--tokenize", "13a"], "13a", True),
        (["--no-lowercase"], "char", False),
    ],
)
def test_evaluate_uses_the_settings_of_the_run(
    evaluate, model_path, options, tokenize, lowercase
):
    pathlib.Path(model_path, "config.yaml").write_text(
        "data: {train: {source: a, target: b}}\n"
        "evaluation: {tokenize: char, lowercase: true}\n"
    )
    expected = evaluation.bleu(HYPOTHESES, REFERENCES, tokenize, lowercase)
    found = evaluate(*options).stdout
    assert found == f"BLEU = {expected.score:.2f}  {expected.signature}\n"


def test_evaluate_scores_the_test_set_of_the_recipe(model_path, files):
    config = pathlib.Path(model_path, "config.yaml")
    for recipe in ("", "data: {train: [{source: a, target: b}]}"):
        if recipe:
            config.write_text(recipe)
        error = error_of(run_command("evaluate", model_path, "--test-split"))
        assert "recipe with text in data.test" in error
    config.write_text(
        "data: {train: {source: a, target: b}, "
        f"test: {{source: {files[1]}, target: {files[3]}}}}}\n"
    )
    expected = run_command("evaluate", model_path, *files).stdout
    assert run_command("evaluate", model_path, "--test-split").stdout == expected
    for options in (["--test-split", *files], []):
        error = error_of(run_command("evaluate", model_path, *options))
        assert "--test-split" in error


def test_evaluate_accepts_several_references(evaluate, tmp_path):
    others = ["one line", "two lines too", "Three"]
    (tmp_path / "other").write_text("\n".join(others) + "\n")
    other = "--reference", tmp_path / "other"
    expected = evaluation.bleu(HYPOTHESES, [REFERENCES, others])
    found = evaluate(*other).stdout
    assert found == f"BLEU = {expected.score:.2f}  {expected.signature}\n"
    for metric in ("perplexity", "f1"):
        error = error_of(evaluate(*other, "--metric", metric))
        assert "--metric perplexity or f1: pass a single --reference" in error


@pytest.mark.parametrize(
    ("options", "language"), [([], "de"), (["--language", "fr"], "fr")]
)
def test_compound_bleu_uses_the_tokenizer_of_the_language(
    evaluate, files, options, language
):
    """In French, `l'` is one token. In German, the apostrophe is a token."""
    hypothesis, reference = "l'eau du lac est ici", "l'air du lac est ici"
    expected = {
        each: evaluation.compound_split_bleu([hypothesis], [reference], each)
        for each in ("de", "fr")
    }
    assert expected["de"].score != pytest.approx(expected["fr"].score, abs=1)
    files[1].write_text(f"{hypothesis[::-1]}\n")
    files[3].write_text(f"{reference}\n")
    result = evaluate("--metric", "compound_bleu", *options, "--json")
    (found,) = json.loads(result.stdout)["results"]
    assert found["score"] == pytest.approx(expected[language].score)
    assert found["signature"] == expected[language].signature


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--language fr", "--language: needs --metric compound_bleu"),
        # For other languages, the Moses tokenizer silently applies rules of English.
        ("-m compound_bleu --language zz", "--language zz: must be one of as, bn, ca"),
        ("-m compound_bleu --tokenize none", "--tokenize: needs --metric bleu"),
        ("-m ter --no-lowercase", "--no-lowercase: needs --metric bleu or chrf"),
        ("-m perplexity --lowercase", "--lowercase: needs --metric bleu or chrf"),
        ("-m perplexity --beam-size 2", "--beam-size: --metric perplexity translates"),
        ("--metric blue", "'bleu'"),
        ("--tokenize 14a", "must be one of 13a, "),
        ("--output missing/out", "the folder missing does not exist"),
        ("--metric f1 --output missing/out", "the folder missing does not exist"),
    ],
)
def test_evaluate_reports_mistakes_before_it_opens_the_model(
    evaluate, translator, options, message
):
    result = evaluate(*options.split())
    assert result.exit_code == 2 and message in result.stderr
    # `open_model`, which sets `warn`, was not called.
    assert translator.warn is None


def test_evaluate_checks_the_tokenizer_only_for_bleu(evaluate, model_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    install = 'first run pip install ".[ja]" in a clone of the repository\n'
    error = error_of(evaluate("--tokenize", "ja-mecab"))
    assert error == f"error: --tokenize ja-mecab: {install}"
    pathlib.Path(model_path, "config.yaml").write_text(
        "data: {train: {source: a, target: b}}\nevaluation: {tokenize: ja-mecab}\n"
    )
    result = evaluate("-m", "chrf")
    assert result.exit_code == 0 and result.stdout.startswith("chrF2 = ")
    result = evaluate()
    assert result.stderr == f"error: evaluation.tokenize=ja-mecab: {install}"


def test_evaluate_reports_a_tokenizer_that_cannot_be_downloaded(evaluate, monkeypatch):
    def download(*_, **__):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr("sacrebleu.metrics.BLEU.__init__", download)
    error = error_of(evaluate("--tokenize", "flores200"))
    assert "error: --tokenize flores200: <urlopen error no network>" in error


def test_score_prints_log_probabilities(model_path, files):
    command = ["score", model_path, "--source", files[1], "--target", files[3]]
    result = run_command(*command, code=0)
    assert result.stdout.splitlines() == ["-8.000000", "-13.000000", "-5.000000"]
    expected = math.exp(26 / 29)
    assert f"perplexity per subword: {expected:.4f}" in result.stderr
    assert json.loads(run_command(*command, "--json").stdout) == {
        "model": model_path,
        "perplexity": pytest.approx(expected),
        "pairs": [
            {"log_prob": -8.0, "num_tokens": 9},
            {"log_prob": -13.0, "num_tokens": 14},
            {"log_prob": -5.0, "num_tokens": 6},
        ],
    }


def test_json_has_null_for_numbers_that_are_not_finite():
    value = {"a": [math.inf, 1.5, "inf", None], "b": {"c": math.nan}}
    expected = {"a": [None, 1.5, "inf", None], "b": {"c": None}}
    assert json.loads(console.json_text(value)) == expected


def test_evaluate_names_the_option_of_the_references(evaluate):
    result = evaluate("--target", "reference")
    assert result.exit_code == 2
    message = "No such option: --target. Did you mean --reference?"
    assert result.stderr.splitlines()[-1] == f"Error: {message}"
