"""Draws the pictures of the docs, each as SVG for light and for dark pages.

    python docs/pictures.py
    python docs/pictures.py masks schedules
    python docs/pictures.py cross_attention --run runs/mine --sentence "A man sleeps."

The command writes docs/pictures/NAME-light.svg and NAME-dark.svg. Shapes and numbers
come from the package and from benchmarks/results, so pictures follow the code.
"""

import argparse
import csv
import json
import pathlib

import diagrams
import matplotlib
import numpy as np

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "docs" / "pictures"
RESULTS = ROOT / "benchmarks" / "results"
OURS = "keras_transformer"


def masks(theme, _):
    """Draws the keys that each query attends to, from the scores of the layers."""
    from keras import ops

    from keras_transformer import layers

    length, tokens, window = 8, 6, 4
    x = np.random.default_rng(1).normal(size=(1, length, 16)).astype("float32")
    full = layers.MultiHeadAttention(1, 16)
    restricted = layers.RestrictedSelfAttention(1, 16, window)
    padded = np.arange(length)[None, None] < tokens
    found = {
        "padding": full(x, x, attention_mask=padded, return_attention_scores=True),
        "causal": full(x, x, use_causal_mask=True, return_attention_scores=True),
        f"window of {window}, encoder": restricted(x, x, return_attention_scores=True),
        f"window of {window}, decoder": restricted(
            x, x, use_causal_mask=True, return_attention_scores=True
        ),
    }
    figure, panels = pyplot.subplots(1, len(found), figsize=(9.6, 2.9))
    for axes, (title, (_, scores)) in zip(panels, found.items(), strict=True):
        visible = ops.convert_to_numpy(scores)[0, 0] > 0
        axes.pcolormesh(
            visible, cmap=theme.shades(), vmin=0, vmax=1.3, edgecolors=theme.soft
        )
        axes.set(title=title, xlabel="key", aspect="equal")
        axes.invert_yaxis()
        axes.set_xticks(np.arange(length) + 0.5, range(length))
        axes.set_yticks(np.arange(length) + 0.5, range(length))
    panels[0].set_ylabel("query")
    figure.tight_layout()
    return figure


def positional_encoding(theme, _):
    """Draws the sinusoids of section 3.5 as a matrix and as curves."""
    from keras_transformer.layers import PositionalEncoding

    zeros = np.zeros((1, 100, 64), "float32")
    encoding = np.asarray(PositionalEncoding()(zeros))[0]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 3.4))
    colors = LinearSegmentedColormap.from_list(
        "signed", [theme.orange, theme.page, theme.blue]
    )
    image = left.imshow(encoding, aspect="auto", cmap=colors, interpolation="nearest")
    left.set(xlabel="dimension", ylabel="position", title="d_model = 64")
    figure.colorbar(image, ax=left).outline.set_edgecolor(theme.soft)
    for dimension, color in zip((0, 8, 16, 24), theme.colors, strict=True):
        right.plot(encoding[:, dimension], color=color, label=f"dimension {dimension}")
    right.set(xlabel="position", ylabel="value", ylim=(-1.1, 1.75))
    right.legend(frameon=False, ncol=2, loc="upper center", labelcolor=theme.ink)
    figure.tight_layout()
    return figure


def position_offsets(theme, _):
    """Draws the matrix that maps PE(pos) to PE(pos + k), and products of encodings."""
    from keras_transformer.layers import PositionalEncoding

    width, offset = 32, 8
    encoding = np.asarray(PositionalEncoding()(np.zeros((1, 200, width), "float32")))[0]
    # Sines and cosines at the offset are the entries of the rotations.
    matrix = np.zeros((width, width))
    for i in range(0, width, 2):
        sine, cosine = encoding[offset, i : i + 2]
        matrix[i : i + 2, i : i + 2] = [[cosine, sine], [-sine, cosine]]
    assert np.allclose(encoding[:-offset] @ matrix.T, encoding[offset:], atol=1e-4)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 3.4))
    colors = LinearSegmentedColormap.from_list(
        "signed", [theme.orange, theme.page, theme.blue]
    )
    image = left.imshow(matrix, cmap=colors, vmin=-1, vmax=1, interpolation="nearest")
    left.set(
        title=f"M for k = {offset}, d_model = {width}", xlabel="dimension of PE(pos)"
    )
    left.set_ylabel("dimension of PE(pos + k)")
    figure.colorbar(image, ax=left).outline.set_edgecolor(theme.soft)
    offsets = np.arange(-40, 41)
    # The curves are equal, so each is thinner than the one below it.
    for position, width, color in zip(
        (40, 90, 150), (6, 3, 1), theme.colors, strict=False
    ):
        products = encoding[position + offsets] @ encoding[position]
        label = f"pos = {position}"
        right.plot(offsets, products, color=color, label=label, linewidth=width)
    right.set(xlabel="k", ylabel="PE(pos) · PE(pos + k)")
    right.legend(frameon=False, labelcolor=theme.ink)
    figure.tight_layout()
    return figure


def schedules(theme, _):
    """Draws the learning rate schedules against the step."""
    from keras_transformer import training

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 3.3))
    steps = np.arange(0, 20_000, 50)
    for (width, warmup), color in zip(
        ((512, 4000), (512, 8000), (1024, 4000)), theme.colors, strict=False
    ):
        rates = np.asarray(training.NoamSchedule(width, warmup)(steps))
        label = f"d_model={width}, warmup_steps={warmup:,}"
        left.plot(steps, rates, color=color, label=label)
    left.set_title("NoamSchedule")
    steps = np.arange(0, 8000, 20)
    schedule = training.InverseSquareRoot(0.005, warmup_steps=2000)
    right.plot(
        steps,
        np.asarray(schedule(steps)),
        color=theme.blue,
        label="InverseSquareRoot(0.005, 2000)",
    )
    cooled = training.LinearCooldown(schedule, 8000, 2500)
    right.plot(
        steps,
        np.asarray(cooled(steps)),
        color=theme.orange,
        linestyle="--",
        label="LinearCooldown(..., 8000, 2500)",
    )
    right.set_title("InverseSquareRoot and LinearCooldown")
    for axes in (left, right):
        axes.set(xlabel="step", ylabel="learning rate")
        axes.set_ylim(0, axes.get_ylim()[1] * 1.3)
        axes.legend(frameon=False, fontsize=8, loc="upper right", labelcolor=theme.ink)
    figure.tight_layout()
    return figure


def buckets(theme, _):
    """Draws the buckets of random pairs as rectangles in the plane of lengths."""
    from keras_transformer.pipelines.batching import plan_buckets

    random = np.random.default_rng(3)
    source = np.clip(random.lognormal(2.6, 0.45, 6000), 3, 60).astype(int)
    ratio = random.normal(1.05, 0.18, 6000)
    target = np.clip(source * ratio + random.normal(0, 1.2, 6000), 3, 70).astype(int)
    planned, leaf_of_pair = plan_buckets(source, target, 2048, max_leaves=12)
    figure, axes = pyplot.subplots(figsize=(6.4, 4.6))
    dots = source[:600], target[:600]
    axes.scatter(*dots, s=4, color=theme.ink, alpha=0.25, linewidth=0)
    for number, leaf in enumerate(np.unique(leaf_of_pair)):
        inside = leaf_of_pair == leaf
        low = source[inside].min() - 0.5, target[inside].min() - 0.5
        width = planned[leaf].source_length + 0.5 - low[0]
        height = planned[leaf].target_length + 0.5 - low[1]
        color = theme.colors[number % 4]
        axes.add_patch(
            Rectangle(low, width, height, facecolor=color + "30", edgecolor=color)
        )
        # Small rectangles have no room for a number.
        if width > 4.5 and height > 3.5:
            axes.text(
                low[0] + width / 2,
                low[1] + height / 2,
                planned[leaf].batch_size,
                ha="center",
                va="center",
                fontsize=8,
            )
    axes.set(xlabel="source length, tokens", ylabel="target length, tokens")
    figure.tight_layout()
    return figure


def kv_cache(theme, _):
    """Draws the slots that hypotheses attend to, before and after `compact`."""
    import keras

    from keras_transformer.decoding import cache as caches
    from keras_transformer.layers import MultiHeadAttention

    beam, keys = 3, keras.ops.zeros((1, 1, 3, 4))
    attention = MultiHeadAttention(1, 4)
    # For each position, the hypothesis that each hypothesis of the beam continues.
    parents = [(0, 1, 2), (0, 0, 1), (0, 1, 1), (1, 0, 2), (0, 0, 2)]
    cache, shown, slots = caches.empty_cache([attention], 1, beam), [], []
    for position, rows in enumerate(parents):
        cache = caches.reorder(cache, np.array(rows, "int32"))
        cache, place = caches.extend(cache, position)
        layers = tuple(layer.append(keys, keys, place) for layer in cache.layers)
        cache = cache._replace(layers=layers)
        slots += [(position, hypothesis) for hypothesis in range(beam)]
    kept = np.asarray(caches.reachable_slots(cache.ancestors))[0]
    for title, shown_cache, names in (
        ("15 slots after five positions", cache, slots),
        ("after compact", caches.compact(cache), [slots[slot] for slot in kept]),
    ):
        shown.append((title, np.asarray(shown_cache.ancestors)[0], names))
    figure, panels = pyplot.subplots(
        1, 2, figsize=(9.6, 2.5), width_ratios=[len(each[2]) for each in shown]
    )
    for axes, (title, seen, names) in zip(panels, shown, strict=True):
        axes.pcolormesh(
            seen, cmap=theme.shades(), vmin=0, vmax=1.3, edgecolors=theme.soft
        )
        axes.set(title=title, xlabel="slot: position.hypothesis", aspect="equal")
        axes.invert_yaxis()
        labels = [f"{position}.{hypothesis}" for position, hypothesis in names]
        axes.set_xticks(np.arange(len(names)) + 0.5, labels, fontsize=8)
        axes.set_yticks(np.arange(beam) + 0.5, range(beam))
    panels[0].set_ylabel("hypothesis")
    figure.tight_layout()
    return figure


def throughput(theme, _):
    """Draws training and decoding rates from benchmarks/results."""
    panels = {}
    for size in ("tiny", "base"):
        rows = read_systems(f"training_{size}")
        panels[f"training, {size} model"] = {
            row["name"]: row["tokens_per_second"]["median"]
            for row in rows
            if row["name"] in (OURS, "torch.nn.Transformer", "KerasHub layers")
        }
    for row in json.loads((RESULTS / "decoding_fixed.json").read_text())["batches"]:
        if row["batch"] in (1, 32):
            # Of the variants of a system, the fastest is drawn.
            fastest = {}
            for each in sorted(systems_of(row), key=lambda one: one["rate"]["median"]):
                fastest[each["name"].partition(",")[0]] = each
            best = {
                each["name"].removesuffix(", in parts").replace(" SavedModel", ""): (
                    each["rate"]["median"]
                )
                for each in fastest.values()
            }
            panels[f"decoding, base model, batch size {row['batch']}"] = best
    figure, grid = pyplot.subplots(2, 2, figsize=(9.6, 4.6))
    for axes, (title, rates) in zip(grid.flat, panels.items(), strict=True):
        names = sorted(rates, key=rates.get)
        values = [rates[name] for name in names]
        colors = [theme.blue if name == OURS else theme.soft for name in names]
        axes.barh(names, values, color=colors)
        for place, value in enumerate(values):
            axes.text(value, place, f" {value:,.0f}", va="center", fontsize=8)
        axes.set(title=title, xlabel="target tokens per second")
        axes.set_xlim(0, max(values) * 1.18)
    figure.tight_layout()
    return figure


def read_systems(name):
    return systems_of(json.loads((RESULTS / f"{name}.json").read_text()))


def systems_of(result):
    return result["systems"]


def learning_curve(theme, _):
    """Draws BLEU and perplexity of the runs on Multi30k, English to French."""
    with open(RESULTS / "multi30k_en_fr.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    figure, panels = pyplot.subplots(1, 2, figsize=(9.6, 3))
    runs = sorted({row["run"] for row in rows})
    for run, color in zip(runs, theme.colors, strict=False):
        points = [row for row in rows if row["run"] == run]
        minutes = [float(row["minutes"]) for row in points]
        for axes, metric in zip(panels, ("bleu", "perplexity"), strict=True):
            values = [float(row[metric]) for row in points]
            axes.plot(minutes, values, color=color, label=run, linewidth=1.2)
    for axes, name in zip(panels, ("BLEU", "perplexity"), strict=True):
        axes.set(xlabel="minutes of training", ylabel=f"validation {name}")
    panels[0].legend(frameon=False, loc="lower right", labelcolor=theme.ink)
    figure.tight_layout()
    return figure


def cross_attention(theme, options):
    """Draws the cross-attention of one sentence, the mean of a layer's heads."""
    if options.run is None:
        print("cross_attention needs --run RUN, skipped")
        return None
    from keras_transformer.opening import open_model
    from keras_transformer.visualization import compute_attention

    model = open_model(options.run)
    translation = model.translate([options.sentence])[0]
    found = compute_attention(
        model.model, model.tokenizer, options.sentence, translation
    )
    scores = found.scores["cross"][options.layer - 1].mean(axis=0)
    rows, columns = found.labels("cross")
    figure, axes = pyplot.subplots(figsize=(5.4, 4.2))
    image = axes.pcolormesh(
        scores, cmap=theme.shades(), vmin=0, vmax=1, edgecolors=theme.soft
    )
    axes.invert_yaxis()
    axes.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=60, ha="right")
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
    axes.set(xlabel="source", ylabel="translation")
    bar = figure.colorbar(image, ax=axes, label="attention")
    bar.outline.set_edgecolor(theme.soft)
    figure.tight_layout()
    return figure


PICTURES = {
    function.__name__: function
    for function in (
        diagrams.architecture,
        masks,
        positional_encoding,
        position_offsets,
        schedules,
        buckets,
        kv_cache,
        diagrams.parse_tree,
        throughput,
        learning_curve,
        diagrams.data_flow,
        cross_attention,
    )
}


def draw(name, theme_name, options):
    """Draws one picture in one theme."""
    theme = diagrams.THEMES[theme_name]
    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.family": ["DejaVu Sans", "sans-serif"],
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": theme.soft,
        "axes.facecolor": "none",
        "figure.facecolor": theme.page,
        "savefig.facecolor": theme.page,
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), theme.ink
        ),
    }
    with pyplot.rc_context(style):
        figure = PICTURES[name](theme, options)
        if figure is not None:
            path = OUTPUT / f"{name}-{theme_name}.svg"
            figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
            pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PICTURES))
    parser.add_argument("--run", help="run folder, for cross_attention")
    parser.add_argument("--sentence", default="A man rides a bike.")
    parser.add_argument("--layer", type=int, default=4, help="decoder layer, from 1")
    options = parser.parse_args()
    OUTPUT.mkdir(exist_ok=True)
    for name in options.names or PICTURES:
        for theme_name in diagrams.THEMES:
            draw(name, theme_name, options)


if __name__ == "__main__":
    main()
