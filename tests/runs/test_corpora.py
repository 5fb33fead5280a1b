"""Corpora of the data kinds tsv and files, with an existing tokenizer.

The recipe key `tokenizer.model` is the path of its SentencePiece model.
"""

import json

import pytest

from keras_transformer import pipelines
from keras_transformer.errors import DataError, RecipeError
from keras_transformer.recipes import load_recipe
from keras_transformer.runs.corpora import (
    load_corpora,
    load_pairs,
    prepare_corpora,
)
from keras_transformer.runs.plan import plan_training

PAIRS = [(f"{i} man and {i} dogs", f"{i} Mann und {i} Hunde") for i in range(20)]


@pytest.fixture(scope="module")
def tokenizer():
    texts = [text for pair in PAIRS for text in pair]
    return pipelines.train_tokenizer("bpe", texts, 300)


@pytest.fixture
def data(tmp_path):
    """Recipe setting for a file with the pairs, target first."""
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{target}\t{source}\n" for source, target in PAIRS))
    return f"data={{kind: tsv, train: {path}, source: 2, target: 1}}"


def test_run_uses_the_given_tokenizer_and_pairs(data, tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    settings = f"tokenizer={{model: {tmp_path}/tokenizer.model, vocabulary_size: 300}}"
    recipe = load_recipe("files", [data, settings])
    pairs = load_pairs(recipe.data)
    prepare_corpora(recipe, tmp_path / "run", pairs)
    used, corpora = load_corpora(recipe, tmp_path / "run", pairs)
    assert used.fingerprint() == tokenizer.fingerprint()
    assert corpora["train"].num_pairs == len(PAIRS)
    assert list(pairs["train"]) == PAIRS


def test_settings_of_the_text_are_stored_with_a_new_vocabulary(data, tmp_path):
    recipe = load_recipe("files", [data, "tokenizer.vocabulary_size=300"])
    prepare_corpora(recipe, tmp_path / "run", load_pairs(recipe.data))
    settings = json.loads((tmp_path / "run" / "tokenizer" / "text.json").read_text())
    assert settings == {
        **{"normalization": True, "sentences": True, "scripts": ["Latin"]},
        "capitals": False,  # the sources begin with a lowercase letter
        "words": [],
        "numbers": False,
    }


def test_phases_are_reported_in_a_log_file(data, tmp_path, capsys):
    recipe = load_recipe("files", [data, "tokenizer.vocabulary_size=300"])
    prepare_corpora(recipe, tmp_path / "run", load_pairs(recipe.data), progress=True)
    assert capsys.readouterr() == (
        "",
        "learning the vocabulary: started\nencoding data.train: 20 pairs\n",
    )
    # They are not repeated if their results exist.
    prepare_corpora(recipe, tmp_path / "run", load_pairs(recipe.data), progress=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "no such file"), ("one\n", "must have the same number of lines")],
)
def test_invalid_validation_text_is_found_first(tmp_path, monkeypatch, text, message):
    """Work on a large training text takes hours."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").write_text("a man\n" * 300)
    (tmp_path / "validation").write_text("a man\na dog\n")
    if text is not None:
        (tmp_path / "other").write_text(text)
    recipe = load_recipe(
        "files",
        [
            "data.train={source: train, target: train}",
            "data.validation={source: other, target: validation}",
        ],
    )
    with pytest.raises(DataError, match=message):
        prepare_corpora(recipe, tmp_path / "run", load_pairs(recipe.data))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("split", "name"), [("train", "training"), ("validation", "validation")]
)
def test_text_without_usable_pairs_is_named(tokenizer, tmp_path, split, name):
    tokenizer.save(tmp_path)
    (tmp_path / "short").write_text("man\n" * 20)
    (tmp_path / "long").write_text("man man man man man man man\n" * 20)
    short, long = (
        f"{{source: {tmp_path}/{file}, target: {tmp_path}/{file}}}"
        for file in ("short", "long")
    )
    settings = [
        f"data={{kind: files, train: {short}, max_length: 6}}",
        f"data.{split}={long}",
        f"tokenizer={{model: {tmp_path}/tokenizer.model, vocabulary_size: 300}}",
    ]
    recipe = load_recipe("files", settings)
    with pytest.raises(DataError, match=f"^no {name} examples: 0 of 20 pairs kept"):
        prepare_corpora(recipe, tmp_path / "run", load_pairs(recipe.data))


def test_learned_positions_cover_the_text(data, tmp_path):
    """Otherwise, all later positions of a text would share the last vector."""
    positions = ["model.positions=learned", "model.max_length=40"]
    recipe = load_recipe("files", [data, *positions])
    message = r"Received: data\.max_length=256, model\.max_length=40"
    with pytest.raises(RecipeError, match=message):
        prepare_corpora(recipe, tmp_path / "run", load_pairs(recipe.data))
    with pytest.raises(RecipeError, match=message):
        plan_training(recipe)
    settings = [*positions, "data.max_length=40", "tokenizer.vocabulary_size=300"]
    recipe = load_recipe("files", [data, *settings])
    prepare_corpora(recipe, tmp_path / "run", load_pairs(recipe.data))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.model", r"tokenizer.model .*missing.model: No such file"),
        ("text.model", r"tokenizer.model .*text.model: not a SentencePiece"),
        ("tokenizer.model", r"Set tokenizer.vocabulary_size=300"),
    ],
)
def test_invalid_tokenizer_file_is_reported_in_one_line(
    data, tokenizer, tmp_path, monkeypatch, name, message
):
    monkeypatch.chdir(tmp_path)
    tokenizer.save(tmp_path)
    (tmp_path / "text.model").write_text("text")
    recipe = load_recipe("files", [data, f"tokenizer.model={name}"])
    with pytest.raises(DataError, match=message):
        prepare_corpora(recipe, tmp_path / "run", load_pairs(recipe.data))
