"""Attention matrices as a grid of heat maps in a PNG, and as a page of HTML."""

import importlib.resources
import json
import math
import pathlib
import textwrap
import warnings

from matplotlib import font_manager, rc_context
from matplotlib.figure import Figure

from keras_transformer.errors import ModelError

_MAX_PANELS = 64
# Longest side of a picture in pixels. Long texts have fewer pixels per inch.
_MAX_PIXELS = 10_000
# Matplotlib draws a character with the first installed font that contains it.
_FONTS = (
    *("DejaVu Sans", "Noto Sans", "Noto Sans CJK JP", "Noto Sans CJK SC"),
    *("Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Sans Thai"),
    *("Noto Sans Symbols 2", "Noto Emoji", "Arial Unicode MS", "Segoe UI Symbol"),
)


def write_figure(attention, path, kind="cross", layer=None, head=None):
    """Draws one kind of attention, with a panel per head and a row per layer.

    If only one layer is drawn, its panels are arranged in rows of four.

    Args:
        attention: `Attention`.
        path: Path of the PNG.
        kind: `"encoder"`, `"decoder"` or `"cross"`.
        layer: Number of a layer, from 1. If `None`, all layers.
        head: Number of a head, from 1. If `None`, all heads.

    Raises:
        ModelError: If the model has no such kind, layer or head, or there are more
            than 64 panels.

    Examples:
        >>> opened = kt.open_model("phrases")
        >>> attention = kt.visualization.compute_attention(
        ...     opened.model, opened.tokenizer, "12 euros", "12 Euro"
        ... )
        >>> kt.visualization.write_figure(attention, "attention.png", layer=2, head=1)
    """
    panels = attention.select(kind, layer, head)
    if len(panels) > _MAX_PANELS:
        raise ModelError(
            f"at most {_MAX_PANELS} heads fit into one figure. Received: "
            f"{len(panels)}. Choose a layer or head"
        )
    rows, columns = map(_escape, attention.labels(kind))
    panels_per_row = len({head for _, head, _ in panels})
    if len(panels) == panels_per_row:
        # All panels show one layer, so they are arranged in rows of four.
        panels_per_row = min(len(panels), 4)
    panel_rows = math.ceil(len(panels) / panels_per_row)
    # Size in inches: the panels, plus space for the axis labels and the texts.
    width = 2.6 + panels_per_row * max(1.6, 0.2 * len(columns))
    height = 2.0 + panel_rows * max(1.6, 0.2 * len(rows))
    # `pyplot` would use the user's backend, which may open windows.
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(
        panel_rows, panels_per_row, squeeze=False, sharex=True, sharey=True
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    installed = set(font_manager.get_font_names())
    fonts = [font for font in _FONTS if font in installed]
    with rc_context({"font.family": fonts}), warnings.catch_warnings():
        # No font has all characters. Missing ones are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        for axis, (layer_number, head_number, scores) in zip(
            axes.flat, panels, strict=False
        ):
            image = axis.imshow(scores, vmin=0, vmax=1, cmap="Blues", aspect="auto")
            title = f"layer {layer_number}, head {head_number}"
            if attention.is_mean:
                title = "mean of the last layers"
            axis.set_title(title, fontsize=8)
            axis.set_xticks(range(len(columns)), columns, rotation=90, fontsize=7)
            axis.set_yticks(range(len(rows)), rows, fontsize=7)
            axis.tick_params(length=2)
        y_name, x_name = attention.axes(kind)
        figure.supxlabel(x_name, fontsize=9)
        figure.supylabel(y_name, fontsize=9)
        figure.colorbar(image, ax=axes, label="attention", shrink=min(1, 3 / height))
        figure.suptitle(_title(attention, kind, width), fontsize=9)
        figure.savefig(path, dpi=min(120, _MAX_PIXELS / max(width, height)))


def _title(attention, kind, width):
    """Returns the texts that `kind` relates, wrapped to `width` inches."""
    sides = {"encoder": (0,), "decoder": (1,), "cross": (0, 1)}[kind]
    lines = []
    for side in sides:
        # At this font size, a character is about 0.08 inches wide.
        lines += textwrap.wrap(attention.texts[side], max(20, int(width / 0.08)))
    return "\n".join(_escape(lines))


def _escape(labels):
    # Matplotlib reads text between dollar signs as a formula.
    return [label.strip().replace("$", r"\$") or "·" for label in labels]


def write_page(attention, path):
    """Writes an HTML page on which the reader selects the kind, the layer and heads.

    Args:
        attention: `Attention`.
        path: Path of the HTML file.

    Examples:
        >>> opened = kt.open_model("phrases")
        >>> attention = kt.visualization.compute_attention(
        ...     opened.model, opened.tokenizer, "12 euros", "12 Euro"
        ... )
        >>> kt.visualization.write_page(attention, "attention.html")
    """
    data = {"texts": attention.texts, "isMean": attention.is_mean}
    for kind, scores in attention.scores.items():
        rows, columns = attention.labels(kind)
        data[kind] = {"rows": rows, "columns": columns, "axes": attention.axes(kind)}
        data[kind]["scores"] = scores.round(4).tolist()
    # Text such as `</script>` must not end the script that contains the data.
    text = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    files = importlib.resources.files("keras_transformer.visualization")
    page = files.joinpath("attention.html").read_text(encoding="utf-8")
    pathlib.Path(path).write_text(page.replace("/*DATA*/null", text), encoding="utf-8")
