"""Contents of model cards, without private folder names."""

import json

import pytest
from model_cards import card_tables
from phrases_run import small_recipe

from keras_transformer.export import model_card, run_metadata
from keras_transformer.recipes import dump_recipe, load_recipe


@pytest.mark.parametrize("jit_compile", [False, True])
def test_model_card_names_how_it_was_exported(tiny_model, jit_compile):
    export = {
        "tokenizer_ops": "tensorflow",
        "parallel_parts": 2,
        "jit_compile": jit_compile,
    }
    table = card_tables(model_card(*tiny_model, {}, export=export))["Export"]
    assert table["tokenizer operations"] == "tensorflow"
    assert table["parallel parts of a batch"] == "2"
    assert ("lack XLA" in table["TF-Serving"]) == jit_compile
    assert (table["XLA"] == "no") != jit_compile


def test_model_card_describes_an_unfinished_run(tmp_path, tiny_model):
    """The log has an incomplete line, null for a non-finite value, and a parsing F1."""
    dump_recipe(small_recipe(), tmp_path / "config.yaml")
    rows = [
        {"split": "validation", "step": 2, "perplexity": None, "f1": 71.234},
        {"split": "train", "step": 3, "loss": 2.0},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text + '{"split": "validation", "st')
    facts = run_metadata(tmp_path)
    assert facts["validation"] == rows[0]
    scores = card_tables(model_card(*tiny_model, {}, **facts))["Scores"]
    title = "bracketing F1, validation"
    assert list(scores) == [title]
    assert scores[title][0] == "71.23"
    assert "step 2, beam 1, 3 sentences, labeled" in scores[title][1]
    # A test score of the same name has its own row.
    tested = [{"name": "bracketing F1", "score": 70, "signature": "labeled"}]
    card = model_card(*tiny_model, {}, **facts, scores=tested)
    assert list(card_tables(card)["Scores"]) == ["bracketing F1", title]


def test_model_card_shows_the_validation_of_its_own_model(tmp_path, tiny_model):
    """The final model is an average of checkpoints and has other scores than they."""
    recipe = load_recipe("phrases", ["decoding.beam_size=5"])
    dump_recipe(recipe, tmp_path / "config.yaml")
    rows = [
        {"split": "validation", "step": 4, "bleu": 30.0, "is_best": True},
        {"split": "validation", "step": 8, "bleu": 29.0, "is_best": False},
        {"split": "final", "step": 8, "bleu": 31.0},
    ]

    def scores(path):
        log = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "metrics.jsonl").write_text(log)
        card = model_card(*tiny_model, {}, **run_metadata(path))
        return card_tables(card)["Scores"]

    for path, score, how in (
        (tmp_path, "31.00", "final model at step 8, beam 5, length penalty 0.6"),
        (tmp_path / "model.keras", "31.00", "final model at step 8, beam 5"),
        (tmp_path / "best.keras", "30.00", "single checkpoint at step 4, beam 1"),
    ):
        found = scores(path)["BLEU, validation"]
        assert found[0] == score and how in found[1]
    assert scores(tmp_path / "mean.keras") == "not stated"
    del rows[2]
    found = scores(tmp_path)["BLEU, validation"]
    assert found[0] == "29.00" and "single checkpoint at step 8, beam 1" in found[1]


def test_model_card_of_records_names_no_folder(tmp_path, tiny_model):
    recipe = load_recipe("phrases", ["data={kind: records, train: /home/x/ids}"])
    card = model_card(*tiny_model, {}, recipe)
    assert card_tables(card)["Data"]["train"] == "ids"
    assert "/home/x" not in card


def test_model_card_omits_unset_values_of_data(tiny_model):
    data = {"kind": "trees", "train": {"trees": ["a.mrg"]}}
    recipe = load_recipe("phrases", [f"data={json.dumps(data)}"])
    table = card_tables(model_card(*tiny_model, {}, recipe))["Data"]
    assert table["train"] == "trees a.mrg"


def test_card_tables_restores_the_values_of_a_model_card(tiny_model):
    scores = [{"name": "BLEU", "score": 12.346, "signature": "a|b:c"}]
    recipe = load_recipe("phrases", ["training.initial_model=/home/x/runs/old"])
    card = model_card(*tiny_model, {"beam_size": 3}, recipe, scores=scores)
    sections = card_tables(card)
    assert sections["Scores"] == {"BLEU": ["12.35", "a|b:c"]}
    assert sections["Search"] == {"beam_size": "3"}
    assert sections["Training"]["initial_model"] == "old"
    assert "/home/x" not in card
    assert sections["License"] == "not stated"
