"""Entry point of `python -m keras_transformer`: the `keras-transformer` command."""

from keras_transformer.cli import main

main()
