"""Diagrams of boxes, arrows and trees, and the colors of all pictures."""

import itertools
from typing import NamedTuple

from matplotlib import pyplot
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import FancyBboxPatch


class Theme(NamedTuple):
    """Colors of a picture. The background has the color of the page."""

    ink: str
    soft: str  # grids and frames
    page: str  # the color of the page behind
    blue: str
    orange: str
    green: str
    purple: str

    @property
    def colors(self):
        return [self.blue, self.orange, self.green, self.purple]

    def shades(self):
        """Returns a color map from the page to blue."""
        return LinearSegmentedColormap.from_list("shades", [self.page, self.blue])


THEMES = {
    "light": Theme(
        ink="#1f2430",
        soft="#c3c8d2",
        page="#ffffff",
        blue="#3b6fd4",
        orange="#d9822b",
        green="#3a9a5c",
        purple="#8c5bc4",
    ),
    "dark": Theme(
        ink="#e4e7ee",
        soft="#50576a",
        page="#1e2129",
        blue="#7ba6f7",
        orange="#f0a860",
        green="#74cf95",
        purple="#c09aee",
    ),
}


def box(axes, theme, center, text, color=None, size=(2.6, 0.62), fontsize=9):
    """Draws a rounded box around a text, in `theme.soft` if `color` is `None`."""
    x, y = center
    width, height = size
    corner = x - width / 2, y - height / 2
    patch = FancyBboxPatch(
        corner,
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.12",
        facecolor=(color or theme.soft) + "38",
        edgecolor=color or theme.soft,
        linewidth=1.3,
    )
    axes.add_patch(patch)
    axes.text(x, y, text, ha="center", va="center", fontsize=fontsize)


def arrow(axes, theme, *points):
    """Draws an arrow through points."""
    for start, end in itertools.pairwise(points[:-1]):
        axes.plot(*zip(start, end, strict=True), color=theme.ink, linewidth=1.1)
    axes.annotate(
        "",
        xy=points[-1],
        xytext=points[-2],
        arrowprops={
            "arrowstyle": "-|>",
            "color": theme.ink,
            "linewidth": 1.1,
            "shrinkA": 0,
            "shrinkB": 0,
        },
    )


def blank(width, height, x, y):
    """Returns a figure, and axes without ticks and with equal units.

    Args:
        width: Width of the figure in inches.
        height: Height of the figure in inches.
        x: Limits of the x axis, (left, right).
        y: Limits of the y axis, (bottom, top).
    """
    figure, axes = pyplot.subplots(figsize=(width, height))
    axes.set(xlim=x, ylim=y, aspect="equal")
    axes.set_axis_off()
    figure.subplots_adjust(0, 0, 1, 1)
    return figure, axes


# Boxes of one layer in each stack of Figure 1, from bottom to top.
STACKS = {
    "Encoder": ["MultiHeadAttention", "AddNorm", "FeedForward", "AddNorm"],
    "Decoder": [
        "MultiHeadAttention\n(causal)",
        "AddNorm",
        "MultiHeadAttention\n(cross-attention)",
        "AddNorm",
        "FeedForward",
        "AddNorm",
    ],
}


def architecture(theme, _):
    """Draws Figure 1 of the paper with the names of the classes."""
    figure, axes = blank(7.4, 8.6, (-0.8, 8.4), (-0.9, 9.9))
    left, right = 1.9, 5.7
    encoder_top, _ = _draw_stack(axes, theme, left, "Encoder")
    top, cross = _draw_stack(axes, theme, right, "Decoder")
    # The encoder's output enters every decoder layer.
    out = encoder_top + 0.8
    axes.plot([left, left], [encoder_top + 0.14, encoder_top + 0.28], color=theme.ink)
    axes.plot([left, left], [encoder_top + 0.55, out], color=theme.ink, linewidth=1.1)
    between = (left + 1.85 + right - 1.85) / 2 + 0.02
    path = (left, out), (between, out), (between, cross)
    arrow(axes, theme, *path, (right - 1.3, cross))
    axes.plot([right, right], [top + 0.14, top + 0.28], color=theme.ink)
    arrow(axes, theme, (right, top + 0.55), (right, top + 0.85))
    name = "TokenEmbedding(reverse=True)"
    box(axes, theme, (right, top + 1.17), name, theme.purple, (3.4, 0.62))
    arrow(axes, theme, (right, top + 1.48), (right, top + 1.8))
    axes.text(right, top + 1.9, "logits", ha="center", family="monospace", fontsize=9)
    return figure


def _draw_stack(axes, theme, x, stack):
    """Draws a stack with its embeddings, centered at `x`.

    Returns:
        y of the last box's top, and y of the center of cross-attention or `None`.
    """
    is_encoder = stack == "Encoder"
    colors = {"Multi": theme.orange, "AddNo": theme.green, "FeedF": theme.blue}
    ids = "source_ids" if is_encoder else "target_ids"
    axes.text(x, -0.65, ids, ha="center", family="monospace", fontsize=9)
    box(axes, theme, (x, 0.25), "TokenEmbedding", theme.purple)
    box(axes, theme, (x, 1.15), "PositionalEncoding", theme.purple)
    arrow(axes, theme, (x, -0.4), (x, -0.06))
    arrow(axes, theme, (x, 0.56), (x, 0.84))
    below, cross = 1.46, None
    for place, name in enumerate(STACKS[stack]):
        height = 0.8 if "\n" in name else 0.6
        center = below + 0.28 + height / 2 + (0.22 if place == 0 else 0)
        arrow(axes, theme, (x, below), (x, center - height / 2))
        if name != "AddNorm":
            # The residual connection goes around the box to the AddNorm above.
            branch = below + (0.26 if place == 0 else 0.12)
            residual = center + height / 2 + 0.28 + 0.3
            outside = x - 1.62 if is_encoder else x + 1.62
            edge = x - 1.3 if is_encoder else x + 1.3
            path = (x, branch), (outside, branch), (outside, residual)
            arrow(axes, theme, *path, (edge, residual))
        box(axes, theme, (x, center), name, colors[name[:5]], (2.6, height))
        if "cross" in name:
            cross = center
        below = center + height / 2
    frame = FancyBboxPatch(
        (x - 1.85, 1.62),
        3.7,
        below - 1.62 + 0.14,
        boxstyle="round,pad=0,rounding_size=0.15",
        facecolor="none",
        edgecolor=theme.soft,
        linewidth=1.3,
    )
    axes.add_patch(frame)
    layer = f"{stack}: N x {stack}Layer"
    axes.text(x, below + 0.33, layer, ha="center", fontsize=9, style="italic")
    return below, cross


def parse_tree(theme, _):
    """Draws a constituency tree over its words."""
    from keras_transformer.parsing import trees

    tree = trees.parse_tree(
        "(S (NP (DT The) (JJ old) (NN clock)) (VP (VBZ stops) "
        "(PP (IN at) (NP (NN noon)))))"
    )
    figure, axes = blank(6.4, 4.0, (-0.7, len(tree.words) - 0.3), (-1.5, 3.75))
    axes.set_aspect("auto")
    # Each open constituent has a list of the places of its children.
    open_, height = [], 3.4

    def place(label, xs, depth, children):
        x, y = sum(xs) / len(xs), height - depth * 0.85
        for child in children:
            axes.plot([x, child[0]], [y - 0.2, child[1] + 0.24], color=theme.soft)
        axes.text(x, y, label, ha="center", va="center", color=theme.blue, fontsize=11)
        return x, y

    for kind, value in trees.events(tree):
        if kind == "open":
            open_.append([])
        elif kind == "word":
            y = height - 4 * 0.85
            axes.text(value, y, tree.tags[value], ha="center", va="center")
            axes.text(value, y - 1.1, tree.words[value], ha="center", style="italic")
            axes.plot([value, value], [y - 0.22, y - 0.72], color=theme.soft)
            open_[-1].append((value, y))
        else:
            children = open_.pop()
            middle = [min(children)[0], max(children)[0]]
            node = place(value, middle, len(open_), children)
            if open_:
                open_[-1].append(node)
    return figure


def data_flow(theme, _):
    """Draws the steps from text to an update, and from text to a translation."""
    figure, axes = blank(9.6, 3.6, (0, 12.8), (-0.3, 4.5))
    rows = {
        "Training": [
            ("TextFiles", "pairs of lines", theme.soft),
            ("tokenizer", "subword ids", theme.purple),
            ("encode_corpus", "ids on disk", theme.green),
            ("plan_buckets", "pairs by length", theme.green),
            ("training_dataset", "source_ids, target_ids,\nlabels", theme.green),
            ("TrainingModel", "loss, update", theme.blue),
        ],
        "Translation": [
            ("text", "lines or requests", theme.soft),
            ("tokenizer", "subword ids", theme.purple),
            ("Encoder", "once per sentence", theme.blue),
            ("beam_search", "Decoder step by step,\nKV cache", theme.orange),
            ("tokenizer", "ids to text", theme.purple),
            ("translation", "with its score", theme.soft),
        ],
    }
    for y, (title, steps) in zip((3.3, 0.9), rows.items(), strict=True):
        axes.text(0.17, y + 0.62, title, weight="bold")
        for number, (name, result, color) in enumerate(steps):
            x = 1.05 + 2.13 * number
            box(axes, theme, (x, y), name, color, (1.76, 0.72), fontsize=8.5)
            axes.text(x, y - 0.48, result, ha="center", va="top", fontsize=7.5)
            if number:
                arrow(axes, theme, (x - 1.25, y), (x - 0.88, y))
    return figure
