"""Import of Marian models, compared with Marian's scores and with NumPy.

The models that Marian trained, with its scores and translations, are in
`marian/golden_marian.tgz` in the folder of the fixture `data_dir`.
`toolkit_models.logits` computes the expected logits of other models in NumPy.
"""

import itertools

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from import_checks import model_logits
from toolkit_models import (
    DECODER,
    PIECES,
    SETTINGS,
    SOURCE,
    TARGET,
    logits,
    npz,
    random_arrays,
    splitter,
    write_marian,
)

from keras_transformer.errors import ModelError
from keras_transformer.interop.from_marian import import_marian
from keras_transformer.pipelines.tokenizers.model_check import sentencepiece_pieces

# Marian writes the score of each subword with five decimals.
SCORE_TOLERANCE = 2e-5


def traced_log_probs(model):
    """Returns a compiled function from rows of source and target ids to log-probs.

    Ids are `[rows, length]`, and log-probabilities `[rows, target length + 1, pieces]`,
    after the start and each id.
    """
    rows = tf.TensorSpec([None, None], tf.int32)

    @tf.function(input_signature=[rows, rows], autograph=False)
    def traced(source_ids, target_ids):
        start = tf.fill([tf.shape(target_ids)[0], 1], model.vocabulary_size - 1)
        ids = {"source_ids": source_ids}
        logits = model({**ids, "target_ids": tf.concat([start, target_ids], 1)})
        return tf.nn.log_softmax(tf.cast(logits, tf.float64))

    return lambda *ids: traced(*(np.array(each, "int32") for each in ids)).numpy()


def lines_of(path):
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


@pytest.mark.parametrize("name", ["base", "tiedout", "untied"])
def test_golden_model_has_marians_scores(golden, name):
    imported = import_marian(golden / name)
    log_probs_of, tokenizer = traced_log_probs(imported.model), imported.tokenizer
    tokenizer.text = None  # some subwords of this vocabulary are invisible
    sources, targets = (
        lines_of(golden / f"{side}.txt") for side in ("source", "target")
    )
    scores = lines_of(golden / name / "word_scores.txt")
    compared = 0
    for source, target, line in zip(sources, targets, scores, strict=True):
        total, _, words = line.partition(" ||| WordScores= ")
        (source_ids,) = tokenizer.tokenize([source]).to_list()
        (target_ids,) = tokenizer.target.tokenize([target]).to_list()
        assert tokenizer.unknown_id not in (*source_ids, *target_ids)
        (found,) = log_probs_of([[*source_ids, tokenizer.end_id]], [target_ids])
        found = found[np.arange(len(found)), [*target_ids, tokenizer.target.end_id]]
        expected = np.array(words.split(), float)
        np.testing.assert_allclose(found, expected, atol=SCORE_TOLERANCE)
        assert found.sum() == pytest.approx(float(total), abs=1e-4)
        compared += len(found)
    assert compared > 100
    _check_n_best_scores(golden / name, log_probs_of, tokenizer, sources)


def _check_n_best_scores(folder, log_probs_of, tokenizer, sources):
    """Compares the scores of n-best lists that Marian truncated at its length limit.

    A truncated hypothesis has no end id, so its score is the sum over its subwords.
    """
    compared = 0
    lines = [line.split(" ||| ") for line in lines_of(folder / "nbest.txt")]
    for number, group in itertools.groupby(lines, key=lambda parts: int(parts[0])):
        _, texts, _, scores = zip(*group, strict=True)
        (source_ids,) = tokenizer.tokenize([sources[number]]).to_list()
        source_ids.append(tokenizer.end_id)
        ids = np.array(tokenizer.target.tokenize(texts).to_list())
        # Marian's limit was twice the length of the source.
        assert ids.shape == (len(texts), 2 * len(source_ids))
        log_probs = log_probs_of([source_ids] * len(ids), ids)[:, :-1]
        found = np.take_along_axis(log_probs, ids[..., None], axis=-1).sum(axis=(1, 2))
        expected = np.array(scores, float)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)
        compared += len(ids)
    # The file has the four best hypotheses of each source.
    assert compared == 4 * len(sources)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pre", "'transformer-preprocess' is wrong: .* Received: 'n'"),
        ("ssru", "'transformer-decoder-autoreg' is wrong: .*'rnn'"),
        ("aan", "'transformer-decoder-autoreg' is wrong: .*'average-attention'"),
    ],
)
def test_import_names_the_unsupported_architecture(golden, name, reason):
    with pytest.raises(ModelError, match=f"model.npz, special:model.yml: {reason}"):
        import_marian(golden / name)


@pytest.mark.parametrize(
    ("arrays", "settings"),
    [
        ({}, {}),
        ({"shared": False}, {"tied-embeddings-all": False, "tied-embeddings": True}),
        ({"shared": False, "tied": False}, {"tied-embeddings-all": False}),
        ({"embedding_norm": True}, {"transformer-postprocess-emb": "nd"}),
        ({}, {"transformer-ffn-activation": "relu"}),
        ({}, {"transformer-ffn-activation": "gelu"}),
        (
            {},
            {"transformer-ffn-activation": "gelu", "version": "v1.11 2022-05-07 00:00"},
        ),
    ],
    ids=["tied", "two vocabularies", "untied", "norm", "relu", "gelu", "old gelu"],
)
@pytest.mark.parametrize("engine", ["marian", "huggingface"])
def test_imported_model_matches_numpy(tmp_path, arrays, settings, engine):
    arrays, settings = random_arrays(**arrays), {**SETTINGS, **settings}
    folder = write_marian(tmp_path / "model", arrays, settings)
    imported = import_marian(folder, engine)
    activation = settings["transformer-ffn-activation"]
    if activation == "gelu" and engine == "marian" and "2022" in settings["version"]:
        # Versions of Marian before March 2023 compute gelu as x * sigmoid(1.702 x).
        activation = "quick_gelu"
    expected = logits(arrays, SOURCE, TARGET, engine, activation)
    np.testing.assert_allclose(model_logits(imported.model), expected, atol=2e-5)
    # Guards the line above: the other engine gives other logits.
    other = {"marian": "huggingface", "huggingface": "marian"}[engine]
    others = logits(arrays, SOURCE, TARGET, other, activation)
    assert np.abs(expected - others).max() > 1e-3


@pytest.mark.parametrize("tied", [[1, 1], [2, 1, 2], [3, 3, 3, 3, 3, 3, 3, 3]])
def test_tied_layers_have_the_weights_of_the_layer_that_they_name(tmp_path, tied):
    arrays = random_arrays()
    for name in [name for name in arrays if name.startswith("decoder_l1_")]:
        array = arrays.pop(name)
        for number in set(tied):
            arrays[name.replace("_l1_", f"_l{number}_")] = array + number / 8
    settings = {**SETTINGS, "dec-depth": len(tied), "transformer-tied-layers": tied}
    imported = import_marian(write_marian(tmp_path / "model", arrays, settings))
    expected = logits(arrays, SOURCE, TARGET, layers=tied)
    np.testing.assert_allclose(model_logits(imported.model), expected, atol=2e-5)
    # Guards the line above: a single layer gives other logits.
    others = logits(arrays, SOURCE, TARGET, layers=tied[:1])
    assert np.abs(expected - others).max() > 1e-3
    numbers = " ".join(map(str, tied))
    row = f"{numbers}, stored as copies; fine-tuning unties them"
    assert imported.card_rows["tied decoder layers"] == row


def test_arrays_of_other_versions_give_the_same_model(tmp_path):
    arrays = random_arrays(tied=False, shared=False)
    settings = {**SETTINGS, "tied-embeddings-all": False}
    expected = logits(arrays, SOURCE, TARGET)
    folder = write_marian(tmp_path / "model", arrays, settings)
    # Very old files store the output projection transposed. Newer files pad the
    # settings with null bytes.
    arrays["decoder_ff_logit_out_W"] = arrays.pop("decoder_ff_logit_out_Wt").T.copy()
    half = {name: array.astype("float16") for name, array in arrays.items()}
    for stored, padding in ((arrays, b"\0" * 200), (half, b"")):
        (folder / "model.npz").write_bytes(npz(stored, settings, padding))
        found = model_logits(import_marian(folder).model)
        atol = 0.05 if stored is half else 2e-5
        np.testing.assert_allclose(found, expected, atol=atol)


def test_import_reads_decoding_settings_and_ids(marian):
    imported = import_marian(marian / "decoder.yml")
    assert imported.decoding == {
        "beam_size": 3,
        "length_penalty": 0.6,
        "length_penalty_kind": "power",
    }
    model = imported.model
    # Padding and start get the two ids after the pieces. They have no logits.
    assert model.vocabulary_size == len(PIECES) + 2
    assert model.num_outputs == model.pad_id == len(PIECES)
    assert model.variations.zero_start_id == len(PIECES) + 1


def test_sentencepiece_vocabulary_tokenizes_like_sentencepiece(marian):
    content = splitter()
    pieces = sentencepiece_pieces(content)
    (marian / "vocab.spm").write_bytes(content)
    (marian / "decoder.yml").write_text(DECODER.replace("vocab.yml", "vocab.spm"))
    arrays = random_arrays()
    generator = np.random.default_rng(1)
    arrays["Wemb"] = generator.normal(size=(len(pieces), 8)).astype("float32")
    arrays["decoder_ff_logit_out_b"] = np.zeros((1, len(pieces)), "float32")
    (marian / "model.npz").write_bytes(npz(arrays))
    tokenizer = import_marian(marian).tokenizer
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    texts = ["ab cd", ">>fra<< a", "xyz a"]
    assert tokenizer.tokenize(texts).to_list() == processor.encode(texts)


@pytest.mark.parametrize("column", ["alignment", "weight"])
def test_types_of_training_columns_do_not_change_the_model(tmp_path, column):
    """Marian stores them if it was trained with `--tsv --guided-alignment`."""
    arrays = random_arrays()
    settings = {**SETTINGS, "input-types": ["sequence", "sequence", column]}
    folder = write_marian(tmp_path / "model", arrays, settings)
    found = model_logits(import_marian(folder).model)
    np.testing.assert_allclose(found, logits(arrays, SOURCE, TARGET), atol=2e-5)
