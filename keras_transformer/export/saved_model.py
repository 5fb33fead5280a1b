"""Export to a SavedModel that translates text."""

import contextlib
import logging
import os
import pathlib
import shutil
import time
import uuid

import tensorflow as tf

from keras_transformer.decoding.batches import check_compatible, select_target
from keras_transformer.decoding.ensemble import build_models
from keras_transformer.decoding.options import BeamSearch, check_at_least, check_type
from keras_transformer.errors import ExportError, install_hint, require_backend
from keras_transformer.export.card import describe_translator
from keras_transformer.export.load import LIMITS, ExportLimits
from keras_transformer.export.preset import check_exportable, reject_forbidden_phrases
from keras_transformer.export.searches import graph_function
from keras_transformer.export.signatures import Signatures
from keras_transformer.export.simplification import simplify_saved_model
from keras_transformer.files import (
    check_writable,
    convert_disk_full_errors,
    require_readable_path,
    sync,
    sync_tree,
)
from keras_transformer.pipelines import CoreOpsBytePairTokenizer, SeparateTokenizers
from keras_transformer.saving.names import CONFIG, MODEL, PRESET_CONFIG

# Temporary folders that are older than this belong to exports that were killed.
_ABANDONED_SECONDS = 3600
# Requests that TF-Serving runs before it serves a version.
_WARMUP = pathlib.Path("assets.extra") / "tf_serving_warmup_requests"
_TEXTS = ["a", "a b c d e f g"]
# Any two subwords, which the end id follows.
_IDS = [[4, 5]]
# The inputs of each signature's request.
_INPUTS = {
    "serving_default": {"inputs": _TEXTS},
    "translate_n_best": {"inputs": _TEXTS},
    "translate_ids": {"source_ids": _IDS},
    "score": {"inputs": _TEXTS, "targets": _TEXTS},
    "encode": {"source_ids": _IDS},
    "attend": {"inputs": _TEXTS, "targets": _TEXTS},
}

logger = logging.getLogger(__name__)


def export_saved_model(
    model,
    tokenizer,
    folder,
    search=BeamSearch(),
    *,
    max_source_length=256,
    texts=None,
    max_batch_size=1024,
    parallel_parts=1,
    jit_compile=False,
    constraints=False,
    warmup_requests=True,
    low_score=None,
):
    """Writes `folder/VERSION/`, a SavedModel with the tokenizer and beam search.

    Use it for a model that your program has built or trained, and `export_translator`
    for one that `open_model` has opened.

    VERSION is the highest existing version plus one. Its folder appears once all files
    are on disk. docs/reference/signatures.md describes the inputs and outputs of all
    signatures:

    - `"serving_default"`: The best translation of each text, with its score.
    - `"translate_n_best"`: Up to `beam_size` different translations, best first.
    - `"translate_ids"`: The best translation of each row of ids.
    - `"score"`: The log-probability of a given translation of each text.
    - `"encode"`: The encoder's output for each row of ids.
    - `"attend"`: The attention between each text and a given translation.

    Texts are UTF-8 of any length, and are divided into lines and sentences as by
    `Translator`. The translation of each part has at most `search.extra_length` more
    subwords than the part. A blank text has an empty translation with score 0.

    Signatures raise `InvalidArgumentError` for ids outside the vocabulary, unequal
    numbers of texts and translations, and batches of more than `max_batch_size` rows.

    Args:
        model: `Transformer`.
        tokenizer: Source tokenizer. Its attribute `target` is the target tokenizer.
        folder: Parent folder of the versions. It is created if it does not exist.
        search: `BeamSearch` with the search settings.
        max_source_length: Maximum number of subwords per segment, including the end
            id.
        texts: Additional files of a version, as a mapping of names to text, such as
            `{"MODEL_CARD.md": card}`.
        max_batch_size: Maximum number of rows per batch.
        parallel_parts: Number of parts of a batch that are translated in parallel. For
            a CPU that serves a few large requests, use the number of cores and one
            thread per operation (TF_NUM_INTRAOP_THREADS=1).
        jit_compile: Whether to compile the search with XLA for single texts of up to
            64 subwords. Lengths are padded to a multiple of 16. The first text of each
            padded length triggers the compilation of a program. Kernels are stored
            packed; unpacking takes 10 ms per batch for a base model. Do not use with
            TF-Serving, whose builds lack XLA.
        constraints: Whether to add the signature `translate_constrained`, which takes
            prefixes and required phrases. Its search makes the graph about twice as
            large.
        warmup_requests: Whether to write warm-up requests for TF-Serving, which needs
            the package tensorflow-serving-api.
        low_score: Attribute of `Translator`, for warnings of `ExportedTranslator` and
            of a server.

    Returns:
        Path of the new version's folder.

    Raises:
        ValueError: If the tokenizer and the model do not match, or a size is out of
            range.
        TypeError: If `search` is not a `BeamSearch`.
        ExportError: If the model is an ensemble, TensorFlow cannot read exports in
            `folder`, or `folder` contains a run, a preset or another SavedModel.
        StorageError: If `folder` cannot be written to, or the disk is full.

    Examples:
        >>> opened = kt.open_model("phrases")
        >>> search = kt.BeamSearch(beam_size=2)
        >>> path = kt.export.export_saved_model(
        ...     opened.model, opened.tokenizer, "saved_models/phrases", search
        ... )
    """
    require_backend("an export to SavedModel", "tensorflow")
    check_type(search, BeamSearch, "search")
    check_exportable(model)
    check_at_least("max_source_length", max_source_length, 2)
    check_at_least("max_batch_size", max_batch_size, 1)
    check_at_least("parallel_parts", parallel_parts, 1)
    build_models(model)
    check_compatible(model, tokenizer, select_target(tokenizer))
    folder = pathlib.Path(folder)
    _check_folder(folder)
    signatures = Signatures(
        model,
        tokenizer,
        search,
        max_source_length,
        max_batch_size,
        parallel_parts,
        jit_compile,
        constraints,
    )
    # Before tracing, because eager tokenization may load the vocabulary again.
    limits = ExportLimits(
        max_batch_size=max_batch_size,
        max_source_length=signatures.max_source_length,
        end_id=tokenizer.end_id,
        low_score=low_score,
        characters="".join(sorted(tokenizer.characters())),
        unknown_characters="".join(sorted(tokenizer.unknown_characters())),
        languages=list(getattr(tokenizer, "languages", ())),
        scripts=list(signatures.text_options.scripts),
        sentences=signatures.text_options.sentences,
    )
    # Keras's ExportArchive would trace each function twice.
    functions = {
        name: graph_function(function, *inputs).get_concrete_function()
        for name, function, inputs in signatures.functions()
    }
    served = tf.Module()
    replaced = signatures.kernels.replaced_paths()
    # `value` is the TensorFlow variable. A program without Python cannot restore Keras
    # variables.
    served.weights = [
        each.value for each in model.variables if each.path not in replaced
    ]
    served.packed_weights = signatures.kernels.variables or None
    served.tokenizer = tokenizer
    for name, function in functions.items():
        setattr(served, name, function)

    def write(path):
        # Exports need no gradients, and the gradients of some activations refer to
        # constants that a simplified graph lacks.
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        tf.saved_model.save(served, path, signatures=functions, options=options)

    with convert_disk_full_errors(folder):
        return _write_version(write, folder, texts, limits, warmup_requests)


def _check_folder(folder):
    """Creates the folder and checks that exports can be written to and read from it."""
    require_readable_path(folder, ExportError)
    for name in (CONFIG, MODEL, PRESET_CONFIG, "saved_model.pb"):
        if (folder / name).exists():
            raise ExportError(
                f"{folder}: contains {name}. An export cannot share a folder with "
                "another model. Choose another folder"
            )
    check_writable(folder)


def export_translator(
    translator,
    folder,
    *,
    scores=(),
    license=None,
    tokenizer_ops="tensorflow-text",
    parallel_parts=1,
    jit_compile=False,
    constraints=False,
    warmup_requests=True,
):
    """Exports an opened model as a SavedModel, with search settings and a model card.

    Args:
        translator: `Translator` from `open_model`.
        folder: Parent folder of the versions. It is created if it does not exist.
        scores: Evaluation scores for the model card (see `model_card`).
        license: License for the model card. If `None`, that of the opened model, if
            known.
        tokenizer_ops: Package of the tokenizer's operations, `"tensorflow-text"` or
            `"tensorflow"` (see `CoreOpsBytePairTokenizer`).
        parallel_parts: Number of parts of a batch that are translated in parallel (see
            `export_saved_model`).
        jit_compile: Whether to compile the search with XLA for single short texts (see
            `export_saved_model`).
        constraints: Whether to add the signature `translate_constrained` (see
            `export_saved_model`).
        warmup_requests: Whether to write warm-up requests for TF-Serving (see
            `export_saved_model`).

    Returns:
        Path of the new version's folder.

    Raises:
        ExportError: If the model is an ensemble, the translator has forbidden phrases,
            or `tokenizer_ops` is `"tensorflow"` and the tokenizer is not BPE.
        StorageError: If `folder` cannot be written to, or the disk is full.

    Examples:
        >>> translator = kt.open_model("phrases")
        >>> version = kt.export.export_translator(translator, "saved_models/phrases")
    """
    reject_forbidden_phrases(translator)
    path, tokenizer = translator.path, translator.tokenizer
    export = {
        "tokenizer_ops": tokenizer_ops,
        "parallel_parts": parallel_parts,
        "jit_compile": jit_compile,
    }
    texts = describe_translator(translator, scores, license, export)
    if tokenizer_ops == "tensorflow":
        if tokenizer.kind != "bpe":
            raise ExportError(
                f"{path}: tokenizer operations of core TensorFlow need "
                f"tokenizer.kind=bpe. Received: {tokenizer.kind}"
            )
        tokenizer = core_tokenizer(tokenizer)
    return export_saved_model(
        translator.model,
        tokenizer,
        folder,
        translator.search,
        max_source_length=translator.max_source_length,
        texts=texts,
        parallel_parts=parallel_parts,
        jit_compile=jit_compile,
        constraints=constraints,
        warmup_requests=warmup_requests,
        low_score=translator.low_score,
    )


def core_tokenizer(tokenizer):
    """Converts the BPE tokenizers of both sides to operations of core TensorFlow."""
    source, target = tokenizer.source, tokenizer.target
    if source is target:
        return CoreOpsBytePairTokenizer(tokenizer)
    return SeparateTokenizers(*map(CoreOpsBytePairTokenizer, (source, target)))


def _write_version(write, folder, texts, limits, warmup_requests):
    """Writes an export to a temporary folder, then renames it to its version number."""
    _remove_abandoned(folder)
    # A server that watches the folder ignores names that are not numbers. Processes in
    # two containers may have the same id, hence the random part.
    temporary = folder / f".writing-{os.getpid()}-{uuid.uuid4().hex}"
    try:
        write(str(temporary))
        simplify_saved_model(temporary)
        (temporary / LIMITS).parent.mkdir()
        if warmup_requests:
            write_warmup_requests(temporary, limits)
        (temporary / LIMITS).write_text(limits.model_dump_json(), encoding="utf-8")
        for name, text in (texts or {}).items():
            (temporary / name).write_text(text, encoding="utf-8")
        sync_tree(temporary)
        while True:
            versions = [int(p.name) for p in folder.iterdir() if p.name.isdecimal()]
            version = folder / str(max(versions, default=0) + 1)
            try:
                os.rename(temporary, version)
            except OSError:
                # Another export has taken the number.
                if not version.exists():
                    raise
            else:
                sync(folder)
                return version
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_abandoned(folder):
    """Removes the temporary folders of exports that were killed."""
    for path in folder.glob(".writing-*"):
        with contextlib.suppress(FileNotFoundError):
            files = (path, *path.rglob("*"))
            last_change = max(each.stat().st_mtime for each in files)
            if time.time() - last_change > _ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def write_warmup_requests(version, limits):
    """Writes one request per signature to the folder `assets.extra` of a version.

    If the package tensorflow-serving-api is not installed, no requests are written and
    a message is logged.
    """
    path = version / _WARMUP
    path.parent.mkdir(exist_ok=True)
    try:
        # Imported here because it loads gRPC.
        from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
    except ImportError:
        logger.info(
            "no warm-up requests for TF-Serving (`serve` needs none), since "
            f"tensorflow-serving-api is not installed: {install_hint('serving-api')}"
        )
        return
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in _INPUTS.items():
            request = predict_pb2.PredictRequest()
            # TF-Serving adds the name under which it serves the model.
            request.model_spec.signature_name = signature
            for name, value in inputs.items():
                dtype = tf.string
                if name == "source_ids":
                    value, dtype = [[*row, limits.end_id] for row in value], tf.int32
                rows = tf.make_tensor_proto(value[: limits.max_batch_size], dtype)
                request.inputs[name].CopyFrom(rows)
            log = prediction_log_pb2.PredictLog(request=request)
            writer.write(
                prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString()
            )
