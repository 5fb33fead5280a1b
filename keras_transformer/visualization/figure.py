"""A grid of attention matrices as a PNG."""

import math

from matplotlib.figure import Figure

from keras_transformer.errors import ModelError

_MAX_PANELS = 64


def write_figure(attention, path, kind="cross", layer=None, head=None):
    """Draws the heads of a kind, a panel each, layers below each other.

    Args:
        attention: `Attention`.
        path: The PNG.
        kind: `"encoder"`, `"decoder"` or `"cross"`.
        layer: Number from 1. None: all.
        head: Number from 1. None: all.

    Raises:
        ModelError: the model lacks the kind, layer or head, or there are more
            than 64 panels.
    """
    panels = attention.chosen(kind, layer, head)
    if len(panels) > _MAX_PANELS:
        raise ModelError(
            f"{len(panels)} heads do not fit into one picture; choose a layer or head"
        )
    rows, columns = attention.labels(kind)
    across = len({head for _, head, _ in panels})
    across = across if len(panels) > across else min(len(panels), 4)
    down = math.ceil(len(panels) / across)
    # Room for the names once at the left and once below, and the same in each panel.
    size = (1.2 + across * max(1.6, 0.2 * len(columns)),)
    size += (1.2 + down * max(1.6, 0.2 * len(rows)),)
    # Not by pyplot, whose backend is the user's.
    figure = Figure(figsize=size)
    axes = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (layer_number, head_number, scores) in zip(
        axes.flat, panels, strict=False
    ):
        axis.imshow(scores, vmin=0, vmax=1, cmap="Blues", aspect="auto")
        axis.set_title(f"layer {layer_number}, head {head_number}", fontsize=8)
        # A dollar sign begins a formula.
        axis.set_xticks(range(len(columns)), _plain(columns), rotation=90, fontsize=7)
        axis.set_yticks(range(len(rows)), _plain(rows), fontsize=7)
        axis.tick_params(length=2)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _plain(names):
    return [name.strip().replace("$", r"\$") or "·" for name in names]
