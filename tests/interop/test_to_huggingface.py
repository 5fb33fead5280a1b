"""Exports for Hugging Face, against the file formats and the library `transformers`."""

import json

import keras
import numpy as np
import pytest
from layer_checks import numpy
from safetensors.numpy import load_file
from tiny_export import (
    SENTENCES,
    export_to_folder,
    open_translator,
    separate_tokenizers,
    tiny_model,
)

import keras_transformer as kt
from keras_transformer import pipelines
from keras_transformer.errors import ExportError
from keras_transformer.interop import (
    export_ctranslate2,
    export_huggingface,
    export_marian,
)
from keras_transformer.interop.from_huggingface import import_huggingface
from keras_transformer.pipelines.tokenizers.marian import MarianTokenizer

SEARCH = kt.BeamSearch(beam_size=3, length_penalty=0.0, extra_length=9)
TEXTS = ["der Hund läuft", "ein Hund und noch ein Hund", "läuft 😀 der", "Katze"]
VARIANTS = {
    "post": {},
    "pre": {"normalization": "pre"},
    "post gelu": {"activation": "gelu"},
    "pre silu": {"normalization": "pre", "activation": "silu"},
    "biases": {
        "variations": {
            **{"attention_bias": True, "logits_bias": True, "zero_start_id": 2},
            **{"num_decoder_layers": 1, "layer_norm_epsilon": 1e-5},
        },
    },
}


def make_translator(**changes):
    """Returns the `Translator` of a model with random weights."""
    return open_translator(*tiny_model(noise=0.2, **changes), SEARCH)


@pytest.fixture(scope="module")
def post(tmp_path_factory):
    """The translator of a post-norm model, and the folder that it was exported to."""
    return export_to_folder(export_huggingface, make_translator(), tmp_path_factory)


def test_folder_has_the_files_of_marian_mt_models(post):
    _, folder = post
    assert sorted(path.name for path in folder.iterdir()) == [
        *("MODEL_CARD.md", "config.json", "generation_config.json"),
        *("model.safetensors", "source.spm", "summary.json", "target.spm"),
        *("tokenizer_config.json", "vocab.json"),
    ]
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["MarianMTModel"]
    assert (config["vocab_size"], config["pad_token_id"]) == (301, 300)
    assert (config["decoder_start_token_id"], config["eos_token_id"]) == (300, 3)
    assert (config["encoder_layers"], config["decoder_ffn_dim"]) == (2, 40)
    search = json.loads((folder / "generation_config.json").read_text())
    # Padding, unknown and start of this package, and padding of the export.
    assert search["bad_words_ids"] == [[0], [1], [2], [300]]
    assert (search["num_beams"], search["length_penalty"]) == (3, 0.0)
    card = (folder / "MODEL_CARD.md").read_text()
    assert "CC0-1.0" in card and "add 1e-5 to the variance" in card


def test_card_lists_only_actual_differences(post, tmp_path):
    def card(translator, **changes):
        folder = tmp_path / "-".join([translator.model.name, *changes])
        export_huggingface(translator.with_search(**changes), folder)
        return (folder / "MODEL_CARD.md").read_text()

    translator, folder = post
    text = (folder / "MODEL_CARD.md").read_text()
    assert "U+2581" in text and "become special ids" in text
    assert "511 ids" in text and "the length of the source plus 9" in text
    # With a length penalty of 0, the formulas agree.
    assert "length^" not in text and "have finished" not in text
    text = card(translator, length_penalty=0.6)
    assert "transformers divides log-probabilities by length^0.6." in text
    text = card(translator, patience=0.5)
    assert "3 hypotheses have finished. keras_transformer stops it at 1.5" in text
    # Settings that transformers has are written, and others named.
    steering = {"no_repeat_ngram_size": 3, "repetition_penalty": 1.5, "min_length": 4}
    others = {"coverage_penalty": 0.5, "max_length_ratio": 2.5}
    text = card(translator, **steering, **others)
    assert "the search settings coverage_penalty=0.5, max_length_ratio=2.5." in text
    (written,) = tmp_path.glob("*-no_repeat*/generation_config.json")
    # The minimum length of transformers counts the start id.
    stored = json.loads(written.read_text())
    assert stored.items() >= {**steering, "min_length": 5}.items()
    again = import_huggingface(written.parent).decoding
    assert {name: again[name] for name in steering} == steering
    trained_alike = make_translator(**VARIANTS["biases"], name="biases")
    assert "variance" not in card(trained_alike)


def test_vocabulary_keeps_every_id(post):
    translator, folder = post
    vocabulary = json.loads((folder / "vocab.json").read_text())
    pieces = translator.tokenizer.pieces()
    assert {number: piece for piece, number in vocabulary.items()} == {
        **dict(enumerate(pieces)),
        **{0: "<padding>", 1: "<unk>", 3: "</s>", 300: "<pad>"},
    }
    assert (folder / "source.spm").read_bytes() == translator.tokenizer.model


def logits_of_import(folder, translator, source, target):
    """Returns logits of a model and of its import, whose start id differs."""
    again = import_huggingface(folder)
    found = []
    for model, side in (
        (translator.model, translator.target_tokenizer),
        (again.model, again.tokenizer.target),
    ):
        ids = np.array([source]), np.array([[side.start_id, *target]])
        found.append(numpy(model({"source_ids": ids[0], "target_ids": ids[1]}))[0])
    return found[0], found[1][:, : found[0].shape[1]]


@pytest.mark.parametrize("name", ["post", "post gelu", "biases"])
def test_export_can_be_imported(tmp_path, name):
    """The tests of the import compare it with transformers."""
    changes = VARIANTS[name]
    epsilon = {**changes.get("variations", {}), "layer_norm_epsilon": 1e-5}
    translator = make_translator(**{**changes, "variations": epsilon})
    folder = export_huggingface(translator, tmp_path / "m")
    ours, theirs = logits_of_import(folder, translator, [9, 5, 17, 3], [299, 44, 6])
    np.testing.assert_allclose(theirs, ours, atol=2e-5)
    tensors = load_file(folder / "model.safetensors")
    # Id 300 is both padding and start. Its bias keeps it from being generated.
    bias = tensors["final_logits_bias"]
    assert bias.shape == (1, 301) and bias[0, 300] == -1e9
    assert bias[:, :300].any() == (name == "biases")
    # `zero_start_id` starts the decoder with a vector of zeros.
    assert tensors["model.shared.weight"][300].any() == (name != "biases")
    config = json.loads((folder / "config.json").read_text())
    depths = config["encoder_layers"], config["decoder_layers"]
    assert depths == ((2, 1) if name == "biases" else (2, 2))
    # Embeddings and logits bias, 16 tensors per encoder layer, 26 per decoder layer.
    assert len(tensors) == 2 + 16 * depths[0] + 26 * depths[1]


def test_pre_norm_model_is_exported_as_pegasus(tmp_path):
    translator = make_translator(normalization="pre")
    folder = export_huggingface(translator, tmp_path / "pre")
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["PegasusForConditionalGeneration"]
    card = (folder / "MODEL_CARD.md").read_text()
    assert 'AutoModelForSeq2SeqLM.from_pretrained("FOLDER")' in card
    assert "The model is a `PegasusForConditionalGeneration`." in card
    tensors = load_file(folder / "model.safetensors")
    assert tensors["model.encoder.layer_norm.weight"].shape == (24,)
    positions = tensors["model.decoder.embed_positions.weight"]
    # Position 3: sin(3), sin(3 / 10000^(2 / 24)), ... and then the cosines.
    rates = 10_000.0 ** (-np.arange(0, 24, 2) / 24)
    expected = [*np.sin(3 * rates), *np.cos(3 * rates)]
    np.testing.assert_allclose(positions[3], expected, atol=1e-6)
    # In addition, each stack has positions and the scale and offset of its final norm.
    assert len(tensors) == 2 + 2 * 16 + 2 * 26 + 2 * 3


def make_separate_translator(**changes):
    """Returns a `Translator` whose source vocabulary is smaller than the target's."""
    tokenizer = separate_tokenizers(290, 300)
    variations = {"source_vocabulary_size": 290, "layer_norm_epsilon": 1e-5}
    model, _ = tiny_model(noise=0.2, num_layers=1, variations=variations, **changes)
    return open_translator(model, tokenizer, SEARCH)


def test_separate_vocabularies_have_separate_files(tmp_path):
    translator = make_separate_translator()
    folder = export_huggingface(translator, tmp_path / "separate")
    for name, side in (
        ("vocab.json", translator.tokenizer),
        ("target_vocab.json", translator.target_tokenizer),
    ):
        vocabulary = json.loads((folder / name).read_text())
        # The export extends the smaller vocabulary, so that both have one padding id.
        assert len(vocabulary) == 301 and vocabulary["<pad>"] == 300
        number = side.vocabulary_size - 1
        assert vocabulary[side.pieces()[number]] == number
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["separate_vocabs"] is True
    assert (folder / "source.spm").read_bytes() == translator.tokenizer.source.model
    ours, theirs = logits_of_import(folder, translator, [289, 5, 17, 3], [299, 44, 6])
    np.testing.assert_allclose(theirs, ours, atol=2e-5)
    again = import_huggingface(folder)
    for text in TEXTS[:2]:
        expected = translator.tokenizer.tokenize([text]).to_list()
        assert again.tokenizer.tokenize([text]).to_list() == expected


def test_pegasus_export_refuses_separate_vocabularies(tmp_path):
    translator = make_separate_translator(normalization="pre")
    with pytest.raises(ExportError, match=r"Train with model.normalization=post"):
        export_huggingface(translator, tmp_path / "x")


def make_imported_translator(**changes):
    """Returns a `Translator` with the ids of an imported model, and its pieces.

    Ids are 296 subwords, the end 296, unknown 297, padding 298, and the start 299.
    """
    content = pipelines.train_tokenizer("bpe", SENTENCES, 300)
    # An imported vocabulary has its own order and no padding or start token.
    # It may contain `<s>`, as SentencePiece's vocabularies do.
    pieces = [*content.pieces()[4:-1], "<s>", "</s>", "<unk>"]
    side = pieces, content.model
    tokenizer = MarianTokenizer(side, side, **changes)
    zero = {"zero_start_id": tokenizer.start_id}
    model = kt.Transformer(
        *(tokenizer.vocabulary_size, 2, 24, 40, 3),
        pad_id=tokenizer.pad_id,
        output_size=len(pieces),
        variations=zero,
    )
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    return open_translator(model, tokenizer, SEARCH), pieces


def test_imported_model_is_written_with_its_ids(tmp_path):
    translator, pieces = make_imported_translator()
    folder = export_huggingface(translator, tmp_path / "imported")
    vocabulary = json.loads((folder / "vocab.json").read_text())
    assert [vocabulary[piece] for piece in pieces] == list(range(298))
    assert (vocabulary["<pad>"], len(vocabulary)) == (300, 301)
    config = json.loads((folder / "config.json").read_text())
    assert (config["eos_token_id"], config["decoder_start_token_id"]) == (296, 300)
    search = json.loads((folder / "generation_config.json").read_text())
    assert search["bad_words_ids"] == [[298], [297], [299], [300]]
    tensors = load_file(folder / "model.safetensors")
    bias = tensors["final_logits_bias"][0]
    assert not bias[:298].any() and (bias[298:] == -1e9).all()
    assert (folder / "target.spm").read_bytes() == translator.tokenizer.model


def test_imported_model_with_normalization_is_refused(tmp_path):
    translator, _ = make_imported_translator(normalization="opus")
    with pytest.raises(
        ExportError, match=r"support normalization. Received: normalization=opus"
    ):
        export_huggingface(translator, tmp_path / "x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variations": {"timescales": "tensor2tensor"}}, "timescales"),
        ({"variations": {"embedding_norm": True}}, "does not support embedding_norm"),
        ({"key_dim": 4}, "requires key_dim=8. Received: key_dim=4"),
        ({"value_dim": 4}, "value_dim=4"),
        ({"positions": "learned", "max_length": 40}, "positions=learned"),
        ({"positions": "relative"}, "requires positions=sinusoidal. Received: positio"),
        ({"positions": "rotary"}, "positions=rotary"),
        ({"attention_window": 3}, "attention_window=3"),
        ({"score_mode": "dot"}, "score_mode=dot"),
        ({"activation": "tanh"}, "Received: 'tanh'"),
    ],
)
def test_export_refuses_models_that_transformers_cannot_run(tmp_path, changes, message):
    translator = make_translator(num_layers=1, **changes)
    with pytest.raises(ExportError) as caught:
        export_huggingface(translator, tmp_path / "x")
    assert message in str(caught.value) and list(tmp_path.iterdir()) == []


def test_exports_refuse_quantized_models(tmp_path):
    translator = make_translator(num_layers=1)
    translator.model.quantize("int8")
    message = "a quantized model cannot be converted.* quantization_mode=int8"
    for export, *parts in (
        (export_huggingface, translator),
        (export_marian, translator),
        (export_ctranslate2, translator.model, translator.tokenizer),
    ):
        with pytest.raises(ExportError, match=message):
            export(*parts, tmp_path / "x")


def test_export_refuses_other_tokenizers_and_existing_folders(tmp_path):
    translator = make_translator(num_layers=1)
    with pytest.raises(ExportError, match="already exists"):
        export_huggingface(translator, tmp_path)
    translator.tokenizer.kind = "word_piece"
    with pytest.raises(ExportError, match="transformers needs a SentencePiece model"):
        export_huggingface(translator, tmp_path / "x")


def test_half_precision_rounds_weights_and_clips_only_the_excluded_bias(post, tmp_path):
    translator, folder = post
    full = load_file(folder / "model.safetensors")
    export_huggingface(translator, tmp_path / "half", dtype="float16")
    half = load_file(tmp_path / "half" / "model.safetensors")
    assert full.keys() == half.keys()
    for name, array in full.items():
        assert half[name].dtype == np.float16
        expected = np.maximum(array, -65504) if name == "final_logits_bias" else array
        np.testing.assert_array_equal(half[name], expected.astype("float16"))
    assert full["final_logits_bias"].min() == -1e9


def test_half_precision_refuses_weights_that_it_cannot_store(tmp_path):
    translator = make_translator(num_layers=1)
    kernel = translator.model.encoder.layers[0].feed_forward.inner_dense.kernel
    array = kernel.numpy()
    message = (
        r"encoder\.layers\.0\.fc1\.weight: a weight exceeds the range of float16, "
        r"65,504\. Write"
    )
    for array[1, 2] in (1e6, -1e6):
        kernel.assign(array)
        with pytest.raises(ExportError, match=message):
            export_huggingface(translator, tmp_path / "half", dtype="float16")
    assert not (tmp_path / "half").exists()


def test_other_types_are_refused(post, tmp_path):
    message = "dtype must be None or \"float16\"\\. Received: 'bfloat16'"
    with pytest.raises(ExportError, match=message):
        export_huggingface(post[0], tmp_path / "x", dtype="bfloat16")


def logits_of_transformers(folder, sources, targets):
    """Returns transformers' logits, where id 300 is both padding and start."""
    import torch

    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(
            input_ids=torch.tensor(np.where(sources == 0, 300, sources)),
            attention_mask=torch.tensor((sources != 0).astype(int)),
            decoder_input_ids=torch.tensor(np.where(targets == 2, 300, targets)),
        ).logits.numpy()


@pytest.mark.slow
@pytest.mark.backends
@pytest.mark.parametrize("name", VARIANTS)
def test_transformers_matches_logits_and_translations(tmp_path, name):
    transformers = pytest.importorskip("transformers", reason="judges the export")
    translator = make_translator(**VARIANTS[name])
    folder = export_huggingface(translator, tmp_path / "model")
    rows = [[*row, 3] for row in translator.tokenizer.tokenize(TEXTS).to_list()]
    length = max(map(len, rows))
    sources = np.array([row + [0] * (length - len(row)) for row in rows])
    targets = np.array([[2, 5, 9, 20, 33]] * len(rows))
    inputs = {"source_ids": sources, "target_ids": targets}
    ours = keras.ops.convert_to_numpy(translator.model(inputs))
    theirs = logits_of_transformers(folder, sources, targets)
    # The tolerance allows for transformers' epsilon: 1e-5 instead of 1e-6.
    np.testing.assert_allclose(theirs[..., :300], ours, atol=1e-4)
    assert (theirs[..., 300] < -1e8).all()

    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    lengths = batch["attention_mask"].sum(1)
    for row, number, ids in zip(rows, lengths, batch["input_ids"], strict=True):
        assert ids[:number].tolist() == row
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    for beam_size in (1, 3):
        for text in TEXTS:
            batch = tokenizer([text], return_tensors="pt")
            limit = batch["input_ids"].shape[1] + SEARCH.extra_length
            found = model.generate(
                **batch, num_beams=beam_size, length_penalty=0.0, max_new_tokens=limit
            )
            expected = translator.with_search(beam_size=beam_size).translate([text])
            texts = tokenizer.batch_decode(found, skip_special_tokens=True)
            assert texts == [expected[0].strip()]
