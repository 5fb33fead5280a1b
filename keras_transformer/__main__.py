"""Runs the `keras-transformer` command as `python -m keras_transformer`."""

from keras_transformer.cli import main

main()
