"""Checks that another library can run a model, and notes on what differs there."""

import collections
import io
import pathlib
import tempfile
import unicodedata

import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from keras_transformer.errors import ExportError
from keras_transformer.export.card import describe_translator
from keras_transformer.export.preset import check_exportable, reject_forbidden_phrases
from keras_transformer.numerics.activations import activation_name
from keras_transformer.saving.names import TEXT

# Logit bias of ids that the model does not predict.
EXCLUDED_BIAS = -1e9


def reject_quantized(model):
    """Raises `ExportError` if the kernels are integers, which need further scales."""
    modes = {layer.quantization_mode for layer in model._flatten_layers()} - {None}
    if modes:
        raise ExportError(
            "a quantized model cannot be converted. Export the model before "
            f"`quantize`. Received: quantization_mode={', '.join(sorted(modes))}"
        )


def check_model(translator, folder):
    """Checks that a model can be exported to a new folder."""
    reject_forbidden_phrases(translator)
    if folder.exists():
        raise ExportError(f"{folder}: already exists. Choose another folder")
    check_exportable(translator.model)
    reject_quantized(translator.model)


def check_translator(translator, folder, library, variations, activations):
    """Checks that a library, which supports the named `variations`, can run a model."""
    tokenizer = translator.tokenizer
    check_model(translator, folder)
    if tokenizer.kind not in ("bpe", "marian"):
        raise ExportError(
            f"{library} needs a SentencePiece model: tokenizer.kind must be bpe, or "
            f"marian if the model was imported. Received: {tokenizer.kind}"
        )
    check_architecture(translator.model, library, variations, activations)


def check_architecture(
    model, library, variations, activations, positions="sinusoidal", **expected
):
    """Raises `ExportError` for a model with other parts than a library supports.

    `variations` are those that the library supports with any value, and `expected` are
    values of others.
    """
    attention = model.encoder.layers[0].self_attention
    head_dim = model.d_model // model.num_heads
    require_values(
        library,
        key_dim=(attention.key_dim, head_dim),
        value_dim=(attention.value_dim or attention.key_dim, head_dim),
        positions=(model.positions, positions),
        attention_window=(model.attention_window, None),
        score_mode=(model.score_mode, "scaled_dot"),
        **{k: (getattr(model.variations, k), value) for k, value in expected.items()},
    )
    for name, value in model.variations.changes().items():
        if name not in variations and name not in expected:
            raise ExportError(
                f"{library} does not support {name}. Received: {name}={value}"
            )
    supported_activation(model, activations, library)


def require_values(library, **settings):
    """Raises `ExportError` unless the values, given as (found, expected), are equal."""
    for name, (value, expected) in settings.items():
        if value != expected:
            raise ExportError(
                f"{library} requires {name}={expected}. Received: {name}={value}"
            )


def supported_activation(model, activations, library):
    """Returns the model's activation by a library's names, `{Keras's: library's}`."""
    name = activation_name(model.activation)
    if name not in activations:
        raise ExportError(
            f"{library} needs one of the activations {', '.join(activations)}. "
            f"Received: {name!r}"
        )
    return activations[name]


def describe(translator, scores, license):
    """Returns the files that describe a model, and `text.json`, which imports read."""
    texts = describe_translator(translator, scores, license)
    text = translator.tokenizer.text
    return texts if text is None else {**texts, TEXT: text.model_dump_json()}


def splitter_model(tokenizer):
    """Returns the content of a SentencePiece model that normalizes text, too."""
    if tokenizer.model is None or not (tokenizer.text and tokenizer.text.normalization):
        return tokenizer.model
    proto = ModelProto.FromString(tokenizer.model)
    spec = proto.normalizer_spec
    if spec.precompiled_charsmap and spec.remove_extra_whitespaces:
        return tokenizer.model
    spec.remove_extra_whitespaces = True
    if not spec.precompiled_charsmap:
        spec.precompiled_charsmap = _normalization_table(tokenizer.normalized)
    return proto.SerializeToString()


def _normalization_table(normalize):
    """Returns SentencePiece's table of what a function does to each character.

    That includes decomposed characters.
    """
    texts = set()
    for code in (*range(1, 0xD800), *range(0xE000, 0x30000)):
        full = unicodedata.normalize("NFD", chr(code))
        partial = unicodedata.normalize("NFC", full[:-1]) + full[-1:]
        texts.update((chr(code), full, partial))
    texts = sorted(texts)
    # Digits around a character keep white space, and are not composed with it.
    found = normalize([f"1{text}1" for text in texts]).numpy()
    rules = [
        "\t".join(" ".join(f"{ord(each):X}" for each in part) for part in (text, new))
        for text, new in zip(
            texts, (each.decode()[1:-1] for each in found), strict=True
        )
        if text != new
    ]
    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "rules.tsv")
        path.write_text("\n".join(rules))
        sentencepiece.SentencePieceTrainer.train(  # only it compiles tables
            sentence_iterator=iter("a"),
            model_writer=model,
            model_type="char",
            vocab_size=5,
            normalization_rule_tsv=str(path),
            minloglevel=2,
        )
    return ModelProto.FromString(model.getvalue()).normalizer_spec.precompiled_charsmap


def find_repeated(pieces):
    """Returns a subword that occurs twice, or `None`."""
    counts = collections.Counter(pieces)
    return next((piece for piece, count in counts.items() if count > 1), None)


def common_notes(translator, library, written=()):
    """Returns the notes of a model card that hold for Marian and for transformers.

    `written` are the names of search settings that the export contains.
    """
    notes, search = [], translator.search
    kind, alpha = search.length_penalty_kind, search.length_penalty
    if kind != "power" and alpha != 0:
        notes.append(
            f"{library} divides log-probabilities by length^{alpha:g}. "
            "keras_transformer divides them by the length penalty "
            f"{kind} with alpha {alpha:g}."
        )
    given = search.steering()
    if search.max_length_ratio is not None:
        given["max_length_ratio"] = search.max_length_ratio
    given = [f"{k}={value:g}" for k, value in given.items() if k not in written]
    if given:
        given = ", ".join(given)
        notes.append(f"The export does not contain the search settings {given}.")
    if translator.tokenizer.kind == "bpe":
        notes.append(
            "Texts that contain U+2581 or U+F8FE are tokenized differently than in "
            "keras_transformer."
        )
    return notes
