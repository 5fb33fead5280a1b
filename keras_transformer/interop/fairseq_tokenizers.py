"""Tokenizers of M2M100, NLLB and mBART-50 in Hugging Face folders."""

import base64
import logging
import re
from typing import Annotated, Any

from pydantic import BaseModel, Field
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
from keras_transformer.untrusted import escape_controls, read_bytes, read_json

logger = logging.getLogger(__name__)

MODEL = "sentencepiece.bpe.model"
# Languages of M2M100, such as `__fr__`, and of NLLB and mBART-50.
_LANGUAGE = re.compile(r"__(\w+)__|([a-z]{2,3}_[A-Z]\w+)")


class _Token(BaseModel):
    content: str


class _AddedToken(_Token):
    id: int


class _Lists(BaseModel):
    """Settings that may list the languages, `special_tokens_map.json`."""

    additional_special_tokens: list[Any] | dict[str, Any] | None = None
    extra_special_tokens: list[Any] | dict[str, Any] | None = None


class _Settings(_Lists):
    """The part of `tokenizer_config.json` that an import reads."""

    legacy_behaviour: bool | None = None
    src_lang: str | None = None
    tgt_lang: str | None = None
    added_tokens_decoder: (
        dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], _Token] | None
    ) = None


class _TokenizerFile(BaseModel):
    """The part of `tokenizer.json` that an import reads."""

    added_tokens: list[_AddedToken] = []
    normalizer: dict[str, Any] | None = None
    model: dict[str, Any] | None = None


def read_fairseq_tokenizer(folder, size, source, target, forced_id=None):
    """Reads the tokenizer of a model with `size` ids.

    `source` and `target` are the default languages. If `None`, they are those of the
    folder. `forced_id` is the id of the language that transformers generates first, or
    `None`. As there, it has precedence over the folder's target language.
    """
    settings = _read(folder / "tokenizer_config.json", _Settings)
    if settings.legacy_behaviour:
        raise ModelError(
            f"{folder / 'tokenizer_config.json'}: models with legacy_behaviour, which "
            "have the source language at the end of a text, cannot be imported"
        )
    stored = _read(folder / "tokenizer.json", _TokenizerFile)
    try:
        model = _read_model(folder, stored)
        if (folder / "vocab.json").is_file():  # M2M100
            pieces = list(read_vocabulary(folder / "vocab.json"))
        else:
            pieces = [*SPECIAL, *sentencepiece_pieces(model)[3:]]
        if tuple(pieces[:4]) != SPECIAL:
            raise ModelError(f"the first subwords must be {', '.join(SPECIAL)}")
        tokens = _read_tokens(folder, settings, stored, len(pieces))
        _warn_of_words(folder, tokens.keys() - {*pieces, "<mask>"})
        languages = _codes(tokens)
        if max(len(pieces), *languages.values()) >= size:
            raise ModelError(
                f"vocab_size, {size}, is too small for {len(pieces)} subwords and "
                f"{len(languages)} languages"
            )
        found = []
        codes = {number: code for code, number in languages.items()}
        for side, code in (
            ("source", source or settings.src_lang),
            ("target", target or codes.get(forced_id) or settings.tgt_lang),
        ):
            if code is None:
                raise ModelError(
                    f"the folder has no default for the {side} language. Pass "
                    f"--{side}-language, one of {', '.join(languages)}"
                )
            found.append(code.strip("_"))
        pieces = [None] * 4 + pieces[4:] + [None] * (size - len(pieces))
        return FairseqTokenizer(pieces, model, languages, *found)
    except (DataError, ModelError) as error:
        raise ModelError(f"{folder}: {error}") from None


def _read_tokens(folder, settings, stored, first_id):
    """Returns the ids of the languages and of other added tokens.

    The first language usually has `first_id`.
    """
    given = settings.added_tokens_decoder or {}
    for found in (
        {each.content: int(number) for number, each in given.items()},
        {each.content: each.id for each in stored.added_tokens},
    ):
        # transformers 5 puts the mask before the languages, where it has no row.
        shift = found.get("<mask>") == first_id
        if _codes(found):
            return {name: number - shift for name, number in found.items()}
    # The tokens that a user of transformers before 4.34 added.
    added = _read(folder / "added_tokens.json", dict[str, int])
    for lists in (settings, _read(folder / "special_tokens_map.json", _Lists)):
        for name in _Lists.model_fields:
            listed = [each for each in getattr(lists, name) or [] if _match(each)]
            if listed:
                listed = [each for each in listed if each not in added]
                return {each: first_id + n for n, each in enumerate(listed)} | added
    raise ModelError(
        "no file lists the languages. special_tokens_map.json must contain them as "
        "additional_special_tokens, in the order of their ids"
    )


def _warn_of_words(folder, names):
    """Warns of added tokens that are no languages: no text is split into them."""
    words = sorted(each for each in names if not _match(each))
    if words:
        shown = ", ".join(words[:20]) + (", ..." if len(words) > 20 else "")
        logger.warning(
            "%s: added tokens that are not language codes are ignored, so texts with "
            "them get other ids, and their embeddings are not used: %s",
            folder,
            escape_controls(shown[:400]),
        )


def _match(name):
    return _LANGUAGE.fullmatch(name) if isinstance(name, str) else None


def _codes(tokens):
    """Returns {code: id} of the languages among tokens, {name: id}."""
    found = {_match(name): number for name, number in tokens.items()}
    return {each[1] or each[2]: n for each, n in found.items() if each}


def _read_model(folder, stored):
    """Returns the SentencePiece model, or one with the contents of `tokenizer.json`."""
    if (folder / MODEL).is_file() or not stored.model:
        return read_bytes(folder / MODEL, MAX_MODEL_BYTES, ModelError)
    try:
        proto, vocabulary = ModelProto(), stored.model["vocab"]
        if is_bpe := stored.model["type"] == "BPE":
            # Ids are in the order of the merges.
            ordered = sorted(vocabulary.items(), key=lambda each: each[1])
            vocabulary = [(piece, -float(n)) for piece, n in ordered]
            numbers = dict(ordered)
        else:
            numbers = {piece: n for n, (piece, _) in enumerate(vocabulary)}
        added = {each.content for each in stored.added_tokens}
        proto.trainer_spec.model_type = 2 if is_bpe else 1
        normalizer = proto.normalizer_spec
        normalizer.precompiled_charsmap = _charsmap(stored.normalizer)
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
                # Left out, an added token in the middle would shift all later ids.
                if numbers[piece] != (number := len(proto.pieces)):
                    raise ModelError(
                        f"{folder / 'tokenizer.json'}: the subword {piece!r:.80} must "
                        f"have the id {number}. Received: {numbers[piece]}"
                    )
        return proto.SerializeToString()
    except ModelError:
        raise
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


def _read(path, schema):
    """Returns the content of a JSON file. If there is no file, it is the default."""
    if not path.is_file():
        return schema()
    return read_json(path, schema, MAX_VOCABULARY_BYTES, ModelError)
