"""Marian folders whose vocabularies and matrices differ in size."""

import json

import numpy as np
import pytest
from import_checks import import_error, model_logits
from toolkit_models import (
    DECODER,
    PIECES,
    SETTINGS,
    SOURCE,
    TARGET,
    logits,
    random_arrays,
    write_marian,
)

from keras_transformer.interop.from_marian import import_marian

# Settings of models with two embedding matrices.
SEPARATE = {"tied-embeddings-all": False, "tied-embeddings": True}
# The same pieces as `PIECES` at other ids. Of 15 ids, 4 have no piece.
SPREAD = [0, 1, 3, 4, 5, 7, 8, 9, 10, 12, 13]


def write_vocabulary(path, entries):
    """Writes the (id, piece) pairs as YAML."""
    lines = [f'"{piece}": {number}\n' for number, piece in entries]
    path.write_text("".join(lines), encoding="utf-8")


def spread_rows(arrays, ids, size):
    """Moves the rows of all vocabulary matrices to `ids` of matrices of `size` rows.

    The other rows would change each translation, because their biases are high.
    """
    arrays = dict(arrays)
    for name in ("Wemb", "encoder_Wemb", "decoder_Wemb", "decoder_ff_logit_out_Wt"):
        if name in arrays:
            matrix = np.full((size, arrays[name].shape[1]), 7, "float32")
            matrix[ids] = arrays[name]
            arrays[name] = matrix
    bias = np.full((1, size), 30, "float32")
    bias[0, ids] = arrays["decoder_ff_logit_out_b"][0]
    return {**arrays, "decoder_ff_logit_out_b": bias}


@pytest.mark.parametrize(
    ("options", "settings"),
    [({}, {}), ({"shared": False, "tied": False}, {"tied-embeddings-all": False})],
    ids=["shared", "separate"],
)
@pytest.mark.parametrize(
    ("ids", "size"),
    [(range(11), 11), (range(11), 14), (SPREAD, 15)],
    ids=["smaller dim-vocabs", "larger dim-vocabs", "gaps"],
)
def test_model_has_the_ids_with_pieces(tmp_path, options, settings, ids, size):
    arrays = random_arrays(**options)
    settings = {**SETTINGS, **settings, "dim-vocabs": [size, size]}
    stored = spread_rows(arrays, ids, size)
    folder = write_marian(tmp_path / "model", stored, settings)
    # Marian ignores entries whose ids are not below dim-vocabs.
    beyond = [(size, "zz"), (size + 1, "yy")]
    write_vocabulary(
        folder / "vocab.yml", [*zip(ids, PIECES, strict=True), *beyond][::-1]
    )
    imported = import_marian(folder)
    assert imported.tokenizer.pieces()[:-2] == list(PIECES)
    expected = logits(arrays, SOURCE, TARGET)
    np.testing.assert_allclose(model_logits(imported.model), expected, atol=2e-5)
    missing = imported.card_rows.get("ids without a subword")
    assert missing == (f"{size - 11}, omitted from the softmax" if size > 11 else None)


def test_sides_may_have_vocabularies_of_different_sizes(tmp_path):
    arrays = random_arrays(shared=False)
    arrays["encoder_Wemb"] = arrays["encoder_Wemb"][:10]
    decoder = DECODER.replace("[vocab.yml,", "[source.txt,")
    settings = {**SETTINGS, **SEPARATE, "dim-vocabs": [10, 0]}
    folder = write_marian(tmp_path / "model", arrays, settings, decoder)
    (folder / "source.txt").write_text("\n".join(PIECES), encoding="utf-8")
    imported = import_marian(folder)
    assert imported.tokenizer.num_outputs == 10
    assert imported.tokenizer.target.num_outputs == 11
    expected = logits(arrays, SOURCE, TARGET)
    np.testing.assert_allclose(model_logits(imported.model), expected, atol=2e-5)
    # The last piece, "f", is beyond the size of the source vocabulary.
    assert imported.tokenizer.tokenize(["f"]).to_list() == [[8, 1]]


def test_shared_embeddings_require_the_same_ids(tmp_path):
    decoder = DECODER.replace("[vocab.yml,", "[source.yml,")
    folder = write_marian(tmp_path / "model", random_arrays(), decoder=decoder)
    entries = [each for each in enumerate(PIECES) if each[0] != 4]
    write_vocabulary(folder / "source.yml", entries)
    assert "source.yml: must have the ids of vocab.yml" in import_error(
        import_marian, folder
    )


def write_sides(folder):
    """Writes different vocabularies `en/vocab.yml` and `de/vocab.yml`."""
    reordered = (*PIECES[:2], *PIECES[:1:-1])
    for name, pieces in (("en", PIECES), ("de", reordered)):
        (folder / name).mkdir()
        write_vocabulary(folder / name / "vocab.yml", enumerate(pieces))
    return PIECES, reordered


def test_files_in_subfolders_are_read(tmp_path):
    decoder = DECODER.replace(
        "[vocab.yml, vocab.yml]", "[en/vocab.yml, ./de/vocab.yml]"
    )
    decoder = decoder.replace("model.npz", "model/model.npz")
    settings = {**SETTINGS, **SEPARATE}
    arrays = random_arrays(shared=False)
    folder = write_marian(tmp_path / "model", arrays, settings, decoder)
    expected = write_sides(folder)
    (folder / "model").mkdir()
    (folder / "model.npz").rename(folder / "model" / "model.npz")
    # A file with the base name is not used instead.
    write_vocabulary(folder / "vocab.yml", [(0, "x")])
    tokenizer = import_marian(folder).tokenizer
    assert tokenizer.pieces()[:-2] == list(expected[0])
    assert tokenizer.target.pieces()[:-2] == list(expected[1])


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("../en/vocab.yml", "../de/vocab.yml"),
        ("{}/en/vocab.yml", "{}/de/vocab.yml"),
        ("a/../en/vocab.yml", "vocab.yml"),
        ("x/vocab.yml", "y/vocab.yml"),
    ],
)
def test_paths_outside_the_folder_are_replaced_by_base_names(tmp_path, source, target):
    folder = write_marian(tmp_path / "model", random_arrays())
    write_sides(tmp_path)
    source, target = (path.format(tmp_path) for path in (source, target))
    # The folder has only vocab.yml for two different paths.
    decoder = DECODER.replace("[vocab.yml, vocab.yml]", f"[{source}, {target}]")
    (folder / "decoder.yml").write_text(decoder)
    message = import_error(import_marian, folder)
    assert "vocabs must name files in this folder" in message and target in message
    decoder = DECODER.replace("[vocab.yml, vocab.yml]", f"[{source}, {source}]")
    (folder / "decoder.yml").write_text(decoder)
    assert import_marian(folder).tokenizer.pieces()[:-2] == list(PIECES)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "d"])
def test_names_that_are_no_files_are_refused(tmp_path, name):
    folder = write_marian(tmp_path / "model", random_arrays())
    (folder / "d").mkdir()
    name = json.dumps(f"{name}/vocab.yml")
    decoder = DECODER.replace("[vocab.yml, vocab.yml]", f"[{name}, {name}]")
    (folder / "decoder.yml").write_text(decoder)
    (folder / "vocab.yml").unlink()
    assert "vocab.yml: no such file" in import_error(import_marian, folder)


def test_vocabulary_of_subword_nmt_is_refused(tmp_path):
    decoder = DECODER.replace("[vocab.yml,", "[source.txt,")
    folder = write_marian(tmp_path / "model", random_arrays(), decoder=decoder)
    for side in ("source", "target"):
        (folder / f"{side}.spm").unlink()
    words = ["</s>", "<unk>", *"abcdefg", "house", "@@"]
    write_vocabulary(folder / "vocab.yml", enumerate(words))
    # A word that consists of the mark alone is no subword.
    (folder / "source.txt").write_text("\n".join(words))
    assert import_marian(folder).tokenizer.model is None
    words[2] = "un@@"
    write_vocabulary(folder / "vocab.yml", enumerate(words))
    message = import_error(import_marian, folder)
    assert "vocab.yml: subwords of subword-nmt (with @@)" in message
