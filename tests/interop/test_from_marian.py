"""Import of Marian models, compared with Marian's scores and with NumPy.

The models that Marian trained, with its scores and translations, are in
`marian/golden_marian.tgz` in the folder of the fixture `data_dir`.
`toolkit_models.logits` computes the expected logits of other models in NumPy.
"""

import itertools
import pickle
import re
import shutil
import zipfile

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from import_checks import FileOnUnpickle, import_error, model_logits
from layer_checks import numpy
from toolkit_models import (
    DECODER,
    PIECES,
    SETTINGS,
    SOURCE,
    TARGET,
    extract_golden,
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


def traced_logits(model):
    """Returns a compiled function from lists of source and target ids to logits.

    The logits are an array `[target ids + 1, pieces]`, after the start and each id.
    """
    rows = tf.TensorSpec([None, None], tf.int32)
    traced = tf.function(
        lambda *ids: model(dict(zip(("source_ids", "target_ids"), ids, strict=True))),
        input_signature=[rows, rows],
        autograph=False,
    )
    start = model.vocabulary_size - 1
    return lambda source, target: traced([source], [[start, *target]])[0].numpy()


@pytest.fixture(scope="module")
def golden(data_dir, tmp_path_factory):
    """The folder of models that Marian wrote, with its scores and translations."""
    return extract_golden(data_dir, tmp_path_factory.mktemp("marian"))


def lines_of(path):
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


@pytest.mark.parametrize("name", ["base", "tiedout", "untied"])
def test_golden_model_has_marians_scores(golden, name):
    imported = import_marian(golden / name)
    logits_of, tokenizer = traced_logits(imported.model), imported.tokenizer
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
        found = logits_of([*source_ids, tokenizer.end_id], target_ids)
        found = found - np.log(np.exp(found).sum(axis=1, keepdims=True))
        found = found[np.arange(len(found)), [*target_ids, tokenizer.target.end_id]]
        expected = np.array(words.split(), float)
        np.testing.assert_allclose(found, expected, atol=SCORE_TOLERANCE)
        assert found.sum() == pytest.approx(float(total), abs=1e-4)
        compared += len(found)
    assert compared > 100
    _check_n_best_scores(golden / name, imported, sources)


def _check_n_best_scores(folder, imported, sources):
    """Compares the scores of n-best lists that Marian truncated at its length limit.

    A truncated hypothesis has no end id, so its score is the sum over its subwords.
    """
    model, tokenizer = imported.model, imported.tokenizer
    compared = 0
    lines = [line.split(" ||| ") for line in lines_of(folder / "nbest.txt")]
    for number, group in itertools.groupby(lines, key=lambda parts: int(parts[0])):
        _, texts, _, scores = zip(*group, strict=True)
        (source_ids,) = tokenizer.tokenize([sources[number]]).to_list()
        source_ids.append(tokenizer.end_id)
        ids = np.array(tokenizer.target.tokenize(texts).to_list())
        # Marian's limit was twice the length of the source.
        assert ids.shape == (len(texts), 2 * len(source_ids))
        starts = np.full((len(ids), 1), tokenizer.start_id)
        inputs = {
            "source_ids": np.array([source_ids] * len(ids)),
            "target_ids": np.concatenate([starts, ids], axis=1),
        }
        logits = numpy(model(inputs))[:, :-1]
        log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        found = np.take_along_axis(log_probs, ids[..., None], axis=-1).sum(axis=(1, 2))
        expected = np.array(scores, float)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)
        compared += len(ids)
    # The file has the four best hypotheses of each source.
    assert compared == 4 * len(sources)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pre", "transformer-preprocess: n"),
        ("ssru", "transformer-decoder-autoreg: rnn"),
        ("aan", "transformer-decoder-autoreg: average-attention"),
    ],
)
def test_import_names_the_unsupported_architecture(golden, name, reason):
    with pytest.raises(ModelError, match=f"model.npz: models with {reason}"):
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


@pytest.mark.parametrize(
    "tied", [[1], [1, 2, 3], [1, 0], [1, -1], [1, 1.0], [1, True], ["1", "1"], 1, None]
)
def test_malformed_tied_layers_are_refused(folder, tied):
    settings = {**SETTINGS, "dec-depth": 2, "transformer-tied-layers": tied}
    (folder / "model.npz").write_bytes(npz(random_arrays(), settings))
    message = import_error(import_marian, folder)
    assert "transformer-tied-layers must have the number of a layer for each" in message
    assert f"Received: {tied}, dec-depth: 2" in message


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


def test_import_reads_decoding_settings_and_ids(tmp_path):
    folder = write_marian(tmp_path / "model", random_arrays())
    imported = import_marian(folder / "decoder.yml")
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


def test_sentencepiece_vocabulary_tokenizes_like_sentencepiece(tmp_path):
    folder = write_marian(tmp_path / "model", random_arrays())
    content = splitter()
    pieces = sentencepiece_pieces(content)
    (folder / "vocab.spm").write_bytes(content)
    (folder / "decoder.yml").write_text(DECODER.replace("vocab.yml", "vocab.spm"))
    arrays = random_arrays()
    generator = np.random.default_rng(1)
    arrays["Wemb"] = generator.normal(size=(len(pieces), 8)).astype("float32")
    arrays["decoder_ff_logit_out_b"] = np.zeros((1, len(pieces)), "float32")
    (folder / "model.npz").write_bytes(npz(arrays))
    tokenizer = import_marian(folder).tokenizer
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    texts = ["ab cd", ">>fra<< a", "xyz a"]
    assert tokenizer.tokenize(texts).to_list() == processor.encode(texts)


# Values of Marian's settings that the package does not support.
REFUSED = {
    "transformer-ffn-depth": 3,
    "transformer-decoder-ffn-depth": 1,
    "transformer-no-projection": True,
    "transformer-no-bias": True,
    "transformer-no-affine": True,
    "transformer-disable-position-embeddings": True,
    "transformer-train-position-embeddings": True,
    "transformer-postprocess-top": "n",
    "transformer-postprocess": "da",
    "lemma-dim-emb": 4,
    "right-left": True,
    "type": "multi-transformer",
    "transformer-ffn-activation": "prelu",
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Folder of a valid model, which tests must not change."""
    return write_marian(tmp_path_factory.mktemp("good") / "model", random_arrays())


@pytest.fixture
def folder(good, tmp_path):
    """Folder of a valid model, which the test may damage."""
    return shutil.copytree(good, tmp_path / "model")


def test_each_unsupported_setting_is_refused_by_name(folder):
    for name, value in REFUSED.items():
        settings = {**SETTINGS, name: value}
        (folder / "model.npz").write_bytes(npz(random_arrays(), settings))
        assert f"{name}: {value}" in import_error(import_marian, folder)
    for value in (["class"], ["sequence"], ["sequence"] * 3, "sequence", [[]], {}):
        settings = {**SETTINGS, "input-types": value}
        (folder / "model.npz").write_bytes(npz(random_arrays(), settings))
        message = import_error(import_marian, folder)
        assert f"input-types: {value}" in message and "post-norm" not in message
    settings = {**SETTINGS, "transformer-decoder-dim-ffn": 99}
    (folder / "model.npz").write_bytes(npz(random_arrays(), settings))
    message = import_error(import_marian, folder)
    assert "transformer-dim-ffn: 12" in message and "dim-ffn: 99" in message


@pytest.mark.parametrize("column", ["alignment", "weight"])
def test_types_of_training_columns_do_not_change_the_model(folder, column):
    """Marian stores them if it was trained with `--tsv --guided-alignment`."""
    arrays = random_arrays()
    settings = {**SETTINGS, "input-types": ["sequence", "sequence", column]}
    (folder / "model.npz").write_bytes(npz(arrays, settings))
    found = model_logits(import_marian(folder).model)
    np.testing.assert_allclose(found, logits(arrays, SOURCE, TARGET), atol=2e-5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda a: a.update(Wpos=np.zeros((3, 8), "float32")),
            "unexpected array 'Wpos'",
        ),
        (lambda a: a.pop("encoder_l2_ffn_b1"), "encoder_l2_ffn_b1 is missing"),
        (
            lambda a: a.update(Wemb=a["Wemb"][:-1]),
            r"dim-vocabs is \[11, 11\]. So Wemb must have 11 rows. .*: \[10, 8\]",
        ),
        (lambda a: a["Wemb"].fill(np.nan), "not finite"),
        (
            lambda a: a.update(encoder_l1_self_Wq=np.zeros((8, 9), "float32")),
            r"encoder_l1_self_Wq must have the shape \[8, 8\]. Received: \[8, 9\]",
        ),
        (
            lambda a: a.update(Wemb=np.asfortranarray(a["Wemb"])),
            "must be in C order",
        ),
        (lambda a: a.update(Wemb=np.zeros((11, 8), "int32")), "Received: int32"),
        (lambda a: a.update(Wemb=np.zeros((11, 8), "float64")), "Received: float64"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(folder, change, reason):
    arrays = random_arrays()
    change(arrays)
    (folder / "model.npz").write_bytes(npz(arrays))
    assert re.search(reason, import_error(import_marian, folder))


def test_settings_beyond_the_weights_are_refused(folder):
    for name in ("enc-depth", "dim-emb", "transformer-dim-ffn", "dec-depth"):
        settings = {**SETTINGS, name: 2**30}
        (folder / "model.npz").write_bytes(npz(random_arrays(), settings))
        assert "more weights than the file contains" in import_error(
            import_marian, folder
        )
    for value in (2**70, "x", None, -1, True):
        settings = {**SETTINGS, "enc-depth": value}
        (folder / "model.npz").write_bytes(npz(random_arrays(), settings))
        import_error(import_marian, folder)


def test_hostile_archives_are_refused(folder):
    path = folder / "model.npz"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert "cannot be read" in import_error(import_marian, folder)
    # A pickle in an object array. Unpickling it would create the marker file.
    marker = folder / "pickled"
    np.save(marker, np.array([FileOnUnpickle(marker)], object), allow_pickle=True)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("extra.npy", (folder / "pickled.npy").read_bytes())
    import_error(import_marian, folder)
    (folder / "model.npz").write_bytes(content)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("extra.npy", (folder / "pickled.npy").read_bytes())
    assert "Received: object" in import_error(import_marian, folder)
    assert not marker.exists()
    # Confirms that the check is effective: unpickling the data after the 128-byte npy
    # header does create the file.
    pickle.loads((folder / "pickled.npy").read_bytes()[128:])
    assert marker.exists()
    # A zip bomb, and an array twice.
    path.write_bytes(content)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.npy", bytes(10 << 20))
    assert "Arrays must not be compressed" in import_error(import_marian, folder)
    path.write_bytes(content)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning):
        archive.writestr("Wemb.npy", b"")
    assert "an array twice" in import_error(import_marian, folder)


def test_hostile_yaml_is_refused(folder):
    arrays = random_arrays()
    stored = npz(arrays, settings=dict(SETTINGS, note="x" * (1 << 17)))
    (folder / "model.npz").write_bytes(stored)
    assert "special:model.yml must have at most 65,536 bytes" in import_error(
        import_marian, folder
    )
    (folder / "model.npz").write_bytes(npz(arrays))
    for text, reason in (
        (DECODER + "x: !!python/object/apply:os.system [true]", "not valid YAML"),
        ("[" * 5000, "nested too deeply"),
        ("just text", "must be a mapping"),
        ("#" * (1 << 17), "at most 65,536 bytes"),
        (DECODER.replace("[model.npz]", "[a.npz, b.npz]"), "models must name 1 file"),
        (DECODER.replace("model.npz", "model.bin"), "not quantized .bin files"),
        (DECODER.replace("model.npz", "gone.npz"), "no such file"),
        (DECODER.replace("vocab.yml", "vocab.fsv"), "factored vocabularies"),
        (DECODER.replace("penalty: 0", "penalty: 0.5"), "word-penalty must be 0"),
        (
            DECODER.replace("beam-size: 3", "beam-size: 0.5"),
            "beam-size must be an integer",
        ),
        (DECODER.replace("beam-size: 3", "beam-size: 0"), "integer from 1 to 1000"),
        (
            DECODER.replace("normalize: 0.6", "normalize: -1"),
            "normalize must be a number from 0 to 100",
        ),
    ):
        (folder / "decoder.yml").write_text(text)
        assert reason in import_error(import_marian, folder), reason
    (folder / "decoder.yml").unlink()
    assert "must contain one decoder.yml" in import_error(import_marian, folder)


def test_missing_splitter_is_refused(folder):
    (folder / "source.spm").unlink()
    assert "source.spm: no such file" in import_error(import_marian, folder)
    (folder / "source.spm").write_bytes(b"x")
    assert "not a SentencePiece model" in import_error(import_marian, folder)
    (folder / "source.bpe").touch()
    assert "subword-nmt" in import_error(import_marian, folder)
