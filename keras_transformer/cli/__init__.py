"""The `keras-transformer` command: one module per command.

No module imports TensorFlow or Keras before its command has checked its arguments.
"""


def main() -> None:
    """Runs the command line."""
    from keras_transformer.cli.app import app

    app()
