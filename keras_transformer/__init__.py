"""The Transformer of "Attention Is All You Need" for TensorFlow and Keras 3.

Names are imported on first use, so that the command line can answer ``--help``
without loading TensorFlow.
"""

import importlib
import os

from keras_transformer import _deprecated
from keras_transformer import _registration

__version__ = "0.2.0.dev0"

# In a clone, the folder of `keras_transformer.pipelines` is next to this package.
if not os.path.isdir(os.path.join(__path__[0], "pipelines")):
    __path__.append(os.path.dirname(__path__[0]))

# Public subpackages and modules.
_MODULES = (
    "decoding",
    "distributed",
    "errors",
    "evaluation",
    "experiments",
    "export",
    "layers",
    "parsing",
    "pipelines",
    "presets",
    "recipes",
    "saving",
    "training",
    "visualization",
)
# Public classes and functions, and the modules that contain them.
_NAMES = {
    "BeamSearch": "decoding.options",
    "Ensemble": "decoding",
    "PRESETS": "presets",
    "Sampling": "decoding.options",
    "Transformer": "transformer",
    "Translation": "decoding",
    "Translator": "decoding",
    "Variations": "variations",
    "open_model": "saving.open",
    "train": "experiments.train",
}

__all__ = [*_MODULES, *_NAMES]


def __getattr__(name):
    if name in _NAMES:
        module = importlib.import_module(f"{__name__}.{_NAMES[name]}")
        return getattr(module, name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})


_registration.register_classes()
_deprecated.install_old_paths()
