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

from keras_transformer import evaluation
from keras_transformer.cli import console

SOURCES = ["eniL eno", "owt senil dna", "eerht"]
REFERENCES = ["one Line", "and lines too", "three"]


@pytest.fixture
def files(tmp_path):
    """Arguments that name a source file and a reference file of three lines."""
    source, reference = tmp_path / "source", tmp_path / "reference"
    source.write_text("\n".join(SOURCES) + "\n")
    reference.write_text("\n".join(REFERENCES) + "\n")
    return ["--source", source, "--reference", reference]


def test_evaluate_prints_bleu_with_its_signature(
    run_command, model_path, translator, files
):
    options = ("--patience", "2", "--beam-size", "3")
    result = run_command("evaluate", model_path, *files, *options)
    assert translator.searches == [{"patience": 2, "beam_size": 3}]
    hypotheses = [line[::-1] for line in SOURCES]
    expected = evaluation.bleu(hypotheses, REFERENCES)
    assert result.exit_code == 0
    assert result.stdout == f"BLEU = {expected.score:.2f}  {expected.signature}\n"


def test_evaluate_prints_all_metrics_as_json(run_command, model_path, files, tmp_path):
    result = run_command(
        *["evaluate", model_path, *files, "--json", "--output", tmp_path / "out"],
        *["--metric", "bleu", "--metric", "chrf", "--metric", "ter"],
        *["--metric", "perplexity", "--tokenize", "none", "--lowercase"],
    )
    report = json.loads(result.stdout)
    hypotheses = [line[::-1] for line in SOURCES]
    expected = [
        evaluation.bleu(hypotheses, REFERENCES, "none", lowercase=True),
        evaluation.chrf(hypotheses, REFERENCES, lowercase=True),
        evaluation.ter(hypotheses, REFERENCES),
    ]
    assert report["lines"] == 3
    assert [each["score"] for each in report["results"][:3]] == [
        pytest.approx(one.score) for one in expected
    ]
    assert [each["signature"] for each in report["results"][:3]] == [
        one.signature for one in expected
    ]
    characters = sum(map(len, REFERENCES))
    assert report["results"][3]["score"] == pytest.approx(
        math.exp(characters / (characters + 3))
    )
    assert (tmp_path / "out").read_text().splitlines() == hypotheses


@pytest.mark.parametrize(
    ("options", "tokenize", "lowercase"),
    [
        ([], "char", True),
        (["--tokenize", "13a"], "13a", True),
        (["--no-lowercase"], "char", False),
    ],
)
def test_evaluate_uses_the_settings_of_the_run(
    run_command, model_path, files, options, tokenize, lowercase
):
    config = pathlib.Path(model_path, "config.yaml")
    config.write_text(
        "data: {train: {source: a, target: b}}\n"
        "evaluation: {tokenize: char, lowercase: true}\n"
    )
    result = run_command("evaluate", model_path, *files, *options)
    hypotheses = [line[::-1] for line in SOURCES]
    expected = evaluation.bleu(hypotheses, REFERENCES, tokenize, lowercase)
    assert result.stdout == f"BLEU = {expected.score:.2f}  {expected.signature}\n"


def test_evaluate_accepts_several_references(run_command, model_path, files, tmp_path):
    others = ["one line", "two lines too", "Three"]
    (tmp_path / "other").write_text("\n".join(others) + "\n")
    files += ["--reference", tmp_path / "other"]
    result = run_command("evaluate", model_path, *files)
    hypotheses = [line[::-1] for line in SOURCES]
    expected = evaluation.bleu(hypotheses, [REFERENCES, others])
    assert result.stdout == f"BLEU = {expected.score:.2f}  {expected.signature}\n"
    for metric in ("perplexity", "f1"):
        result = run_command("evaluate", model_path, *files, "--metric", metric)
        assert result.exit_code == 2
        assert "--metric perplexity and f1: need a single --reference" in result.stderr


@pytest.mark.parametrize(
    ("options", "language"), [([], "de"), (["--language", "fr"], "fr")]
)
def test_compound_bleu_uses_the_tokenizer_of_the_language(
    run_command, model_path, tmp_path, options, language
):
    """In French, `l'` is one token. In German, the apostrophe is a token."""
    hypothesis, reference = "l'eau du lac est ici", "l'air du lac est ici"
    expected = {
        each: evaluation.compound_split_bleu([hypothesis], [reference], each)
        for each in ("de", "fr")
    }
    assert expected["de"].score != pytest.approx(expected["fr"].score, abs=1)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text(f"{hypothesis[::-1]}\n")
    target.write_text(f"{reference}\n")
    files = ["--source", source, "--reference", target, "--metric", "compound_bleu"]
    result = run_command("evaluate", model_path, *files, *options, "--json")
    (found,) = json.loads(result.stdout)["results"]
    assert found["score"] == pytest.approx(expected[language].score)
    assert found["signature"] == expected[language].signature


def test_language_needs_compound_bleu(run_command, model_path, files):
    result = run_command("evaluate", model_path, *files, "--language", "fr")
    assert result.exit_code == 2
    assert "--language needs --metric compound_bleu" in result.stderr


@pytest.mark.parametrize("language", ["french", "de-DE", "zz", ""])
def test_compound_bleu_rejects_unknown_languages(
    run_command, model_path, files, translator, language
):
    """For other values, the Moses tokenizer silently applies rules of English."""
    options = ["--metric", "compound_bleu", "--language", language]
    result = run_command("evaluate", model_path, *files, *options)
    assert result.exit_code == 2
    assert f"--language {language}: must be one of as, bn, ca, cs, de" in result.stderr
    assert translator.warn is None


@pytest.mark.parametrize("metric", ["bleu", "f1"])
def test_evaluate_checks_the_output_folder_first(
    run_command, model_path, translator, files, tmp_path, metric
):
    result = run_command(
        *("evaluate", model_path, *files, "--metric", metric),
        *("--output", tmp_path / "missing" / "out"),
    )
    assert result.exit_code == 2
    assert f"the folder {tmp_path / 'missing'} does not exist" in result.stderr
    # `open_model`, which sets `warn`, was not called.
    assert translator.warn is None


def test_evaluate_names_files_of_different_lengths(run_command, model_path, files):
    files[3].write_text("one\ntwo\n")
    result = run_command("evaluate", model_path, *files)
    assert result.exit_code == 2
    names = f"{files[1]} and {files[3]}"
    reason = "must have the same number of lines. Received: 3 and 2"
    assert f"{names} {reason}" in result.stderr
    assert result.stderr.count("\n") == 1


def test_evaluate_names_empty_and_non_utf8_files(run_command, model_path, files):
    files[3].write_bytes(b"")
    result = run_command("evaluate", model_path, *files)
    assert (result.exit_code, f"{files[3]}: the file is empty" in result.stderr) == (
        2,
        True,
    )
    files[3].write_bytes(b"one\n\xff\nthree\n")
    result = run_command("evaluate", model_path, *files)
    assert (result.exit_code, f"{files[3]}:2" in result.stderr) == (2, True)


def test_evaluate_lists_the_known_metrics_and_tokenizers(
    run_command, model_path, files
):
    result = run_command("evaluate", model_path, *files, "--metric", "blue")
    assert result.exit_code == 2
    assert "'bleu'" in result.stderr
    result = run_command("evaluate", model_path, *files, "--tokenize", "14a")
    assert result.exit_code == 2
    assert "13a" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("-m compound_bleu --tokenize none", "--tokenize needs --metric bleu"),
        ("-m ter --no-lowercase", "--no-lowercase needs --metric bleu or chrf"),
        ("-m perplexity --lowercase", "--lowercase needs --metric bleu or chrf"),
        ("-m perplexity --beam-size 2", "--beam-size: --metric perplexity translates"),
    ],
)
def test_evaluate_refuses_options_that_no_metric_uses(
    run_command, model_path, files, options, message
):
    result = run_command("evaluate", model_path, *files, *options.split())
    assert result.exit_code == 2 and message in result.stderr


def test_search_options_change_the_output_of_perplexity(
    run_command, model_path, translator, files, tmp_path
):
    options = ("-m", "perplexity", "--beam-size", "2", "-o", tmp_path / "out")
    assert run_command("evaluate", model_path, *files, *options).exit_code == 0
    assert translator.searches == [{"beam_size": 2}]


def test_evaluate_reports_a_missing_tokenizer_package(
    run_command, model_path, files, monkeypatch
):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    result = run_command("evaluate", model_path, *files, "--tokenize", "ja-mecab")
    assert result.exit_code == 2
    install = 'pip install "keras-transformer-seq2seq[ja]"'
    assert result.stderr == f"error: --tokenize ja-mecab: first run {install}\n"


def test_evaluate_checks_the_tokenizer_of_the_run_only_for_bleu(
    run_command, model_path, files, monkeypatch
):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    config = pathlib.Path(model_path, "config.yaml")
    config.write_text(
        "data: {train: {source: a, target: b}}\nevaluation: {tokenize: ja-mecab}\n"
    )
    result = run_command("evaluate", model_path, *files, "-m", "chrf")
    assert result.exit_code == 0 and result.stdout.startswith("chrF2 = ")
    result = run_command("evaluate", model_path, *files)
    assert result.exit_code == 2
    assert "error: evaluation.tokenize=ja-mecab: first run pip" in result.stderr


def test_evaluate_reports_a_tokenizer_that_cannot_be_downloaded(
    run_command, model_path, files, monkeypatch
):
    def download(*_, **__):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr("sacrebleu.metrics.BLEU.__init__", download)
    result = run_command("evaluate", model_path, *files, "--tokenize", "flores200")
    assert result.exit_code == 2
    assert "error: --tokenize flores200: <urlopen error no network>" in result.stderr


def test_score_prints_a_log_probability_per_pair(run_command, model_path, files):
    result = run_command(
        "score", model_path, "--source", files[1], "--target", files[3]
    )
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["-8.000000", "-13.000000", "-5.000000"]
    expected = math.exp(26 / 29)
    assert f"perplexity per subword: {expected:.4f}" in result.stderr


def test_score_prints_json_with_all_pairs(run_command, model_path, files):
    arguments = ["--source", files[1], "--target", files[3], "--json"]
    result = run_command("score", model_path, *arguments)
    assert json.loads(result.stdout) == {
        "model": model_path,
        "perplexity": pytest.approx(math.exp(26 / 29)),
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
