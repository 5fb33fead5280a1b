"""Measures heads that connect related words, as in the paper's Figures 3 to 5.

    python benchmarks/attention_examples.py RUN

RUN is a run whose model reads English captions, such as one of `multi30k_en_fr`. In the
sentences of a relation, one word should attend to another. On half of the sentences,
the script chooses the encoder head with the most attention from the first word to the
second. On the other half, it measures this head. An untrained model, measured in the
same way, shows the chance level. The script writes
benchmarks/results/attention_examples.json and .md, and a picture of each chosen head.
"""

import argparse
import itertools
import pathlib

import keras
import machine
import numpy as np
import report

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
# Per relation: (sentence, attending word, word that it should attend to, other nouns)
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


def word_places(labels):
    """Maps each word to the slice of the subwords of its first occurrence.

    Args:
        labels: Source subwords and the end symbol. A subword that starts a word has a
            leading space.
    """
    begins = [i for i, label in enumerate(labels) if i == 0 or label.startswith(" ")]
    places = {}
    for first, last in itertools.pairwise([*begins, len(labels) - 1]):
        places.setdefault("".join(labels[first:last]).strip(), slice(first, last))
    return places


def attention_to(attention, word, other):
    """Returns the attention from one word to another, `[num_layers, num_heads]`."""
    places = word_places(attention.source)
    scores = attention.scores["encoder"][:, :, places[word], places[other]]
    return scores.sum(-1).mean(-1)


def measure(examples):
    """Chooses a head on half of the examples and measures it on the other half.

    Args:
        examples: List of (attention of a sentence, attending word, the noun that it
            should attend to, other nouns).

    Returns:
        Mapping with the chosen head and three metrics of it: the mean attention to the
        noun ("attention"), the mean attention to the other nouns ("others"), and the
        fraction of sentences in which no other noun gets more attention ("most").
        "all_heads" is the attention to the noun, averaged over all heads.
    """
    order = np.random.default_rng(0).permutation(len(examples))
    to_choose, to_measure = (
        [examples[i] for i in half] for half in np.array_split(order, 2)
    )

    def mean(half, metric):
        return np.mean([metric(*example) for example in half], axis=0)

    def attention_to_noun(attention, word, noun, others):
        return attention_to(attention, word, noun)

    def mean_attention_to_others(attention, word, noun, others):
        found = [attention_to(attention, word, noun) for noun in others]
        return np.mean(found, axis=0)

    def noun_is_strongest(attention, word, noun, others):
        found = [attention_to(attention, word, each) for each in (noun, *others)]
        return np.argmax(found, axis=0) == 0

    by_head = mean(to_choose, attention_to_noun)
    head = np.unravel_index(np.argmax(by_head), by_head.shape)
    metrics = {
        "layer": int(head[0]) + 1,
        "head": int(head[1]) + 1,
        "heads": int(by_head.size),
        "sentences": len(to_measure),
    }
    functions = {
        "attention": attention_to_noun,
        "others": mean_attention_to_others,
        "most": noun_is_strongest,
    }
    for name, function in functions.items():
        metrics[name] = float(mean(to_measure, function)[head])
    metrics["all_heads"] = float(mean(to_measure, attention_to_noun).mean())
    return metrics


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path, default=report.RESULTS)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    from keras_transformer.opening import open_model
    from keras_transformer.saving.load import load_run
    from keras_transformer.visualization import compute_attention, write_figure

    keras.utils.set_random_seed(1)
    _, tokenizer, untrained = load_run(arguments.run)
    trained = open_model(arguments.run).model
    result = {"machine": machine.description(), "versions": report.versions()}
    for relation, examples in RELATIONS.items():
        result[relation] = {}
        for name, model in (("trained", trained), ("untrained", untrained)):
            # The target, ".", does not affect the encoder.
            found = [
                (compute_attention(model, tokenizer, example[0], "."), *example[1:])
                for example in examples
            ]
            metrics = result[relation][name] = measure(found)
            if model is trained:
                write_figure(
                    found[1][0],
                    arguments.output / f"attention_{relation}.png",
                    kind="encoder",
                    layer=metrics["layer"],
                    head=metrics["head"],
                )
    report.write(arguments.output, "attention_examples", result)


if __name__ == "__main__":
    main()
