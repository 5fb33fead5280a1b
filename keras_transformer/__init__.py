"""The Transformer of "Attention Is All You Need" for TensorFlow and Keras 3."""

import importlib
import os
import sys

from keras_transformer._imports import lazy_names

__version__ = "0.2.0.dev0"

# In a clone, the folder of `keras_transformer.pipelines` is next to this package.
if not os.path.isdir(os.path.join(__path__[0], "pipelines")):
    __path__.append(os.path.dirname(__path__[0]))

# Public subpackages and modules, which are imported on first use.
_MODULES = (
    "beam",
    "decoding",
    "documents",
    "errors",
    "evaluation",
    "export",
    "interop",
    "layers",
    "opening",
    "parsing",
    "pipelines",
    "recipes",
    "runs",
    "saving",
    "sizes",
    "training",
    "visualization",
)
# Public classes and functions, and the modules that contain them.
_NAMES = {
    "BeamSearch": "decoding.options",
    "Ensemble": "decoding",
    "SIZES": "sizes",
    "Sampling": "decoding.options",
    "Transformer": "transformer",
    "Translation": "decoding",
    "Translator": "decoding",
    "Variations": "arguments",
    "open_model": "opening",
    "train": "runs.train",
}

# Modules of `training` with classes that a compiled model's file may contain.
_SERIALIZABLE = ("fused_adam", "losses", "metrics", "schedules")

__all__ = [*_MODULES, *_NAMES]

__getattr__, __dir__ = lazy_names(__name__, _MODULES, _NAMES)

# Keras loads only registered classes, and importing their modules registers them. The
# command line does without them, and so without TensorFlow, until it needs a model.
_program = os.path.splitext(os.path.basename(next(iter(sys.argv), "")))[0]
_is_module = sys.orig_argv[1:3] == ["-m", __name__]
if _program != "keras-transformer" and not _is_module:
    for _name in ("transformer", *(f"training.{name}" for name in _SERIALIZABLE)):
        importlib.import_module(f"{__name__}.{_name}")
