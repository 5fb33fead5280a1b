"""Local server with TF-Serving's REST API and a page to try a model."""

from keras_transformer.serving.app import build_app
from keras_transformer.serving.libretranslate import parse_languages
from keras_transformer.serving.limits import Limits, is_host_name
from keras_transformer.serving.served_model import ServedModel
from keras_transformer.serving.server import listen, serve

__all__ = [
    "Limits",
    "ServedModel",
    "build_app",
    "is_host_name",
    "listen",
    "parse_languages",
    "serve",
]
