"""Translates and scores a corpus on many machines with Beam's RunInference.

Each worker loads the SavedModel once and runs batches of lines through it. An output
file has the name of its input file and one line per input line, in order.
"""

import logging
import os
import pathlib

import apache_beam as beam
import numpy as np
import tensorflow as tf
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics import Metrics, MetricsFilter
from apache_beam.ml.inference.base import KeyedModelHandler, ModelHandler, RunInference

from keras_transformer.beam.run import (
    check_same_number,
    line_pairs,
    open_lines,
    output_folder,
    run_pipeline,
    write_file,
)
from keras_transformer.errors import DataError
from keras_transformer.export.load import load_saved_model

# Name of the counter of truncated lines.
_TRUNCATED = "lines truncated"
# Tasks, and the name of each task's signature in the export.
TRANSLATE, SCORE = "translate", "score"
_SIGNATURES = {TRANSLATE: "serving_default", SCORE: "score"}
logger = logging.getLogger(__name__)


class SavedModelHandler(ModelHandler):
    """Handler for Beam's `RunInference` that translates or scores with an export.

    Elements are texts to translate, or (text, translation) pairs to score. The result
    for an element is the text of its output line.

    Args:
        path: Folder of one version of an export, visible to every worker.
        task: `"translate"` or `"score"`.
        batch_size: Maximum number of elements per batch.
        allow_unsafe: Whether to load the export unchecked. It can then run any code.
    """

    def __init__(self, path, task=TRANSLATE, batch_size=64, allow_unsafe=False):
        super().__init__(min_batch_size=1, max_batch_size=batch_size)
        self.path = os.fspath(path)
        self.task = task
        self.allow_unsafe = allow_unsafe

    def load_model(self):
        return load_saved_model(pathlib.Path(self.path), self.allow_unsafe)[0]

    def run_inference(self, batch, model, inference_args=None):
        run = model.signatures[_SIGNATURES[self.task]]
        if self.task == TRANSLATE:
            found = run(inputs=tf.constant(batch))
            outputs = [_one_line(text) for text in found["translations"].numpy()]
        else:
            sources, targets = (list(side) for side in zip(*batch, strict=True))
            found = run(inputs=tf.constant(sources), targets=tf.constant(targets))
            outputs = [f"{log_prob:.6f}" for log_prob in found["log_probs"].numpy()]
        num_cut = np.count_nonzero(found["truncated"])
        Metrics.counter(SavedModelHandler, _TRUNCATED).inc(int(num_cut))
        return outputs


def run_with_apache_beam(
    model,
    task,
    sources,
    output,
    targets=(),
    batch_size=64,
    pipeline_options=(),
    allow_unsafe=False,
):
    """Translates files, or scores their translations.

    Args:
        model: Folder of an export, with `saved_model.pb`.
        task: `"translate"` or `"score"`.
        sources: Paths of text files, plain or compressed, with different names.
        output: Folder of the output files, one per source. The output of `a.en.gz` is
            `a.en`. A score is the natural logarithm of the translation's probability.
        targets: For `"score"`, paths of the translations to score, in the order of
            `sources` and line-aligned with them.
        batch_size: Maximum number of lines per batch. If the export has a lower limit,
            that limit is used.
        pipeline_options: Command-line options of Beam and its runner, a
            sequence of str.
        allow_unsafe: Whether to load the export unchecked. It can then run any code.

    Returns:
        List of the paths written, in the order of the sources.

    Raises:
        DataError: If files cannot be read or are not line-aligned, if input files have
            the same name, if targets are given for translation, if an output file
            exists, if the folder cannot be created, or if Beam rejects an option.
        ModelError: If the export is damaged or unsafe.
    """
    sources, targets = [*map(os.fspath, sources)], [*map(os.fspath, targets)]
    output, names = os.fspath(output), _output_names(task, sources, targets)
    # Reports a damaged export before any worker starts.
    _, limits = load_saved_model(pathlib.Path(model), allow_unsafe)
    batch_size = min(batch_size, limits.max_batch_size)
    handler = SavedModelHandler(model, task, batch_size, allow_unsafe)

    def lines(pipeline):
        files = list(zip(written, sources, targets or sources, strict=True))
        return (
            pipeline
            | "files" >> beam.Create(files)
            | "distribute files" >> beam.Reshuffle()
            | "read" >> beam.ParDo(_ReadLines(task))
            | "distribute lines" >> beam.Reshuffle()
            | "run" >> RunInference(KeyedModelHandler(handler))
            | "by file"
            >> beam.Map(lambda keyed: (keyed[0][0], (keyed[0][1], keyed[1])))
            | "gather" >> beam.GroupByKey()
            | "write" >> beam.ParDo(_WriteLines())
        )

    with output_folder(output, kept=names):
        written = [FileSystems.join(output, name) for name in names]
        for path in written:
            if FileSystems.exists(path):
                raise DataError(f"{path}: already exists. Choose another folder")
        result = run_pipeline(lines, pipeline_options)
    counted = result.metrics().query(MetricsFilter().with_name(_TRUNCATED))["counters"]
    num_cut = sum(counter.result for counter in counted)
    if num_cut:
        logger.warning(
            f"{num_cut} lines or their translations exceed the export's maximum "
            "length, so they were truncated"
        )
    for path in written:
        if not FileSystems.exists(path):  # the source has no lines
            write_file(path, [])
    return written


def _output_names(task, sources, targets):
    """Checks the paths of the input files and returns the names of the outputs."""
    if task == SCORE:
        check_same_number(sources, targets)
    elif targets:
        raise DataError("target files are for scoring only. Remove them to translate")
    names = [pathlib.PurePath(path).name.removesuffix(".gz") for path in sources]
    if not names or len(set(names)) < len(names):
        raise DataError(
            "the input files must have different names, and at least one is needed. "
            f"Received: {', '.join(names) or 'none'}"
        )
    return names


class _ReadLines(beam.DoFn):
    """Maps (output file, source, target) to ((output file, line), element)."""

    def __init__(self, task):
        self._task = task

    def process(self, files):
        written, source, target = files
        if self._task == SCORE:
            for line, *pair in line_pairs(source, target, "replace"):
                yield (written, line), tuple(pair)
        else:
            for line, text in enumerate(open_lines(source, "replace"), 1):
                yield (written, line), text


class _WriteLines(beam.DoFn):
    """Writes the lines of an element (path, numbered lines) to the path."""

    def process(self, element):
        path, lines = element
        lines = (f"{text}\n".encode() for _, text in sorted(lines))
        write_file(path, lines)


def _one_line(text):
    # Byte subwords can spell a line end, but every translation must be one line.
    return text.decode("utf-8", "replace").replace("\r", " ").replace("\n", " ")
