"""Translating and scoring a corpus on many machines: Beam's RunInference.

Each worker loads the SavedModel once and runs batches of lines through it. Output files
have the names of the input files, and a line for each line of theirs, in order.
"""

import logging
import os
import pathlib

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics import Metrics
from apache_beam.metrics import MetricsFilter
from apache_beam.ml.inference.base import KeyedModelHandler
from apache_beam.ml.inference.base import ModelHandler
from apache_beam.ml.inference.base import RunInference

from keras_transformer.distributed import corpus as beam_corpus
from keras_transformer.errors import DataError
from keras_transformer.saving.saved_model import load_saved_model
from keras_transformer.saving.saved_model import max_batch_size

# Lines of which an export reads the beginning only are counted by this name.
_CUT = "lines cut"
# Inputs and outputs of each task's signature.
TRANSLATE, SCORE = "translate", "score"
_SIGNATURES = {TRANSLATE: "serving_default", SCORE: "score"}
_logger = logging.getLogger("keras_transformer")


class SavedModelHandler(ModelHandler):
    """Runs lines through an export of `export_saved_model`.

    Elements are texts to translate, or (text, translation) pairs to score; a result is
    the text of an output line.

    Args:
        path: the folder with `saved_model.pb`, which every worker must see.
        task: `TRANSLATE` or `SCORE`.
        batch_size: the most lines at a time.
    """

    def __init__(self, path, task=TRANSLATE, batch_size=64):
        super().__init__(min_batch_size=1, max_batch_size=batch_size)
        self.path = os.fspath(path)
        self.task = task

    def load_model(self):
        return load_saved_model(pathlib.Path(self.path))

    def run_inference(self, batch, model, inference_args=None):
        import tensorflow as tf

        run = model.signatures[_SIGNATURES[self.task]]
        if self.task == TRANSLATE:
            found = run(inputs=tf.constant(batch))
            # Older exports do not tell.
            num_cut = np.count_nonzero(found.get("truncated", []))
            Metrics.counter(SavedModelHandler, _CUT).inc(int(num_cut))
            return [_one_line(text) for text in found["translations"].numpy()]
        sources, targets = (list(side) for side in zip(*batch, strict=True))
        scored = run(inputs=tf.constant(sources), targets=tf.constant(targets))
        return [f"{log_prob:.6f}" for log_prob in np.array(scored["log_probs"])]


def run_with_beam(
    model, task, sources, output, targets=(), batch_size=64, beam_options=()
):
    """Translates files, or scores them against their translations.

    Args:
        model: an export's folder, the one with `saved_model.pb`.
        task: `TRANSLATE` or `SCORE`.
        sources: paths of text files, plain or .gz, with different names.
        output: folder for as many files of output lines; a source `a.en.gz` gives
            `a.en`. A score is the natural logarithm of the translation's probability.
        targets: the translations to score, line by line.
        batch_size: the most lines at a time, of those that the export takes.
        beam_options: the command-line options of Beam and its runner.

    Returns:
        the paths written, in the order of the sources.

    Raises:
        DataError: files cannot be read or do not pair up, there are targets but
            nothing to score, one of the output's files is there already, or its
            folder cannot be made.
        ModelError: the export is damaged or refused.
    """
    sources, targets = [*map(os.fspath, sources)], [*map(os.fspath, targets)]
    if task == SCORE and len(sources) != len(targets):
        raise DataError(
            "source and target need the same number of files. Received: "
            f"{len(sources)} source files and {len(targets)} target files."
        )
    if task == TRANSLATE and targets:
        raise DataError("target files are for scoring only.")
    names = [pathlib.PurePath(path).name.removesuffix(".gz") for path in sources]
    if not names or len(set(names)) < len(names):
        raise DataError("the input files need different names, at least one file.")
    output = os.fspath(output)
    beam_corpus.make_folder(output)
    written = [FileSystems.join(output, name) for name in names]
    for path in written:
        if FileSystems.exists(path):
            raise DataError(f"{path}: is there already; choose another folder.")
    # Refused here, and not first on a worker.
    load_saved_model(pathlib.Path(model))
    batch_size = min(batch_size, max_batch_size(pathlib.Path(model)) or batch_size)
    handler = SavedModelHandler(model, task, batch_size)
    files = list(zip(written, sources, targets or sources, strict=True))

    def lines(pipeline):
        return (
            pipeline
            | "files" >> beam.Create(files)
            | "deal out files" >> beam.Reshuffle()
            | "read" >> beam.ParDo(_ReadLines(task))
            | "deal out lines" >> beam.Reshuffle()
            | "run" >> RunInference(KeyedModelHandler(handler))
            | "by file"
            >> beam.Map(lambda keyed: (keyed[0][0], (keyed[0][1], keyed[1])))
            | "gather" >> beam.GroupByKey()
            | "write" >> beam.ParDo(_WriteLines())
        )

    result = beam_corpus.run_beam(lines, beam_options)
    counted = result.metrics().query(MetricsFilter().with_name(_CUT))["counters"]
    num_cut = sum(counter.result for counter in counted)
    if num_cut:
        _logger.warning(
            "%d lines are longer than the export reads; the rest is left out", num_cut
        )
    for path in written:
        if not FileSystems.exists(path):  # of a file without a line
            beam_corpus.write_file(path, [])
    return written


class _ReadLines(beam.DoFn):
    """(file to write, source, target) to ((file to write, line), element)."""

    def __init__(self, task):
        self._task = task

    def process(self, files):
        written, source, target = files
        if self._task == SCORE:
            for line, *pair in beam_corpus.line_pairs(source, target, "replace"):
                yield (written, line), tuple(pair)
        else:
            for line, text in enumerate(beam_corpus.open_lines(source, "replace"), 1):
                yield (written, line), text


class _WriteLines(beam.DoFn):
    """(path, numbered lines) to a file."""

    def process(self, element):
        path, lines = element
        lines = (f"{text}\n".encode() for _, text in sorted(lines))
        beam_corpus.write_file(path, lines)


def _one_line(text):
    # A sub-word of bytes can spell a line end; a line must stay one line.
    return text.decode("utf-8", "replace").replace("\r", " ").replace("\n", " ")
