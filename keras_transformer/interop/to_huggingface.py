"""Export to a folder that Hugging Face transformers reads.

A post-norm model becomes a `MarianMTModel`. A pre-norm model becomes a
`PegasusForConditionalGeneration`, the pre-norm counterpart of `MarianMTModel`. An
imported M2M100, NLLB or mBART-50 becomes one again.
"""

import json
import pathlib

import numpy as np
from safetensors.numpy import save_file

from keras_transformer.errors import ExportError
from keras_transformer.files import replace_folder
from keras_transformer.interop import array_names, supported, weights
from keras_transformer.interop.fairseq_tokenizers import MODEL
from keras_transformer.interop.to_fairseq import NOTES, describe_fairseq
from keras_transformer.saving.names import CARD
from keras_transformer.saving.preset import DTYPES
from keras_transformer.untrusted import quote

# Fields of `model.variations` that can be exported. transformers ignores
# `layer_norm_epsilon`.
_VARIATIONS = (
    *("num_decoder_layers", "attention_bias", "logits_bias", "zero_start_id"),
    *("layer_norm_epsilon", "source_vocabulary_size"),
)
# Settings of the search that transformers has, too, under the same names.
_SEARCH = ("no_repeat_ngram_size", "repetition_penalty", "min_length")
_NAMES = array_names.HUGGINGFACE_ARRAYS
_ACTIVATIONS = array_names.HUGGINGFACE_ACTIVATIONS
# Number of positions that transformers stores. It rejects longer texts.
_MAX_POSITIONS = 1024
# Maximum number of ids in a translation, including the start and end ids.
_MAX_LENGTH = 512
_NOTES = """## Use with transformers

```python
from transformers import AutoModelForSeq2SeqLM
from transformers import MarianTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained("FOLDER")
tokenizer = MarianTokenizer.from_pretrained("FOLDER")
batch = tokenizer(["Text"], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```

The model is a `{architecture}`. With another class, its translations are wrong.

"""
_DIFFERENCES = """## Differences

transformers computes almost the same results from these weights as keras_transformer.
The differences are:

"""


def export_huggingface(translator, folder, *, scores=(), license=None, dtype=None):
    """Writes a folder that transformers loads.

    `AutoModelForSeq2SeqLM` loads the model, and `transformers.MarianTokenizer` the
    tokenizer. Ids do not change. One id is appended, with the embedding of the start
    id. transformers uses it for padding and as the decoder's first input. The new id
    has a logit bias of -1e9, so that log-probabilities match this package.
    `generation_config.json` contains the search settings and the ids that a translation
    never contains. If source and target differ in vocabulary, the smaller vocabulary is
    padded, because transformers supports only one vocabulary size.

    Args:
        translator: `Translator` from `open_model`.
        folder: Folder to write, which must not exist.
        scores: Evaluation scores for the model card (see `model_card`).
        license: License for the model card. If `None`, that of the opened model, if
            known.
        dtype: `"float16"` for weights in half precision. If `None`, float32.

    Returns:
        Path of the folder.

    Raises:
        ExportError: If the folder exists, the model has parts that `MarianMTModel` and
            Pegasus lack, the tokenizer is neither BPE nor from an imported Marian
            model, or `dtype` is unknown or too small for a weight.
        StorageError: If the disk is full.

    Examples:
        >>> translator = kt.open_model("phrases")
        >>> folder = kt.interop.export_huggingface(translator, "huggingface/phrases")
        >>> (folder / "model.safetensors").is_file()
        True
    """
    model, tokenizer = translator.model, translator.tokenizer
    folder = pathlib.Path(folder)
    if dtype not in DTYPES:
        raise ExportError(f'dtype must be None or "float16". Received: {dtype!r}')
    if tokenizer.kind == "fairseq":
        supported.check_model(translator, folder)
        _check_fairseq(model)
        tensors, files = describe_fairseq(
            translator,
            _config(model, tokenizer, dtype or "float32"),
            _generation_config(model, tokenizer, translator.search),
        )
        models = {MODEL: supported.splitter_model(tokenizer)}
        usage = NOTES.format(
            source=tokenizer.source_language,
            target=tokenizer.languages[tokenizer.target_language],
            code=tokenizer.target_language,
        )
    else:
        supported.check_translator(
            translator, folder, "transformers", _VARIATIONS, _ACTIVATIONS
        )
        tensors, files = _describe_marian(translator, dtype or "float32")
        models = {
            f"{side}.spm": supported.splitter_model(each)
            for side, each in (
                ("source", tokenizer.source),
                ("target", translator.target_tokenizer),
            )
        }
        usage = _NOTES.format(architecture=_architecture(model))
    if dtype is not None:
        tensors = {name: _half(name, array) for name, array in tensors.items()}
    texts = supported.describe(translator, scores, license)
    texts[CARD] += f"\n{usage}{_DIFFERENCES}{_list_differences(translator)}"
    with replace_folder(folder, must_be_new=True) as temporary:
        # The library writes the memory of an array, whatever its strides.
        tensors = {name: np.ascontiguousarray(each) for name, each in tensors.items()}
        save_file(tensors, temporary / "model.safetensors", {"format": "pt"})
        for name, content in files.items():
            texts[name] = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        for name, text in texts.items():
            (temporary / name).write_text(text, encoding="utf-8")
        for name, content in models.items():
            (temporary / name).write_bytes(content)
    return folder


def _describe_marian(translator, dtype):
    """Like `describe_fairseq`, for a `MarianMTModel` or Pegasus and its tokenizer."""
    model, tokenizer = translator.model, translator.tokenizer
    if tokenizer.kind == "marian":
        _check_marian(tokenizer, model)
    if _is_separate(model) and model.normalization == "pre":
        raise ExportError(
            "transformers' Pegasus, the format of pre-norm models, has no separate "
            "source embeddings. Train with model.normalization=post or "
            "tokenizer.shared=true"
        )
    target = translator.target_tokenizer
    files = {
        "config.json": _config(model, target, dtype),
        "generation_config.json": _generation_config(model, target, translator.search),
        "tokenizer_config.json": {
            "tokenizer_class": "MarianTokenizer",
            "unk_token": "<unk>",
            "eos_token": "</s>",
            "pad_token": "<pad>",
            "separate_vocabs": _is_separate(model),
            "clean_up_tokenization_spaces": False,
            "model_max_length": _MAX_POSITIONS,
        },
        "vocab.json": _vocabulary(tokenizer, _num_ids(model)),
    }
    if _is_separate(model):
        files["target_vocab.json"] = _vocabulary(target, _num_ids(model))
    return _tensors(model, tokenizer), files


def _half(name, array):
    """Converts an array to half precision."""
    largest = np.finfo("float16").max
    if name == _NAMES["bias"]:
        # Half precision cannot store -1e9, the bias of ids that are never generated.
        array = np.maximum(array, -largest)
    if not np.all(np.abs(array) <= largest):
        raise ExportError(
            f"{name}: a weight exceeds the range of float16, {largest:,.0f}. Write the "
            "model in float32, the default"
        )
    return array.astype("float16")


def _list_differences(translator):
    """Returns the differences between transformers and this package, as a list."""
    notes = []
    norm = translator.model.encoder.layers[0].feed_forward_add_norm
    if norm.layer_norm_epsilon != 1e-5:
        notes.append(
            "Layer normalizations add 1e-5 to the variance. In training, they added "
            f"{norm.layer_norm_epsilon:g}."
        )
    search = translator.search
    notes += supported.common_notes(translator, "transformers", _SEARCH)
    given = [name for name in _SEARCH[:2] if name in search.steering()]
    if given:
        notes.append(
            f"transformers applies {' and '.join(given)} to log-probabilities, and "
            "keras_transformer to logits."
        )
    if search.patience not in (None, 1):
        notes.append(
            f"transformers stops a search once {search.beam_size} hypotheses have "
            "finished. keras_transformer stops it at "
            f"{search.patience * search.beam_size:g} (patience {search.patience:g})."
        )
    notes.append(
        f"transformers limits translations to {_MAX_LENGTH - 1} ids with the end id. "
        "keras_transformer limits them to the length of the source plus "
        f"{search.extra_length}."
    )
    if translator.tokenizer.kind == "bpe":
        notes.append("Spaces at both ends of a translation are removed.")
    notes.append("In a text, `</s>`, `<unk>` and `<pad>` become special ids.")
    return "".join(f"- {note}\n" for note in notes)


def _check_fairseq(model):
    """Raises `ExportError` unless a model has the parts of M2M100 or of mBART-50."""
    is_mbart = model.positions == "learned"
    supported.require_values("transformers", normalization=(model.normalization, "pre"))
    supported.check_architecture(
        *(model, "transformers", (*_VARIATIONS, "tied_output"), _ACTIVATIONS),
        positions="learned" if is_mbart else "sinusoidal",
        timescales="paper" if is_mbart else "tensor2tensor",
        first_position=0 if is_mbart else 2,
        embedding_norm=is_mbart,
    )


def _check_marian(tokenizer, model):
    """Raises `ExportError` unless `MarianTokenizer` can represent the tokenizer."""
    if None in (tokenizer.model, tokenizer.target.model):
        raise ExportError(
            "transformers' MarianTokenizer needs SentencePiece models, but this model "
            "was imported without them. Import it again from a folder that contains "
            "source.spm and target.spm"
        )
    is_same = tokenizer.pieces() == tokenizer.target.pieces()
    if not is_same and not _is_separate(model):
        raise ExportError(
            "source and target must have the same subwords, because they share their "
            "embeddings"
        )
    for name in ("normalization", "language"):
        value = getattr(tokenizer, name)
        if value is not None:
            raise ExportError(
                f"transformers' MarianTokenizer does not support {name}. "
                f"Received: {name}={value}"
            )


def _is_separate(model):
    """Returns whether the source has its own embeddings."""
    return model.source_embedding is not None


def _num_ids(model):
    """Returns the number of ids of the larger vocabulary."""
    return max(model.source_vocabulary_size, model.vocabulary_size)


def _tensors(model, tokenizer):
    """Returns arrays by their names in transformers. Kernels are transposed."""
    size, variations = _num_ids(model), model.variations

    def rows(layer):
        """Returns the embeddings, zeros for unused ids, and the new id's embedding."""
        embeddings = weights.to_numpy(layer.embeddings)
        start = embeddings[tokenizer.start_id][None]
        if variations.zero_start_id == tokenizer.start_id:
            start = np.zeros_like(start)
        unused = np.zeros_like(start, shape=(size - len(embeddings), model.d_model))
        return weights.sines_first(np.concatenate([embeddings, unused, start]))

    tensors = {}
    if _is_separate(model):
        tensors[_NAMES["source"]] = rows(model.source_embedding)
        tensors[_NAMES["target"]] = rows(model.token_embedding)
    else:
        tensors[_NAMES["shared"]] = rows(model.token_embedding)
    bias = np.zeros((1, size + 1), np.float32)
    if variations.logits_bias:
        bias[0, : model.num_outputs] = weights.to_numpy(model.token_embedding.bias)
    bias[:, model.num_outputs :] = supported.EXCLUDED_BIAS
    tensors[_NAMES["bias"]] = bias
    for side, stack, positions in (
        ("encoder", model.encoder, _NAMES["source_positions"]),
        ("decoder", model.decoder, _NAMES["target_positions"]),
    ):
        for number, part, kernel, bias in weights.get_layers(stack):
            names = array_names.huggingface_names(side, number, part)
            tensors |= zip(names, (kernel.T, bias), strict=True)
        if stack.final_norm is not None:
            names = (f"model.{side}.layer_norm.{kind}" for kind in ("weight", "bias"))
            tensors |= zip(names, weights.get_norm(stack.final_norm), strict=True)
            vectors = weights.position_vectors(
                model.target_positions, model.d_model, _MAX_POSITIONS
            )
            tensors[positions] = weights.sines_first(vectors)
    return tensors


def _architecture(model):
    """Returns the name of the class in transformers."""
    is_pre_norm = model.normalization == "pre"
    return "PegasusForConditionalGeneration" if is_pre_norm else "MarianMTModel"


def _config(model, tokenizer, dtype):
    """Returns the content of `config.json`."""
    is_pre_norm = model.normalization == "pre"
    pad_id = _num_ids(model)
    config = {
        "architectures": [_architecture(model)],
        "model_type": "pegasus" if is_pre_norm else "marian",
        "is_encoder_decoder": True,
        "vocab_size": pad_id + 1,
        "d_model": model.d_model,
        "activation_function": supported.supported_activation(
            model, _ACTIVATIONS, "transformers"
        ),
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": 0.0,
        "scale_embedding": True,
        "max_position_embeddings": _MAX_POSITIONS,
        "pad_token_id": pad_id,
        "decoder_start_token_id": pad_id,
        "eos_token_id": tokenizer.end_id,
        "forced_eos_token_id": None,
        "torch_dtype": dtype,
    }
    if not is_pre_norm:
        config["decoder_vocab_size"] = pad_id + 1
        config["share_encoder_decoder_embeddings"] = not _is_separate(model)
        config["static_position_embeddings"] = True
    for part, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        config[f"{part}_layers"] = len(stack.layers)
        config[f"{part}_ffn_dim"] = model.d_ff
        config[f"{part}_attention_heads"] = model.num_heads
    return config


def _generation_config(model, tokenizer, search):
    """Returns the content of `generation_config.json`."""
    pad_id = _num_ids(model)
    excluded_ids = (tokenizer.pad_id, tokenizer.unknown_id, tokenizer.start_id, pad_id)
    steering = {k: value for k, value in search.steering().items() if k in _SEARCH}
    if "min_length" in steering:
        # transformers also counts the start id and the language.
        steering["min_length"] += 1 + (tokenizer.kind == "fairseq")
    return {
        **steering,
        "num_beams": search.beam_size,
        "length_penalty": search.length_penalty,
        # Like this package, "never" searches until no better hypothesis is possible.
        "early_stopping": "never" if search.patience is None else True,
        "max_length": _MAX_LENGTH,
        "bad_words_ids": [[number] for number in excluded_ids],
        "pad_token_id": pad_id,
        "decoder_start_token_id": pad_id,
        "eos_token_id": tokenizer.end_id,
    }


def _vocabulary(tokenizer, size):
    """Maps subwords to ids, with transformers' names of the special ids."""
    pieces = tokenizer.pieces()
    # A padded vocabulary has rows without a subword.
    pieces += [f"<unused{number}>" for number in range(len(pieces), size)]
    # An imported vocabulary may have this name from an earlier export.
    padding = "<padding>"
    while padding in pieces:
        padding += "_"
    pieces[tokenizer.pad_id] = padding
    pieces[tokenizer.unknown_id] = "<unk>"
    pieces[tokenizer.end_id] = "</s>"
    pieces.append("<pad>")
    if repeated := supported.find_repeated(pieces):
        raise ExportError(
            "subwords must differ from each other and from the names that the export "
            "adds: <pad>, <unk>, </s>, <unused0>, <unused1>, and so on. "
            f"Received: {quote(repeated)}"
        )
    return {piece: number for number, piece in enumerate(pieces)}
