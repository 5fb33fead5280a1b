"""Layers inside other layers."""

import keras


def child_layer(parent, layer_class, name, *args, **kwargs):
    """Returns a new layer with the parent's dtype policy and `trainable`.

    Keras hands neither to the layers that a constructor or `build` creates, so these
    would compute in float32, and train although their parent is frozen.
    """
    return layer_class(
        *args,
        **kwargs,
        dtype=parent.dtype_policy,
        trainable=parent.trainable,
        name=name,
    )


def inner_layers(parent, prefix="", seen=None):
    """Yields `(path, layer, parent)` of all layers in a layer, outer layers first.

    Paths consist of the names of attributes and the keys of lists and dicts, as in
    Keras's files of weights. The names of layers would differ between processes.
    """
    seen = set() if seen is None else seen
    # Private attributes come last, because Keras lists all layers in one.
    for name, value in sorted(
        vars(parent).items(), key=lambda item: (item[0].startswith("_"), item[0])
    ):
        if isinstance(value, dict):
            items = [(f"{name}/{key}", each) for key, each in value.items()]
        elif isinstance(value, list | tuple):
            items = [(f"{name}/{index}", each) for index, each in enumerate(value)]
        else:
            items = [(name, value)]
        for path, layer in items:
            if isinstance(layer, keras.Layer) and layer not in seen:
                seen.add(layer)
                yield prefix + path, layer, parent
                yield from inner_layers(layer, f"{prefix}{path}/", seen)
