"""Loading of recipes whose settings fit the machine."""

from keras_transformer.cli import console


class AdaptiveRecipe:
    """A recipe that is checked before TensorFlow loads and adapted to the GPUs later.

    Args:
        *arguments: Arguments of `load_recipe`, except `report`.

    Attributes:
        recipe: The `Recipe`.
    """

    def __init__(self, *arguments):
        self._arguments = arguments
        self._load()

    def _load(self):
        from keras_transformer.recipes import load_recipe

        # One line per setting that was chosen automatically.
        self._lines = []
        self.recipe = load_recipe(*self._arguments, report=self._lines.append)

    def adapt(self):
        """Loads TensorFlow, prints the chosen settings and returns the `Recipe`."""
        from keras_transformer.machine import find_machine

        console.load_tensorflow()
        # The values of keys that are `auto` depend on the GPUs. These are found only
        # after TensorFlow has loaded, so the recipe is loaded again.
        if self._lines and find_machine().gpus:
            self._load()
        for line in self._lines:
            console.print_status(line)
        return self.recipe
