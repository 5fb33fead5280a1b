"""Which heads join words that belong together: the appendix's Figures 3 to 5, counted.

    python benchmarks/attention_examples.py RUN

RUN is of a model that reads English captions, such as `multi30k_en_fr`. For each
relation the head of the encoder that looks from one word at the other most is chosen on
half of the sentences, and its figures are of the other half; the same search among the
heads of the untrained model tells what chance finds. Writes
benchmarks/results/attention_examples.json and .md, and a picture of each head.
"""

import argparse
import itertools
import pathlib

import keras
import machine
import numpy as np
import report

# (sentence, the word that looks, the word that it should look at, other nouns)
_CLOTHES = list(
    itertools.product(
        ("man", "woman", "boy", "girl"),
        (("red", "black"), ("blue", "white"), ("green", "yellow")),
        (("sitting", "bench"), ("standing", "ladder"), ("sleeping", "couch")),
    )
)
_CLOTHED = "the {} in the {} shirt and the {} hat is {} on a {} ."
_THROWN = "a {} picks up a {} and throws it to the {} dog ."
_CARRIED = "a {} {} runs through the {} with a {} in its mouth ."
RELATIONS = {
    "worn": [
        (_CLOTHED.format(who, *colors, does, on), "hat", who, ("shirt", on))
        for who, colors, (does, on) in _CLOTHES
    ],
    "distance": [
        (_CLOTHED.format(who, *colors, does, on), does, who, ("shirt", "hat", on))
        for who, colors, (does, on) in _CLOTHES
    ],
    "it": [
        (_THROWN.format(who, what, color), "it", what, (who, "dog"))
        for who, what, color in itertools.product(
            ("man", "woman", "boy", "girl"),
            ("ball", "stick", "toy"),
            ("brown", "white", "black"),
        )
    ],
    "its": [
        (_CARRIED.format(color, who, where, what), "its", who, (where, what, "mouth"))
        for color, who, where, what in itertools.product(
            ("brown", "white", "black"),
            ("dog", "cat"),
            ("grass", "snow", "water"),
            ("ball", "stick"),
        )
    ],
}
NAMES = {
    "worn": "a garment at who wears it",
    "distance": "a verb at its subject, two phrases before",
    "it": "`it` at the thing thrown",
    "its": "`its` at its owner",
}


def word_places(labels):
    """The first sub-word and the one after the last, of each word of a source.

    Args:
        labels: sub-words that begin with a space where a word does, and the end.
    """
    begins = [i for i, label in enumerate(labels) if i == 0 or label.startswith(" ")]
    places = {}
    for first, last in itertools.pairwise([*begins, len(labels) - 1]):
        places.setdefault("".join(labels[first:last]).strip(), slice(first, last))
    return places


def looks(attention, looking, at):
    """Attention of each head that one word pays another, [num_layers, num_heads]."""
    places = word_places(attention.source)
    scores = attention.scores["encoder"][:, :, places[looking], places[at]]
    return scores.sum(-1).mean(-1)


def measured(found):
    """Figures of the head that half of the examples chooses, by the other half."""
    order = np.random.default_rng(0).permutation(len(found))
    halves = [[found[i] for i in half] for half in np.array_split(order, 2)]

    def mean(half, part):
        return np.mean([part(*example) for example in half], axis=0)

    def right(attention, looking, at, others):
        return looks(attention, looking, at)

    def other(attention, looking, at, others):
        return np.mean([looks(attention, looking, noun) for noun in others], axis=0)

    def most(attention, looking, at, others):
        nouns = [looks(attention, looking, noun) for noun in (at, *others)]
        return np.argmax(nouns, axis=0) == 0

    choice = mean(halves[0], right)
    head = np.unravel_index(np.argmax(choice), choice.shape)
    figures = {
        "layer": int(head[0]) + 1,
        "head": int(head[1]) + 1,
        "heads": int(choice.size),
        "sentences": len(halves[1]),
    }
    parts = {"attention": right, "others": other, "most": most}
    for name, part in parts.items():
        figures[name] = float(mean(halves[1], part)[head])
    figures["all_heads"] = float(mean(halves[1], right).mean())
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path, default=report.RESULTS)
    arguments = parser.parse_args()
    from keras_transformer.saving.load import load_run
    from keras_transformer.saving.open import open_model
    from keras_transformer.visualization import attention_of
    from keras_transformer.visualization import write_figure

    keras.utils.set_random_seed(1)
    _, tokenizer, untrained = load_run(arguments.run)
    trained = open_model(arguments.run).model
    result = {"machine": machine.description(), "versions": report.versions()}
    rows = []
    for relation, examples in RELATIONS.items():
        result[relation] = {}
        for name, model in (("trained", trained), ("untrained", untrained)):
            # The decoder plays no part: any target will do.
            found = [
                (attention_of(model, tokenizer, example[0], "."), *example[1:])
                for example in examples
            ]
            figures = result[relation][name] = measured(found)
            if model is trained:
                write_figure(
                    found[1][0],
                    arguments.output / f"attention_{relation}.png",
                    kind="encoder",
                    layer=figures["layer"],
                    head=figures["head"],
                )
            rows.append(
                [
                    NAMES[relation] if model is trained else "*before training*",
                    f"{figures['layer']}, {figures['head']}",
                    f"{figures['attention']:.0%}",
                    f"{figures['others']:.0%}",
                    f"{figures['most']:.0%} of {figures['sentences']}",
                    f"{figures['all_heads']:.0%}",
                ]
            )
    head = ["looks", "layer, head", "attention", "at another"]
    head += ["most of all", "mean of all heads"]
    report.write(
        arguments.output, "attention_examples", result, report.table(head, rows)
    )


if __name__ == "__main__":
    main()
