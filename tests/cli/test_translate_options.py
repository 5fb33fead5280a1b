"""`translate` with a real model gives what the library gives for the same options."""

import json

import numpy as np
import pytest
import tiny_export
from commands import error_of, run_command

from keras_transformer import opening as models
from keras_transformer import pipelines
from keras_transformer.decoding import read_glossary
from keras_transformer.evaluation import (
    UTILITIES,
    rank_by_reverse_model,
    rank_by_utility,
)

pytestmark = pytest.mark.usefixtures("models_stay_open")
SOURCES = ["der Hund läuft", "", "ein Hund und noch ein Hund", "die Katze", "läuft"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tiny_model):
    """Folders of two models with the same vocabulary and one with another."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = tiny_model[1]
    model, second = (tiny_export.tiny_model(num_layers=1)[0] for _ in range(2))
    # Zero embeddings make the byte tokens, ids 4 to 259, improbable, so that the models
    # generate valid text.
    matrix = model.token_embedding.embeddings.numpy()
    matrix[4:260] = 0
    matrix[260:] *= 3
    for each in (model, second):
        each.token_embedding.embeddings.assign(matrix)
    rng = np.random.default_rng(11)
    for weight in second.trainable_weights:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    other = pipelines.train_tokenizer("bpe", ["xyz abc", "qrst uvw xyz"] * 9, 300)
    paths = [folder / name for name in ("first", "second", "other")]
    for path, each, tokens in zip(
        paths, (model, second, model), (tokenizer, tokenizer, other), strict=True
    ):
        path.mkdir()
        each.save(path / "model.keras")
        tokens.save(path)
    return paths


@pytest.fixture
def translate(folders):
    """Function that translates `SOURCES` with the first model."""
    stdin = "".join(f"{line}\n" for line in SOURCES)
    return lambda *options: run_command("translate", folders[0], *options, stdin=stdin)


def lines(result):
    assert result.exit_code == 0, result.stderr
    return result.stdout.split("\n")[:-1]


def test_ensembles_have_one_vocabulary_and_no_alignments(translate, folders):
    assert error_of(translate("--ensemble", folders[2])) == (
        f"error: {folders[2] / 'model.keras'}: must have the same vocabulary as "
        f"{folders[0] / 'model.keras'}, like all models of an ensemble\n"
    )
    error = error_of(translate("--ensemble", folders[1], "--alignments"))
    assert "an ensemble cannot align words" in error
    both = models.open_model(folders[0], ensemble=[folders[1]])
    assert both.fingerprint() != models.open_model(folders[0]).fingerprint()


@pytest.mark.slow
def test_glossary_and_choice_give_the_results_of_the_library(
    translate, folders, tmp_path
):
    opened = models.open_model(folders[0])
    path = tmp_path / "terms.tsv"
    path.write_text("Hund\tKatze|Katzen\n")
    steered = opened.with_search(glossary=read_glossary(path))
    expected = steered.translate(SOURCES)
    assert lines(translate("--glossary", path)) == expected
    assert all("Katze" in expected[index] for index in (0, 2))
    ranked = opened.n_best(SOURCES)
    by_utility = rank_by_utility(ranked, UTILITIES["chrf"])
    assert lines(translate("--mbr", "chrf")) == [each[0].text for each in by_utility]
    reverse = models.open_model(folders[1])
    scored = rank_by_reverse_model(SOURCES, ranked, reverse)
    found = lines(translate("--rerank", folders[1], "--n-best", 2, "--scores"))
    assert found == [
        f"{number}\t{each.score:.4f}\t{each.text}"
        for number, row in enumerate(scored, 1)
        for each in row[:2]
    ]
    sampled = lines(translate("--sampling", "--mbr", "bleu", "--candidates", 3))
    assert len(sampled) == len(SOURCES)
    # Warnings are those of the translation that is printed, once.
    path.write_text("Hund\tKatze Katze Katze Katze Katze Katze Katze\n")
    options = "--glossary", path, "--n-best", 2, "--rerank", folders[1]
    result = translate(*options, "--json")
    warned = [each for each in result.stderr.splitlines() if each[:7] == "warning"]
    assert warned == [
        f"warning: line {record['line']}: {warning}"
        for record in map(json.loads, lines(result))
        for warning in record["translations"][0].get("warnings", ())
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--glossary", "x", "--sampling"], "--glossary: cannot be used with --samp"),
        (["--candidates", "3"], "--candidates: needs --mbr or --rerank"),
        (["--mbr", "bleu", "--rerank", "x"], "--mbr and --rerank: pass only one"),
        (
            ["--mbr", "bleu", "--candidates", "2", "--n-best", "3"],
            "--n-best 3: must not exceed the number of candidates, 2",
        ),
        (["--glossary", "none.tsv"], "none.tsv"),
        (["--glossary", "bad.tsv"], "bad.tsv:2: must have a source phrase"),
    ],
)
def test_wrong_choices_are_one_line(translate, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    for name, text in {"x": "a\tb\n", "bad": "a\tb\n\tc\n"}.items():
        (tmp_path / (name if name == "x" else f"{name}.tsv")).write_text(text)
    assert message in error_of(translate("--output", "out", *options))
    assert not (tmp_path / "out").exists()


def test_spans_stay_unless_protection_is_off(folders):
    line = "der <b>Hund</b> https://x.org läuft <keep>A&B</keep>"
    found = {
        kinds: lines(
            run_command(
                "translate", folders[0], *options, stdin=f"{SOURCES[0]}\n{line}"
            )
        )
        for kinds, options in {
            "default": (),
            "none": ("--protect", "none"),
        }.items()
    }
    opened = models.open_model(folders[0])
    assert found["none"] == [
        best.text for (best,) in opened.n_best([SOURCES[0], line], 1)
    ]
    assert all(each[0] == found["none"][0] for each in found.values())
    for part in ("<b>", "</b>", "https://x.org", "A&B"):
        assert found["default"][1].count(part) == 1
    result = run_command("translate", folders[0], "--protect", "urls,tag", stdin=line)
    assert (
        result.exit_code == 2
        and "--protect': tag: must be one or more of code" in result.stderr
    )
    error = error_of(run_command("translate", folders[0], stdin=f"\n{line} <keep>"))
    expected = "error: standard input:2: <keep> and </keep> must surround"
    assert error.startswith(expected)
