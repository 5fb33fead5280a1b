"""keras-transformer models"""

import typer


def models():
    """List the packaged models.

    Commands that open a model, except corpus, accept these names instead of a path.

    \b
    keras-transformer models
    keras-transformer info phrases
    echo "3 September 2021" | keras-transformer translate phrases
    """
    from keras_transformer.saving.keras_file import read_metadata
    from keras_transformer.saving.names import packaged_models

    found = packaged_models()
    width = max(map(len, found), default=0)
    for name, folder in found.items():
        typer.echo(f"{name:{width}}  {read_metadata(folder).description}")
