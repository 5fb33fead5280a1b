"""A SavedModel that takes text and returns translations."""

import contextlib
import json
import os
import pathlib
import shutil
import time
import uuid

import tensorflow as tf

from keras_transformer.decoding.batches import check_fits
from keras_transformer.decoding.options import BeamSearch
from keras_transformer.export.signatures import Signatures
from keras_transformer.export.simplification import simplify_saved_model
from keras_transformer.export.warmup import write_warmup_requests
from keras_transformer.files import check_writable
from keras_transformer.files import sync
from keras_transformer.files import sync_tree
from keras_transformer.files import told_when_full
from keras_transformer.saving.saved_model import LIMITS

# Longer than any export takes.
_ABANDONED_SECONDS = 3600


def export_saved_model(
    model,
    tokenizer,
    folder,
    beam_size=4,
    length_penalty=0.6,
    length_penalty_kind="gnmt",
    extra_length=50,
    max_source_length=256,
    card=None,
    max_batch_size=1024,
    parallel_parts=1,
    jit_compile=False,
    patience=None,
):
    """Writes `folder/VERSION/`, a SavedModel with tokenizer and beam search inside.

    VERSION is one more than the highest there, as TF-Serving counts; it appears
    whole, when all of it lies on the disk. Texts are UTF-8, in batches of any size and
    of any length: what exceeds `max_source_length` sub-words is cut there, a target at
    `extra_length` more. An empty or blank text has an empty translation with score 0.
    Signatures:

    - `serving_default`: `inputs` string [batch] to `translations` string [batch] and
      `scores` float32 [batch], and `truncated` bool [batch], whether the text was cut.
    - `translate_n_best`: `inputs` string [batch] to `translations` string [batch,
      beam_size], best first, `scores` float32 [batch, beam_size], `counts` int32
      [batch], how many of them there are (the others are empty texts with the lowest
      float32 as score), and `truncated` bool [batch], whether the text was cut.
    - `translate_ids`: `source_ids` int32 [batch, source_length], each row ids and the
      end id, then padding, to `target_ids` int32 [batch, target_length] (ids and the
      end id, then padding) and `scores` float32 [batch].
    - `score`: `inputs` and `targets` string [batch] to `log_probs` float32 [batch],
      the log-probability of each target, its end included, and `num_tokens` int32
      [batch], the sub-words that it is the sum over.
    - `encode`: `source_ids` as above to `encoder_output` float32 [batch,
      source_length, d_model].
    - `attend`: `inputs` and `targets` string [batch] to `source_pieces` string
      [batch, source_pieces], `target_pieces` string [batch, target_pieces], which
      joined are the texts, and `attention` float32 [batch, target_pieces,
      source_pieces]: how much the decoder looks at each source piece to predict a
      target piece, the mean over the heads of its last two layers. A row lacks what
      goes to the end id. Empty strings and zeros fill the rows up.

    Ids outside the vocabulary, texts that do not pair up, and batches of more than
    `max_batch_size` are invalid arguments.

    Args:
        model: `Transformer`.
        tokenizer: Of source and target.
        folder: Parent of the versions; made where it does not exist.
        beam_size: Number of hypotheses.
        length_penalty: Exponent alpha of the length penalty.
        length_penalty_kind: `"gnmt"` or `"power"`.
        extra_length: What a translation may exceed its source by, in sub-words.
        max_source_length: Sub-words of a text that are read, its end id counted.
        card: What `MODEL_CARD.md` says, Markdown. None: no such file.
        max_batch_size: Rows that a batch may have.
        parallel_parts: Parts of a batch that are searched side by side, for a CPU that
            serves few large requests: with each operation on one thread
            (TF_NUM_INTRAOP_THREADS=1), as many as there are cores.
        jit_compile: Whether texts of up to 64 sub-words that come one at a time are
            searched by programs that XLA compiles, one for each length up to a
            multiple of 16, when the first text of the length comes. The decoder's
            matrices lie in blocks then, of which batches make them whole, 10 ms a
            batch for a base model. For TensorFlow in Python, not for TF-Serving, whose
            builds lack XLA.
        patience: Float above 0; a text's search also ends when `patience * beam_size`
            translations have finished, see `beam_search`. None: when none can do
            better.

    Returns:
        Path of the version's folder.

    Raises:
        ValueError: the tokenizer has more ids than the model, or an end id that it
            never puts out; sizes or a `patience` out of range.
        StorageError: `folder` cannot be written to, or the disk is full.
    """
    check_fits(model, tokenizer)

    folder = pathlib.Path(folder)
    check_writable(folder)
    signatures = Signatures(
        model,
        tokenizer,
        BeamSearch(
            beam_size, length_penalty, length_penalty_kind, patience, extra_length
        ),
        max_source_length,
        max_batch_size,
        parallel_parts,
        jit_compile,
    )
    # Keras's ExportArchive would trace each of them twice.
    endpoints = {
        name: tf.function(
            function, input_signature=input_signature, autograph=False
        ).get_concrete_function()
        for name, function, input_signature in signatures.endpoints()
    }
    served = tf.Module()
    packed = signatures.packed_weights
    replaced = set() if packed is None else set(map(id, packed.replaced_variables()))
    # TensorFlow's own variables: without Python, others are not restored.
    served.weights = [
        variable.value for variable in model.variables if id(variable) not in replaced
    ]
    served.packed_weights = None if packed is None else packed.variables
    served.tokenizer = tokenizer
    for name, function in endpoints.items():
        setattr(served, name, function)

    def write(path):
        tf.saved_model.save(served, path, signatures=endpoints)

    with told_when_full(folder):
        return _write_version(write, folder, card, {"max_batch_size": max_batch_size})


def _write_version(write, folder, card, limits):
    _remove_abandoned(folder)
    # A name that is no number: a server that watches the folder passes it over.
    # Two containers may have the same process number.
    temporary = folder / f".writing-{os.getpid()}-{uuid.uuid4().hex}"
    try:
        write(str(temporary))
        simplify_saved_model(temporary)
        write_warmup_requests(temporary, limits["max_batch_size"])
        (temporary / LIMITS).write_text(json.dumps(limits), encoding="utf-8")
        if card is not None:
            (temporary / "MODEL_CARD.md").write_text(card, encoding="utf-8")
        sync_tree(temporary)
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
                sync(folder)
                return version
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_abandoned(folder):
    """Removes what exports that were killed have left, unless one may still write."""
    for path in folder.glob(".writing-*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
