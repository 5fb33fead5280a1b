"""Runs of Apache Beam pipelines, and files on any of Beam's filesystems."""

import contextlib
import itertools
import os
import shutil
import uuid

import apache_beam as beam
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions

from keras_transformer.errors import DataError
from keras_transformer.pipelines.lines import opened_lines

_MISSING = object()


def run_pipeline(build, pipeline_options=()):
    """Runs the steps that `build(pipeline)` adds. Returns Beam's `PipelineResult`."""
    try:
        # Later options override earlier ones, so a caller can request more messages.
        options = PipelineOptions(
            ["--default_sdk_harness_log_level=ERROR", *pipeline_options]
        )
        # Workers import this package, so they do not need the caller's session.
        options.view_as(SetupOptions).save_main_session = False
        new_pipeline = beam.Pipeline(options=options)
    except ValueError as error:
        given = " ".join(pipeline_options)
        raise DataError(f"Beam rejects the options {given!r}: {error}") from None
    try:
        with new_pipeline as pipeline:
            build(pipeline)
        return pipeline.result
    except Exception as error:
        # Runners append the step to a worker's error, or report it as text that also
        # names its origin.
        _, found, text = str(error).rpartition("DataError: ")
        if not found and not isinstance(error, DataError):
            raise
        raise DataError(
            text.partition(" [while running")[0].partition("\n")[0]
        ) from error


@contextlib.contextmanager
def output_folder(path, kept=()):
    """Creates a folder, and removes it again if the `with` block fails.

    Only a local folder is removed that did not exist before and contains none of the
    files `kept`. Object stores report that a folder does not exist even if it contains
    files.
    """
    existed = make_folder(path)
    try:
        yield
    except BaseException:
        is_kept = any(os.path.exists(os.path.join(path, name)) for name in kept)
        if not existed and not is_kept and os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        raise


def make_folder(path):
    """Creates a folder on any of Beam's filesystems. Returns whether it existed."""
    if os.path.isfile(path):
        raise DataError(f"{path}: is a file, not a folder")
    try:
        if FileSystems.exists(path):
            return True
        FileSystems.mkdirs(path)
    except (OSError, ValueError) as error:
        # Beam raises ValueError if the filesystem's package is not installed.
        raise DataError(f"{path}: cannot be created ({error})") from error
    return False


def open_lines(path, errors="drop"):
    """Like `pipelines.lines.read_lines`, but reads from any of Beam's filesystems."""
    try:
        file = FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    with file:
        yield from opened_lines(file, path, errors)


def check_same_number(sources, targets):
    """Raises a `DataError` unless each source has a target, and there is a source."""
    if not sources or len(sources) != len(targets):
        raise DataError(
            "source and target must have the same number of files, at least one. "
            f"Received: {len(sources)} source files and {len(targets)} target files"
        )


def line_pairs(source, target, errors="drop"):
    """Reads two files with `open_lines`. Yields (line from 1, source, target)."""
    sides = itertools.zip_longest(
        open_lines(source, errors), open_lines(target, errors), fillvalue=_MISSING
    )
    for number, pair in enumerate(sides, start=1):
        if _MISSING in pair:
            shorter = source if pair[0] is _MISSING else target
            raise DataError(
                f"{source} and {target} must have the same number of lines. "
                f"{shorter} ends after line {number - 1}"
            )
        yield number, *pair


def write_file(path, chunks):
    """Writes a file on any of Beam's filesystems, first under a temporary name."""
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        with FileSystems.create(
            temporary, compression_type=CompressionTypes.UNCOMPRESSED
        ) as file:
            for chunk in chunks:
                file.write(chunk)
        if FileSystems.exists(path):
            # If the runner repeats a task, the first attempt wrote the same content.
            FileSystems.delete([path])
        FileSystems.rename([temporary], [path])
    except BaseException:
        # The first error is the one to report.
        with contextlib.suppress(Exception):
            FileSystems.delete([temporary])
        raise
