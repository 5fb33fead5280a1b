"""Extension of a model's vocabulary, followed by training."""

import numpy as np
import pytest
import tiny_export
from commands import error_of, run_command

import keras_transformer as kt
from keras_transformer import pipelines
from keras_transformer.errors import DataError
from keras_transformer.opening import open_model
from keras_transformer.runs.vocabulary import extend_vocabulary

# The letter Ż is not in the old vocabulary, which spells it with two byte tokens.
NEW = ["die Żaba quakt", "eine Żaba und noch eine Żaba", "quakt die Żaba"] * 5


@pytest.fixture(scope="module")
def grown(tiny_model):
    """Pair of the tiny model and its tokenizer with 15 more subwords."""
    return extend_vocabulary(*tiny_model, NEW, 15)


def test_new_subwords_get_the_mean_of_their_old_embeddings(tiny_model, grown):
    (old, old_tokenizer), (new, tokenizer) = tiny_model, grown
    assert new.vocabulary_size == tokenizer.vocabulary_size == 315
    assert old.vocabulary_size == 300
    before, after = (each.get_config() for each in (old, new))
    differing = {name for name in before if before[name] != after[name]}
    assert differing <= {"name", "vocabulary_size"}
    others = 0
    for before, after in zip(old.weights, new.weights, strict=True):
        assert before.path.partition("/")[2] == after.path.partition("/")[2]
        before, after = map(np.asarray, (before, after))
        if before.shape == after.shape:
            np.testing.assert_array_equal(before, after)
            others += 1
            continue
        assert before.shape == (300, 24) and after.shape == (315, 24)
        np.testing.assert_array_equal(before, after[:300])
        for number, piece in enumerate(tokenizer.pieces()[300:], start=300):
            # A new row is the mean over the old subwords that spell the new one. The
            # "▁" that the tokenizer adds before a text counts only if the new subword
            # begins with it.
            (ids,) = old_tokenizer.tokenize([piece.replace("▁", " ").strip()]).to_list()
            if piece.startswith("▁") or ids[0] != old_tokenizer.pieces().index("▁"):
                expected = before[ids].mean(axis=0)
            else:
                expected = before[ids[1:]].mean(axis=0)
            np.testing.assert_allclose(after[number], expected, atol=1e-6)
    assert others == len(old.weights) - 1
    assert "Ż" in tokenizer.pieces()


def test_update_keeps_old_translations(tiny_model, grown):
    """Text without new subwords keeps its logits for the old ids."""
    (old, old_tokenizer), (new, tokenizer) = tiny_model, grown
    texts = [
        text
        for text in tiny_export.SENTENCES
        if max(tokenizer.tokenize([text]).to_list()[0]) < 300
    ]
    assert len(texts) == 2
    ids = old_tokenizer.tokenize(texts)
    assert ids.to_list() == tokenizer.tokenize(texts).to_list()
    inputs = {"source_ids": ids.to_tensor(), "target_ids": ids.to_tensor()[:, :-1]}
    before, after = (np.array(model(inputs, training=False)) for model in (old, new))
    np.testing.assert_allclose(after[:, :, :300], before, atol=1e-5)


def test_update_extends_separate_matrices_and_biases():
    """Both sides share the vocabulary, but not the embeddings."""
    changes = {"source_vocabulary_size": 300, "tied_output": False, "logits_bias": True}
    model, tokenizer = tiny_export.tiny_model(1, variations=changes)
    larger, grown = extend_vocabulary(model, tokenizer, NEW, 15)
    first = [tokenizer.pieces().index(f"<0x{byte:02X}>") for byte in "Ż".encode()]
    number = grown.pieces().index("Ż")
    resized = 0
    for old, new in zip(model.weights, larger.weights, strict=True):
        old, new = map(np.asarray, (old, new))
        np.testing.assert_array_equal(new[: len(old)], old)
        if len(new) > len(old):
            np.testing.assert_allclose(new[number], old[first].mean(axis=0), atol=1e-6)
            resized += 1
    # The embeddings of both sides, the output matrix, and its bias.
    assert resized == 4 and larger.source_vocabulary_size == 315


def test_update_rejects_fixed_vocabularies(tiny_model):
    with pytest.raises(DataError, match="provides no new subwords"):
        extend_vocabulary(*tiny_model, ["der"], 9)
    pieces = pipelines.train_tokenizer("word_piece", tiny_export.SENTENCES * 4, 300)
    model = kt.Transformer(300, num_layers=1, d_model=8, d_ff=8, num_heads=2)
    with pytest.raises(DataError, match="kind word_piece cannot be extended, because"):
        extend_vocabulary(model, pieces, NEW, 9)


def test_update_vocabulary_writes_the_larger_model(tiny_model, tmp_path):
    model, tokenizer = tiny_model
    model.save(tmp_path / "model.keras")
    tokenizer.save(tmp_path)
    for name, lines in (("a", NEW[:7]), ("b", NEW[7:])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    command = ["extend-vocabulary", tmp_path / "model.keras", "--size", "15"]
    texts = ["--source", tmp_path / "a", "--target", tmp_path / "b"]
    output = tmp_path / "grown"
    result = run_command(*command, *texts, "--output", output, code=0)
    assert result.stdout == f"{output / 'model.keras'}\n"
    assert "15 subwords added: b, Ż, k, q, ab, aba, Żaba, ▁Żaba, " in result.stderr
    assert sorted(path.name for path in output.iterdir()) == [
        "model.keras",
        "tokenizer",
    ]
    assert open_model(output).tokenizer.vocabulary_size == 315
    again = run_command(*command, *texts, "--output", output)
    assert "grown: already exists" in error_of(again)
    nothing = run_command(*command, "--output", tmp_path / "x")
    assert "at least one of --source" in error_of(nothing)
