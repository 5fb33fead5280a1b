"""keras-transformer models"""

import typer

from keras_transformer.cli import console


@console.command(uses_device=False)
def models():
    """List the packaged models.

    Commands that open a model, except corpus, accept these names instead of a path.

    \b
    keras-transformer models
    keras-transformer info phrases
    echo "3 September 2021" | keras-transformer translate phrases
    """
    from keras_transformer.saving.names import packaged_models
    from keras_transformer.saving.preset import read_metadata

    found = packaged_models()
    width = max(map(len, found), default=0)
    for name, folder in found.items():
        typer.echo(f"{name:{width}}  {read_metadata(folder).description}")
