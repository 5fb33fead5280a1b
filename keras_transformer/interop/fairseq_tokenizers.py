"""Tokenizers of M2M100, NLLB and mBART-50 in Hugging Face folders."""

import base64
import re
from typing import Any

from sentencepiece.sentencepiece_model_pb2 import ModelProto

from keras_transformer.errors import DataError, ModelError
from keras_transformer.interop.vocabularies import MAX_VOCABULARY_BYTES, read_vocabulary
from keras_transformer.pipelines.tokenizers.fairseq import (
    SPECIAL,
    FairseqTokenizer,
)
from keras_transformer.pipelines.tokenizers.model_check import (
    MAX_MODEL_BYTES,
    sentencepiece_pieces,
)
from keras_transformer.untrusted import read_bytes, read_json

MODEL = "sentencepiece.bpe.model"
# Languages of M2M100, such as `__fr__`, and of NLLB and mBART-50.
_LANGUAGE = re.compile(r"__(\w+)__|([a-z]{2,3}_[A-Z]\w+)")
_LISTS = "additional_special_tokens", "extra_special_tokens"


def read_fairseq_tokenizer(folder, size, source, target, forced_id=None):
    """Reads the tokenizer of a model with `size` ids.

    `source` and `target` are the default languages. If `None`, they are those of the
    folder. `forced_id` is the id of a target language, or `None`.
    """
    settings = _read_mapping(folder / "tokenizer_config.json")
    if settings.get("legacy_behaviour"):
        raise ModelError(
            f"{folder / 'tokenizer_config.json'}: models with legacy_behaviour, which "
            "have the source language at the end of a text, cannot be imported"
        )
    stored = _read_mapping(folder / "tokenizer.json")
    try:
        model = _read_model(folder, stored)
        if (folder / "vocab.json").is_file():  # M2M100
            pieces = list(read_vocabulary(folder / "vocab.json"))
        else:
            pieces = [*SPECIAL, *sentencepiece_pieces(model)[3:]]
        if tuple(pieces[:4]) != SPECIAL:
            raise ModelError(f"the first pieces must be {', '.join(SPECIAL)}")
        languages = _read_languages(folder, settings, stored, len(pieces))
        if max(len(pieces), *languages.values()) >= size:
            raise ModelError(
                f"vocab_size, {size}, is too small for {len(pieces)} pieces and "
                f"{len(languages)} languages"
            )
        found = []
        codes = {number: code for code, number in languages.items()}
        for side, code in (
            ("source", source or settings.get("src_lang")),
            ("target", target or settings.get("tgt_lang") or codes.get(forced_id)),
        ):
            if code is None:
                raise ModelError(
                    f"the folder has no default for the {side} language. Pass "
                    f"--{side}-language, one of {', '.join(languages)}"
                )
            found.append(str(code).strip("_"))
        pieces = [None] * 4 + pieces[4:] + [None] * (size - len(pieces))
        return FairseqTokenizer(pieces, model, languages, *found)
    except (DataError, ModelError) as error:
        raise ModelError(f"{folder}: {error}") from None


def _read_languages(folder, settings, stored, first_id):
    """Returns the id of each language code. The first usually has `first_id`."""
    given = settings.get("added_tokens_decoder") or {}
    given = {content.get("content"): int(n) for n, content in given.items()}
    tokens = stored.get("added_tokens") or []
    for found in (given, {each.get("content"): each.get("id") for each in tokens}):
        # transformers 5 puts the mask before the languages, where it has no row.
        shift = found.get("<mask>") == first_id
        if languages := _codes(found):
            return {code: number - shift for code, number in languages.items()}
    for mapping in (settings, _read_mapping(folder / "special_tokens_map.json")):
        for name in _LISTS:
            listed = mapping.get(name) or []
            listed = [each for each in listed if _match(each)]
            if listed:
                return _codes({each: first_id + n for n, each in enumerate(listed)})
    raise ModelError(
        "no file lists the languages. special_tokens_map.json must contain them as "
        "additional_special_tokens, in the order of their ids"
    )


def _match(name):
    return _LANGUAGE.fullmatch(name) if isinstance(name, str) else None


def _codes(tokens):
    """Returns {code: id} of the languages among tokens, {name: id}."""
    found = {_match(name): number for name, number in tokens.items()}
    return {each[1] or each[2]: n for each, n in found.items() if each}


def _read_model(folder, stored):
    """Returns the SentencePiece model, or one with the contents of `tokenizer.json`."""
    if (folder / MODEL).is_file() or not stored:
        return read_bytes(folder / MODEL, MAX_MODEL_BYTES, ModelError)
    try:
        settings, proto = stored["model"], ModelProto()
        vocabulary = settings["vocab"]
        if is_bpe := settings["type"] == "BPE":
            # Ids are in the order of the merges.
            ordered = sorted(vocabulary, key=vocabulary.get)
            vocabulary = [(piece, -float(n)) for n, piece in enumerate(ordered)]
        added = {each["content"] for each in stored["added_tokens"]}
        proto.trainer_spec.model_type = 2 if is_bpe else 1
        normalizer = proto.normalizer_spec
        normalizer.precompiled_charsmap = _charsmap(stored["normalizer"])
        special = proto.SentencePiece
        for name, kind in zip(
            ("<unk>", "<s>", "</s>"),
            (special.UNKNOWN, special.CONTROL, special.CONTROL),
            strict=True,
        ):
            proto.pieces.add(piece=name, type=kind)
        for piece, score in vocabulary[4:]:
            if piece not in added:
                proto.pieces.add(piece=piece, score=score)
        return proto.SerializeToString()
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ModelError(
            f"{folder / 'tokenizer.json'}: not a tokenizer of NLLB or mBART-50"
        ) from None


def _charsmap(normalizer):
    """Returns SentencePiece's normalization table, or b"" if there is none."""
    for each in normalizer.get("normalizers") or [normalizer]:
        if each["type"] == "Precompiled":
            return base64.b64decode(each["precompiled_charsmap"])
    return b""


def _read_mapping(path):
    """Returns the mapping in a JSON file, which is empty if there is no file."""
    if not path.is_file():
        return {}
    return read_json(path, dict[str, Any], MAX_VOCABULARY_BYTES, ModelError)
