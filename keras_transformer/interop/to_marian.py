"""Export to a folder in Marian's format, which OPUS-MT also uses.

marian-decoder, CTranslate2's `MarianConverter` and transformers'
`convert_marian_to_pytorch` read it.
"""

import io
import pathlib
import zipfile

import numpy as np
import yaml

from keras_transformer.errors import ExportError
from keras_transformer.files import replace_folder
from keras_transformer.interop import array_names, supported, weights
from keras_transformer.interop.vocabularies import format_vocabulary
from keras_transformer.saving.names import CARD

_MODEL, _DECODER = "model.npz", "decoder.yml"
_END, _UNKNOWN = "</s>", "<unk>"
_NAMES = array_names.MARIAN_ARRAYS
_ACTIVATIONS = array_names.MARIAN_ACTIVATIONS
# Fields of `model.variations` that Marian supports.
_VARIATIONS = (
    *("num_decoder_layers", "attention_bias", "logits_bias", "zero_start_id"),
    *("timescales", "embedding_norm", "source_vocabulary_size", "tied_output"),
)
_NOTES = """## Use with Marian

Split source texts into subwords with `source.spm`, and join the subwords of
translations with `target.spm`, for example by means of `spm_encode` and `spm_decode`.
Marian reads and writes subwords with spaces between them:
`marian-decoder --config decoder.yml`. If `source.spm` and `target.spm` are missing,
Marian's input and output are words, separated by spaces.

Marian's results can differ slightly from keras_transformer's because of floating-point
rounding.
"""


def export_marian(translator, folder, *, scores=(), license=None):
    """Writes a folder in Marian's format: weights, vocabularies and search settings.

    The files are `model.npz`, `decoder.yml`, `MODEL_CARD.md` and the vocabulary,
    `vocab.yml`. If source and target differ in vocabulary or embedding, their
    vocabularies are `src.vocab.yml` and `trg.vocab.yml`. If the tokenizer has
    SentencePiece models, `source.spm` and `target.spm` are added.

    An imported model keeps its ids. In other models, the end id becomes 0, the unknown
    id becomes 1, and the ids of padding and start are omitted.

    Args:
        translator: `Translator` from `open_model`. The model must be post-norm. In its
            `variations`, `zero_start_id` must be the start id, and `timescales`
            must be `"tensor2tensor"`.
        folder: Folder to write, which must not exist.
        scores: Evaluation scores for the model card (see `model_card`).
        license: License for the model card. If `None`, that of the opened model, if
            known.

    Returns:
        Path of the folder.

    Raises:
        ExportError: If the folder exists, Marian cannot run the model, or the
            tokenizer is neither BPE nor from an imported Marian model.
        StorageError: If the disk is full.

    Examples:
        >>> tokenizer = kt.open_model("phrases").tokenizer
        >>> sizes = {"num_layers": 1, "d_model": 16, "d_ff": 16, "num_heads": 2}
        >>> variations = {"timescales": "tensor2tensor", "zero_start_id": 2}
        >>> model = kt.Transformer(656, **sizes, variations=variations)
        >>> preset = kt.saving.save_preset(model, "presets/mine", tokenizer)
        >>> folder = kt.interop.export_marian(kt.open_model(preset), "marian")
        >>> (folder / "decoder.yml").is_file()
        True
    """
    model, folder = translator.model, pathlib.Path(folder)
    sides = {"source": translator.tokenizer, "target": translator.target_tokenizer}
    supported.check_translator(translator, folder, "Marian", _VARIATIONS, _ACTIVATIONS)
    _check_training(model, *sides.values())
    ids = _exported_ids(model, sides)
    pieces = {side: _pieces(sides[side], ids[side]) for side in sides}
    settings = _settings(model, [len(each) for each in ids.values()])
    arrays = _arrays(model, ids["source"], ids["target"])
    is_shared = model.source_embedding is None and pieces["source"] == pieces["target"]
    names = ("vocab.yml",) * 2 if is_shared else ("src.vocab.yml", "trg.vocab.yml")
    decoder = {
        "relative-paths": True,
        "models": [_MODEL],
        "vocabs": list(names),
        "beam-size": translator.search.beam_size,
        "normalize": translator.search.length_penalty,
        "word-penalty": 0,
    }
    texts = {
        **dict(zip(names, map(format_vocabulary, pieces.values()), strict=True)),
        _DECODER: _yaml(decoder),
        **supported.describe(translator, scores, license),
    }
    texts[CARD] += f"\n{_notes(translator)}"
    with replace_folder(folder, must_be_new=True) as temporary:
        _write_npz(temporary / _MODEL, arrays, settings)
        for name, text in texts.items():
            (temporary / name).write_text(text, encoding="utf-8")
        for side, tokenizer in sides.items():
            splitter = supported.splitter_model(tokenizer.source)
            if splitter is not None:
                (temporary / f"{side}.spm").write_bytes(splitter)
    return folder


def _check_training(model, source, target):
    """Raises `ExportError` unless the model was trained with Marian's conventions."""
    timescales, missing = model.variations.timescales, {}
    if model.variations.zero_start_id != target.start_id:
        missing["model.start: zeros"] = "a learned start vector"
    if timescales != "tensor2tensor":
        missing["model.timescales: tensor2tensor"] = f"timescales: {timescales}"
    if model.normalization != "post":
        missing["model.normalization: post"] = f"normalization: {model.normalization}"
    if not missing:
        return
    keys, found = " and ".join(missing), " and ".join(missing.values())
    if model.normalization != "post":
        advice = "Train a model with these recipe keys"
    elif source.kind == "marian" and timescales != "tensor2tensor":
        advice = "Import the model with --engine marian"
    else:
        settings = " ".join(f"--set {key.replace(': ', '=')}" for key in missing)
        advice = (
            "Adapt this model with `keras-transformer train RECIPE --from MODEL "
            f"--output RUN {settings}`"
        )
    raise ExportError(f"Marian's format needs {keys}. Received: {found}. {advice}")


def _exported_ids(model, sides):
    """Returns the ids of each side to export, in Marian's order."""
    is_shared = model.source_embedding is None
    ids = {side: _ordered_ids(each, is_shared) for side, each in sides.items()}
    if is_shared and ids["source"] != ids["target"]:
        raise ExportError(
            "for Marian's format, the vocabularies of source and target must have the "
            "same ids if they share their embeddings. Received: "
            f"{len(ids['source']):,} and {len(ids['target']):,} ids"
        )
    return ids


def _ordered_ids(tokenizer, is_shared):
    if tokenizer.kind == "marian":
        # Vocabularies that share a matrix have one size in Marian. The names of unused
        # pieces fill the shorter one.
        return list(range(tokenizer.pad_id if is_shared else tokenizer.num_outputs))
    first = [tokenizer.end_id, tokenizer.unknown_id]
    special = {*first, tokenizer.pad_id, tokenizer.start_id}
    return first + [n for n in range(tokenizer.vocabulary_size) if n not in special]


def _pieces(tokenizer, ids):
    """Returns the subwords of the ids, with Marian's names for the special ids."""
    pieces = tokenizer.pieces()
    pieces[tokenizer.end_id], pieces[tokenizer.unknown_id] = _END, _UNKNOWN
    pieces = [pieces[number] for number in ids]
    if len(set(pieces)) < len(pieces):
        raise ExportError(
            f"the vocabulary must not contain the subwords {_END} and {_UNKNOWN}, "
            "which Marian reserves"
        )
    return pieces


def _arrays(model, source_ids, target_ids):
    """Returns arrays by their names in Marian. Vectors are `[1, size]`."""

    def rows(matrix, ids):
        matrix = weights.sines_first(weights.to_numpy(matrix))
        # A separate output matrix has rows only for ids with logits.
        missing = max(0, model.vocabulary_size - len(matrix))
        return np.pad(matrix, ((0, missing), (0, 0)))[ids]

    embedding = model.token_embedding
    arrays = {}
    if model.source_embedding is None:
        arrays[_NAMES["shared"]] = rows(embedding.embeddings, target_ids)
    else:
        arrays[_NAMES["source"]] = rows(model.source_embedding.embeddings, source_ids)
        arrays[_NAMES["target"]] = rows(embedding.embeddings, target_ids)
    if not embedding.tied:
        arrays[_NAMES["output"]] = rows(embedding.output_matrix, target_ids)
    # Ids that occur only in sources have no logits, such as the input words of a
    # parsing model.
    bias = np.full(model.vocabulary_size, supported.EXCLUDED_BIAS, np.float32)
    bias[: model.num_outputs] = 0
    if embedding.use_bias:
        bias[: model.num_outputs] = weights.to_numpy(embedding.bias)
    arrays[_NAMES["bias"]] = bias[target_ids]
    for side, stack, norm in (
        ("encoder", model.encoder, model.source_norm),
        ("decoder", model.decoder, model.target_norm),
    ):
        for number, part, *pair in weights.get_layers(stack):
            names = array_names.marian_names(side, number, part)
            arrays |= zip(names, pair, strict=True)
        if norm is not None:
            names = array_names.marian_norm_names(side)
            arrays |= zip(names, weights.get_norm(norm), strict=True)
    return {name: np.atleast_2d(array) for name, array in arrays.items()}


def _settings(model, vocabulary_sizes):
    """Returns Marian's settings, with those of other architectures.

    marian-decoder, CTranslate2 and transformers each require some of the latter.
    """
    is_shared, is_tied = model.source_embedding is None, model.token_embedding.tied
    return {
        "type": "transformer",
        "dim-emb": model.d_model,
        "dim-vocabs": vocabulary_sizes,
        "dim-rnn": 1024,
        "enc-type": "bidirectional",
        "enc-cell": "gru",
        "enc-cell-depth": 1,
        "dec-cell": "gru",
        "dec-cell-base-depth": 2,
        "dec-cell-high-depth": 1,
        "enc-depth": len(model.encoder.layers),
        "dec-depth": len(model.decoder.layers),
        "skip": False,
        "layer-normalization": False,
        "right-left": False,
        "input-types": [],
        "special-vocab": [],
        "tied-embeddings": is_tied and not is_shared,
        "tied-embeddings-src": is_shared and not is_tied,
        "tied-embeddings-all": is_shared and is_tied,
        "transformer-heads": model.num_heads,
        "transformer-dim-ffn": model.d_ff,
        "transformer-ffn-depth": 2,
        "transformer-ffn-activation": supported.supported_activation(
            model, _ACTIVATIONS, "Marian"
        ),
        "transformer-decoder-dim-ffn": 0,
        "transformer-decoder-ffn-depth": 0,
        "transformer-dim-aan": 2048,
        "transformer-aan-depth": 2,
        "transformer-aan-activation": "swish",
        "transformer-aan-nogate": False,
        "transformer-preprocess": "",
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "nd" if model.variations.embedding_norm else "d",
        "transformer-postprocess-top": "",
        "transformer-decoder-autoreg": "self-attention",
        "transformer-tied-layers": [],
        "transformer-guided-alignment-layer": "last",
        "transformer-no-projection": False,
        "transformer-train-position-embeddings": False,
        "ulr": False,
        "ulr-dim-emb": 0,
        "ulr-trainable-transformation": False,
        "version": "v1.12.0",
    }


def _yaml(settings):
    return yaml.safe_dump(settings, sort_keys=False)


def _notes(translator):
    """Returns the section of the model card about using the export with Marian."""
    tokenizer, search = translator.tokenizer, translator.search
    notes = supported.common_notes(translator, "Marian")
    if search.patience is not None:
        notes.append(
            f"Marian has no setting like patience, which is {search.patience:g} here, "
            "so its search can stop at another point."
        )
    notes.append(
        "Marian limits translations to 3 times the number of source subwords, its "
        "default for `max-length-factor`. keras_transformer limits them to the length "
        f"of the source plus {search.extra_length}."
    )
    if tokenizer.kind == "bpe":
        notes.append("The padding and start ids are omitted, so they have no logits.")
    elif tokenizer.normalization is not None:
        notes.append(f"Texts must be normalized first: {tokenizer.normalization}.")
    if getattr(tokenizer, "language", None) is not None:
        notes.append(f"`>>{tokenizer.language}<<` must precede each text.")
    items = "".join(f"- {note}\n" for note in notes)
    return f"{_NOTES}\nAlso note:\n\n{items}"


def _write_npz(path, arrays, settings):
    """Writes arrays and settings as an uncompressed `.npz` file."""
    # Marian expects a zero byte at the end of the settings.
    text = _yaml(settings).encode("ascii") + b"\0"
    arrays = {**arrays, array_names.MARIAN_SETTINGS: np.frombuffer(text, np.int8)}
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(array))
            # Without a date, equal models give equal files.
            member = zipfile.ZipInfo(f"{name}.npy")
            archive.writestr(member, content.getvalue())
