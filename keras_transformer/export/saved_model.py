"""A SavedModel that takes text and returns translations."""

import os
import pathlib
import shutil

import keras
import tensorflow as tf

from keras_transformer.decoding import translate_ids


def export_saved_model(
    model,
    tokenizer,
    folder,
    beam_size=4,
    length_penalty=0.6,
    length_penalty_kind="gnmt",
    extra_length=50,
    max_source_length=256,
):
    """Writes `folder/VERSION/`, a SavedModel with tokenizer and beam search inside.

    VERSION is one more than the highest there, as TF-Serving counts; it appears
    whole. Signatures:

    - `serving_default`: `inputs` string [batch] to `translations` string [batch] and
      `scores` float32 [batch]. An empty or blank text gives an empty translation and
      score 0; a text of more than `max_source_length` sub-words is cut there.
    - `translate_ids`: `source_ids` int32 [batch, source_length], each row ids and the
      end id, then padding, to `target_ids` int32 [batch, target_length] (ids and the
      end id, then padding) and `scores` float32 [batch].

    Args:
        model: `Transformer`.
        tokenizer: Of source and target.
        folder: Parent of the versions; made where it does not exist.
        beam_size: Number of hypotheses.
        length_penalty: Exponent alpha of the length penalty.
        length_penalty_kind: `"gnmt"` or `"power"`.
        extra_length: What a translation may exceed its source by, in sub-words.
        max_source_length: Sub-words of a text that are read, its end id counted.

    Returns:
        Path of the version's folder.

    Raises:
        ValueError: the tokenizer has more ids than the model.
    """
    if tokenizer.vocabulary_size > model.vocabulary_size:
        raise ValueError(
            "The tokenizer must not have more ids than the model. Received: "
            f"{tokenizer.vocabulary_size} and {model.vocabulary_size}."
        )

    def search(source_ids):
        sequences, scores = translate_ids(
            model,
            source_ids,
            beam_size=beam_size,
            length_penalty=length_penalty,
            length_penalty_kind=length_penalty_kind,
            extra_length=extra_length,
            vocabulary_size=tokenizer.vocabulary_size,
        )
        return sequences[:, 0], scores[:, 0]

    def translate(inputs):
        source_ids = source_rows(tokenizer, inputs, max_source_length)
        sequences, scores = search(source_ids)
        return {"translations": tokenizer.detokenize(sequences), "scores": scores}

    def translate_rows(source_ids):
        sequences, scores = search(source_ids)
        return {"target_ids": sequences, "scores": scores}

    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.track(tokenizer)
    archive.add_endpoint(
        "serving_default",
        translate,
        input_signature=[tf.TensorSpec([None], tf.string, name="inputs")],
    )
    archive.add_endpoint(
        "translate_ids",
        translate_rows,
        input_signature=[tf.TensorSpec([None, None], tf.int32, name="source_ids")],
    )
    return _write_version(archive, pathlib.Path(folder))


def source_rows(tokenizer, texts, max_source_length):
    """Ids of texts as the model reads them.

    Args:
        tokenizer: Of the source.
        texts: string [batch].
        max_source_length: Longest row, its end id counted; longer ones are cut.

    Returns:
        int32 [batch, source_length], ids and the end id, then padding. A blank text
        has its end id only.
    """
    blank = tf.equal(tf.strings.strip(texts), "")
    ids = tokenizer.tokenize(tf.where(blank, "", texts))
    ids = ids[:, : max_source_length - 1]
    ends = tf.fill([tf.shape(texts)[0], 1], tokenizer.end_id)
    rows = tf.concat([ids, tf.RaggedTensor.from_tensor(ends)], axis=1)
    return rows.to_tensor(tokenizer.pad_id)


def _write_version(archive, folder):
    folder.mkdir(parents=True, exist_ok=True)
    # A name that is no number: a server that watches the folder passes it over.
    temporary = folder / f".writing-{os.getpid()}"
    try:
        archive.write_out(str(temporary), verbose=False)
        while True:
            versions = [int(p.name) for p in folder.iterdir() if p.name.isdecimal()]
            version = folder / str(max(versions, default=0) + 1)
            try:
                os.rename(temporary, version)
            except OSError:
                # Another export took the number meanwhile.
                if not version.exists():
                    raise
            else:
                return version
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
