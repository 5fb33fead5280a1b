"""Exports for the Marian toolkit, against Marian's own files and a second import.

If a model was imported from Marian, its export has the arrays, settings and vocabulary
that Marian wrote. Other exports are imported again and must match the original model.
"""

import keras
import numpy as np
import pytest
import yaml
from layer_checks import numpy
from tiny_export import (
    export_to_folder,
    open_translator,
    separate_tokenizers,
    tiny_model,
)
from toolkit_models import DECODER, random_arrays, write_marian

import keras_transformer as kt
from keras_transformer.errors import ExportError
from keras_transformer.interop import export_marian
from keras_transformer.interop.from_marian import import_marian

SEARCH = kt.BeamSearch(beam_size=3, length_penalty=0.6, length_penalty_kind="power")
ZERO_START = {"zero_start_id": 2, "timescales": "tensor2tensor"}
TEXTS = ["der Hund läuft", "ein Hund und noch ein Hund", "läuft 😀 der", "Katze"]


def make_translator(**changes):
    """Returns the `Translator` of a model that Marian can run, with random weights."""
    arguments = {
        **{"num_layers": 2, "activation": "silu", "noise": 0.2},
        **{"variations": {**ZERO_START, "num_decoder_layers": 1}},
    }
    return open_translator(*tiny_model(**{**arguments, **changes}), SEARCH)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A translator and the folder that it was exported to."""
    return export_to_folder(export_marian, make_translator(), tmp_path_factory)


def read_npz(path):
    """Returns the arrays of Marian's model.npz, and its settings, parsed from YAML."""
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    content = arrays.pop("special:model.yml")
    assert content.dtype == np.int8 and content[-1] == 0
    return arrays, yaml.safe_load(content.tobytes().rstrip(b"\0").decode("ascii"))


@pytest.mark.parametrize("name", ["base", "tiedout", "untied"])
def test_exporting_an_imported_model_restores_marians_files(golden, tmp_path, name):
    imported = import_marian(golden / name)
    translator = open_translator(imported.model, imported.tokenizer, SEARCH)
    folder = export_marian(translator, tmp_path / "m")
    expected, original = read_npz(golden / name / "model.npz")
    found, settings = read_npz(folder / "model.npz")
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array)
        assert found[key].dtype == array.dtype
    del original["version"], settings["version"]
    known = settings.keys() & original.keys()
    assert len(known) > 35
    assert {key: settings[key] for key in known} == {
        key: original[key] for key in known
    }
    # The import adds a padding and a start id at the end, which Marian does not have.
    pieces = imported.tokenizer.pieces()[:-2]
    files = ["vocab.yml"] if name == "base" else ["src.vocab.yml", "trg.vocab.yml"]
    for file in files:
        text = (folder / file).read_text(encoding="utf-8")
        vocabulary = yaml.load(text, yaml.BaseLoader)
        assert vocabulary == {piece: str(n) for n, piece in enumerate(pieces)}
    # These vocabularies are lists of words, so there are no SentencePiece models.
    assert {path.name for path in folder.iterdir()} == {
        *("model.npz", "decoder.yml", "MODEL_CARD.md", "summary.json", "text.json"),
        *files,
    }


@pytest.mark.parametrize("shorter", ["source", "target"])
def test_shared_embeddings_have_the_rows_of_the_longer_vocabulary(tmp_path, shorter):
    names = ("short.yml", "vocab.yml")[:: 1 if shorter == "source" else -1]
    decoder = DECODER.replace("[vocab.yml, vocab.yml]", f"[{', '.join(names)}]")
    original = write_marian(tmp_path / "marian", random_arrays(), decoder=decoder)
    lines = (original / "vocab.yml").read_text(encoding="utf-8").splitlines()
    (original / "short.yml").write_text("\n".join(lines[:9]), encoding="utf-8")
    imported = import_marian(original)
    translator = open_translator(imported.model, imported.tokenizer, SEARCH)
    folder = export_marian(translator, tmp_path / "m")
    arrays, settings = read_npz(folder / "model.npz")
    np.testing.assert_array_equal(arrays["Wemb"], random_arrays()["Wemb"])
    assert settings["dim-vocabs"] == [11, 11]
    assert arrays["decoder_ff_logit_out_b"].shape == (1, 11)
    side = {"source": "src", "target": "trg"}[shorter]
    vocabulary = (folder / f"{side}.vocab.yml").read_text(encoding="utf-8")
    assert vocabulary.endswith("'<unused0>': 9\n'<unused1>': 10\n")
    again = import_marian(folder).model
    source, target = [2, 4, 8, 7, 0], [3, 8, 5, 2]
    found, expected = (
        log_probs(model, source, [model.vocabulary_size - 1, *target])
        for model in (again, imported.model)
    )
    np.testing.assert_allclose(found[:, : expected.shape[1]], expected, atol=2e-5)
    assert (found[:, expected.shape[1] :] < -1e8).all()


def test_shared_embeddings_require_equal_vocabularies(tmp_path):
    tokenizer = separate_tokenizers(300, 290)
    ours, _ = tiny_model(1, 0.2, variations=ZERO_START)
    translator = open_translator(ours, tokenizer, SEARCH)
    with pytest.raises(
        ExportError, match=r"must have the same ids .*\. Received: 298 and 288 ids"
    ):
        export_marian(translator, tmp_path / "m")


def log_probs(model, source, target):
    """Returns next-token log-probabilities `[length, outputs]` at all positions."""
    ids = {"source_ids": np.array([source]), "target_ids": np.array([target])}
    return numpy(keras.ops.log_softmax(model(ids)))[0].astype("float64")


def test_exported_model_has_marians_ids_and_the_same_log_probs(exported):
    translator, folder = exported
    ours, tokenizer = translator.model, translator.tokenizer
    imported = import_marian(folder)
    # Ours: padding 0, unknown 1, start 2, end 3. Marian's: end 0, unknown 1.
    kept = [3, 1, *range(4, 300)]
    new = {old: number for number, old in enumerate(kept)}
    pieces = imported.tokenizer.pieces()
    assert pieces[:2] == ["</s>", "<unk>"]
    assert pieces[2:298] == tokenizer.pieces()[4:]
    for text, target in zip(TEXTS, TEXTS[::-1], strict=True):
        (source_ids,) = tokenizer.tokenize([text]).to_list()
        (target_ids,) = tokenizer.tokenize([target]).to_list()
        mapped = [[new[n] for n in ids] for ids in (source_ids, target_ids)]
        assert imported.tokenizer.tokenize([text]).to_list() == mapped[:1]
        restored = imported.tokenizer.target.detokenize([mapped[1]]).numpy()
        assert restored[0].decode() == target
        expected = log_probs(ours, [*source_ids, 3], [2, *target_ids])[:, kept]
        # Marian's softmax is over the kept ids only.
        expected -= np.log(np.exp(expected).sum(axis=1, keepdims=True))
        start = imported.tokenizer.start_id
        found = log_probs(imported.model, [*mapped[0], 0], [start, *mapped[1]])
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_separate_vocabularies_keep_their_sizes(tmp_path):
    tokenizer = separate_tokenizers(290, 300)
    variations = {**ZERO_START, "source_vocabulary_size": 290}
    ours, _ = tiny_model(1, 0.2, variations=variations)
    translator = open_translator(ours, tokenizer, SEARCH)
    folder = export_marian(translator, tmp_path / "m")
    _, settings = read_npz(folder / "model.npz")
    # Without padding and start.
    assert settings["dim-vocabs"] == [288, 298]
    for side, each in (("source", tokenizer.source), ("target", tokenizer.target)):
        assert (folder / f"{side}.spm").read_bytes() == each.model
    imported = import_marian(folder)
    logits = [
        numpy(model({"source_ids": np.array([source]), "target_ids": np.array([ids])}))
        for model, source, ids in (
            (ours, [289, 5, 3], [2, 299, 44]),
            # In Marian's numbering, ids from 4 on are lower by 2, and the end id is 0.
            (imported.model, [287, 3, 0], [imported.tokenizer.start_id, 297, 42]),
        )
    ]
    kept = [3, 1, *range(4, 300)]
    np.testing.assert_allclose(logits[1], logits[0][..., kept], atol=2e-5)


def test_folder_has_the_files_and_settings_of_marian(exported):
    translator, folder = exported
    assert {path.name for path in folder.iterdir()} == {
        *("model.npz", "vocab.yml", "decoder.yml", "source.spm", "target.spm"),
        *("MODEL_CARD.md", "summary.json"),
    }
    assert (folder / "target.spm").read_bytes() == translator.tokenizer.model
    assert yaml.safe_load((folder / "decoder.yml").read_text()) == {
        **{"relative-paths": True, "models": ["model.npz"]},
        **{"vocabs": ["vocab.yml", "vocab.yml"], "beam-size": 3, "normalize": 0.6},
        "word-penalty": 0,
    }
    arrays, settings = read_npz(folder / "model.npz")
    assert settings["dim-vocabs"] == [298, 298]
    assert (settings["enc-depth"], settings["dec-depth"]) == (2, 1)
    assert settings["transformer-ffn-activation"] == "swish"
    assert settings["tied-embeddings-all"] is True
    # Embeddings and logits bias, 16 arrays per encoder layer, 26 per decoder layer.
    assert len(arrays) == 2 + 2 * 16 + 26
    assert arrays["Wemb"].shape == (298, 24)
    # The model has no attention and logits biases, so the export writes zeros.
    assert arrays["encoder_l2_self_bk"].shape == (1, 24)
    assert not arrays["encoder_l2_self_bk"].any()
    assert not arrays["decoder_ff_logit_out_b"].any()
    card = (folder / "MODEL_CARD.md").read_text()
    assert "CC0-1.0" in card and "start ids are omitted, so they have no logits" in card


def test_card_lists_only_notes_that_apply(golden, exported, tmp_path):
    translator, folder = exported
    # Marian uses the same length penalty.
    assert "length^" not in (folder / "MODEL_CARD.md").read_text()
    gnmt = translator.with_search(length_penalty_kind="gnmt")
    card = (export_marian(gnmt, tmp_path / "gnmt") / "MODEL_CARD.md").read_text()
    assert "length^0.6. keras_transformer divides them by the length penalty" in card
    imported = import_marian(golden / "base")
    same = open_translator(imported.model, imported.tokenizer, SEARCH)
    card = (export_marian(same, tmp_path / "same") / "MODEL_CARD.md").read_text()
    assert "floating-point\nrounding" in card
    *_, notes = card.partition("Also note:")
    # Only the limit on lengths differs.
    assert notes.count("- ") == 1 and "of the source plus 50" in notes
    patient = same.with_search(patience=2)
    card = (export_marian(patient, tmp_path / "patient") / "MODEL_CARD.md").read_text()
    assert "no setting like patience, which is 2 here" in card


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"variations": {"timescales": "tensor2tensor"}},
            "needs model.start: zeros. Received: a learned start vector. "
            "Adapt this model with `keras-transformer train RECIPE --from MODEL "
            "--output RUN --set model.start=zeros`",
        ),
        (
            {"variations": {"zero_start_id": 2}},
            "needs model.timescales: tensor2tensor. Received: timescales: "
            "paper. Adapt this model with `keras-transformer train RECIPE --from MODEL "
            "--output RUN --set model.timescales=tensor2tensor`",
        ),
        (
            {"variations": None},
            "--set model.start=zeros --set model.timescales=tensor2tensor",
        ),
        (
            {"normalization": "pre"},
            "needs model.normalization: post. Received: normalization: pre. Train a "
            "model with these recipe keys",
        ),
        (
            {"variations": {**ZERO_START, "layer_norm_epsilon": 1e-5}},
            "does not support layer_norm_epsilon. Received: layer_norm_epsilon=1e-05",
        ),
        ({"key_dim": 4}, "Marian requires key_dim=8"),
        ({"activation": "quick_gelu"}, "relu, gelu, swish, silu. Received: 'quick_"),
    ],
)
def test_models_that_marian_cannot_run_are_refused(tmp_path, changes, message):
    translator = make_translator(num_layers=1, **changes)
    with pytest.raises(ExportError) as caught:
        export_marian(translator, tmp_path / "x")
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_existing_paths_and_other_tokenizers_are_refused(exported, tmp_path):
    translator, _ = exported
    with pytest.raises(ExportError, match="already exists"):
        export_marian(translator, tmp_path)
    other = make_translator(num_layers=1)
    other.tokenizer.kind = "word_piece"
    with pytest.raises(
        ExportError, match=r"tokenizer.kind must be bpe.* Received: word_piece"
    ):
        export_marian(other, tmp_path / "x")


def test_equal_models_give_equal_files(exported, tmp_path):
    translator, folder = exported
    again = export_marian(translator, tmp_path / "again")
    for name in ("model.npz", "vocab.yml", "decoder.yml"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()
