"""Translating and scoring a corpus on many machines: Beam's RunInference.

Each worker loads the SavedModel once and runs batches of lines through it. Output files
have the names of the input files, and a line for each line of theirs, in order.
"""

import os
import pathlib

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystems import FileSystems
from apache_beam.ml.inference.base import KeyedModelHandler
from apache_beam.ml.inference.base import ModelHandler
from apache_beam.ml.inference.base import RunInference

from keras_transformer.pipelines import DataError
from keras_transformer.pipelines import beam_corpus

# Inputs and outputs of each task's signature.
TRANSLATE, SCORE = "translate", "score"
_SIGNATURES = {TRANSLATE: "serving_default", SCORE: "score"}


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
        import tensorflow as tf
        import tensorflow_text  # noqa: F401, its operations are in the graph

        return tf.saved_model.load(self.path)

    def run_inference(self, batch, model, inference_args=None):
        import tensorflow as tf

        run = model.signatures[_SIGNATURES[self.task]]
        if self.task == TRANSLATE:
            translations = run(inputs=tf.constant(batch))["translations"]
            return [_one_line(text) for text in translations.numpy()]
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
        batch_size: the most lines at a time.
        beam_options: the command-line options of Beam and its runner.

    Returns:
        the paths written, in the order of the sources.

    Raises:
        DataError: files cannot be read or do not pair up.
    """
    sources, targets = [*map(os.fspath, sources)], [*map(os.fspath, targets)]
    if task == SCORE and len(sources) != len(targets):
        raise DataError(
            "source and target need the same number of files. Received: "
            f"{len(sources)} source files and {len(targets)} target files."
        )
    names = [pathlib.PurePath(path).name.removesuffix(".gz") for path in sources]
    if not names or len(set(names)) < len(names):
        raise DataError("the input files need different names, at least one file.")
    output = os.fspath(output)
    if not FileSystems.exists(output):
        FileSystems.mkdirs(output)
    written = [FileSystems.join(output, name) for name in names]
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

    beam_corpus.run_beam(lines, beam_options)
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
