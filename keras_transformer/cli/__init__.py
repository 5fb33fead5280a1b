"""The `keras-transformer` command: one thin file per verb.

Nothing here imports TensorFlow before a verb has checked what it was given.
"""


def main() -> None:
    """Entry point of the `keras-transformer` command."""
    from keras_transformer.cli.app import app

    app()
