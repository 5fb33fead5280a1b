"""A grid of attention matrices as a PNG."""

import math

from matplotlib.figure import Figure

from keras_transformer.errors import ModelError

_MAX_PANELS = 64


def write_figure(attention, path, kind="cross", layer=None, head=None):
    """Draws the heads of a kind, one panel per head and one row per layer.

    Args:
        attention: `Attention`.
        path: Path of the PNG.
        kind: `"encoder"`, `"decoder"` or `"cross"`.
        layer: Number of a layer, from 1. If `None`, all layers.
        head: Number of a head, from 1. If `None`, all heads.

    Raises:
        ModelError: If the model has no such kind, layer or head, or there are more
            than 64 panels.
    """
    panels = attention.select(kind, layer, head)
    if len(panels) > _MAX_PANELS:
        raise ModelError(
            f"at most {_MAX_PANELS} heads fit into one figure. Received: "
            f"{len(panels)}. Choose a layer or head."
        )
    rows, columns = attention.labels(kind)
    across = len({head for _, head, _ in panels})
    across = across if len(panels) > across else min(len(panels), 4)
    down = math.ceil(len(panels) / across)
    # Space for the panels, and for the labels at the left and below.
    size = (1.2 + across * max(1.6, 0.2 * len(columns)),)
    size += (1.2 + down * max(1.6, 0.2 * len(rows)),)
    # pyplot would use the user's backend.
    figure = Figure(figsize=size)
    axes = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (layer_number, head_number, scores) in zip(
        axes.flat, panels, strict=False
    ):
        axis.imshow(scores, vmin=0, vmax=1, cmap="Blues", aspect="auto")
        axis.set_title(f"layer {layer_number}, head {head_number}", fontsize=8)
        axis.set_xticks(range(len(columns)), _escape(columns), rotation=90, fontsize=7)
        axis.set_yticks(range(len(rows)), _escape(rows), fontsize=7)
        axis.tick_params(length=2)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _escape(labels):
    # Matplotlib reads text between dollar signs as a formula.
    return [label.strip().replace("$", r"\$") or "·" for label in labels]
