"""Folders of M2M100, NLLB and mBART-50 for Hugging Face transformers."""

import numpy as np

from keras_transformer.interop import array_names, weights
from keras_transformer.pipelines.tokenizers.fairseq import SPECIAL
from keras_transformer.pipelines.tokenizers.model_check import sentencepiece_pieces

_NAMES = array_names.HUGGINGFACE_ARRAYS
# Number of positions of models with sinusoids, as in the original ones.
_MAX_POSITIONS = 1024
NOTES = """## Use with transformers

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER", src_lang="{source}")
batch = tokenizer(["Text"], return_tensors="pt", padding=True)
ids = model.generate(**batch, forced_bos_token_id={target})  # {code}
print(tokenizer.batch_decode(ids, skip_special_tokens=True))
```

"""


def describe_fairseq(translator, config, generation):
    """Returns arrays by their names in transformers, and the contents of JSON files.

    The model and its tokenizer must come from an import. `config` and `generation` are
    the contents of the files of a `MarianMTModel`, most of which stays.
    """
    model, tokenizer = translator.model, translator.tokenizer
    is_mbart = model.positions == "learned"
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    ids["decoder_start_token_id"] = 2
    ids["forced_bos_token_id"] = tokenizer.languages[tokenizer.target_language]
    name = "MBart" if is_mbart else "M2M100"
    config = {
        **config,
        "architectures": [f"{name}ForConditionalGeneration"],
        "model_type": "mbart" if is_mbart else "m2m_100",
        "vocab_size": model.vocabulary_size,
        "max_position_embeddings": model.max_length or _MAX_POSITIONS,
        "tie_word_embeddings": model.variations.tied_output,
        **ids,
    }
    if is_mbart:
        config |= {"normalize_before": True, "add_final_layer_norm": True}
    generation = {**generation, "bad_words_ids": [[1], [3]], **ids}
    files = {"config.json": config, "generation_config.json": generation}
    return _tensors(model, is_mbart), files | _tokenizer_files(tokenizer, is_mbart)


def _tensors(model, is_mbart):
    def rows(matrix):
        return weights.sines_first(weights.to_numpy(matrix))

    embedding = model.token_embedding
    tensors = {_NAMES["shared"]: rows(embedding.embeddings)}
    if not model.variations.tied_output:
        tensors[_NAMES["target"]] = tensors[_NAMES["shared"]].copy()
        tensors[_NAMES["source"]] = rows(model.source_embedding.embeddings)
        tensors[_NAMES["output"]] = rows(embedding.output_matrix)
    if is_mbart:
        bias = np.zeros((1, model.vocabulary_size), np.float32)
        if model.variations.logits_bias:
            bias[0] = weights.to_numpy(embedding.bias)
        tensors[_NAMES["bias"]] = bias
    for side, stack, positions, norm in (
        ("encoder", model.encoder, model.source_positions, model.source_norm),
        ("decoder", model.decoder, model.target_positions, model.target_norm),
    ):
        for number, part, kernel, bias in weights.get_layers(stack):
            names = array_names.huggingface_names(side, number, part)
            tensors |= zip(names, (kernel.T, bias), strict=True)
        norms = {"layer_norm": stack.final_norm}
        if is_mbart:
            norms["layernorm_embedding"] = norm
            # fairseq's first positions are those of padding.
            padded = np.pad(rows(positions.positions), ((2, 0), (0, 0)))
            tensors[_NAMES[f"{_SIDES[side]}_positions"]] = padded
        for name, layer in norms.items():
            names = (f"model.{side}.{name}.{kind}" for kind in ("weight", "bias"))
            tensors |= zip(names, weights.get_norm(layer), strict=True)
    return tensors


_SIDES = {"encoder": "source", "decoder": "target"}


def _tokenizer_files(tokenizer, is_mbart):
    """Returns the JSON files of the tokenizer. Ids of added tokens are explicit."""
    pieces = [*SPECIAL, *tokenizer.pieces()[4:]]
    known = sentencepiece_pieces(tokenizer.model)
    # M2M100 has another order of pieces than its SentencePiece model.
    has_own = pieces[4 : len(known) + 1] != known[3:]
    mark = "__{}__" if has_own else "{}"
    codes = {mark.format(code): n for code, n in tokenizer.languages.items()}
    added = dict(zip(SPECIAL, range(4), strict=True)) | codes
    # transformers closes gaps between ids. A language that was added to NLLB comes
    # after the mask, and the mask needs an id, since transformers would choose one.
    used = set(codes.values())
    first = min(used) if has_own else len(known) + 1
    gaps = [n for n in range(first, max(used)) if n not in used]
    if not has_own:
        added["<mask>"] = gaps.pop(0) if gaps else max(used) + 1
    added |= {f"<unused{n}>": n for n in gaps}
    kind = "MBart50Tokenizer" if is_mbart else "NllbTokenizer"
    settings = {
        "tokenizer_class": "M2M100Tokenizer" if has_own else kind,
        "src_lang": tokenizer.source_language,
        "tgt_lang": tokenizer.target_language,
        "additional_special_tokens": list(codes),
        "added_tokens_decoder": {
            str(n): {"content": name, "special": True, "lstrip": name == "<mask>"}
            for name, n in sorted(added.items(), key=lambda each: each[1])
        },
    }
    files = {"tokenizer_config.json": settings}
    if has_own:
        files["vocab.json"] = {piece: n for n, piece in enumerate(pieces[:first])}
    return files
