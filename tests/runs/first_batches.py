"""Loads the first batch of every shipped recipe with required packages only.

    python first_batches.py FOLDER

FOLDER gets small data files with the names that the recipes use. The script prints a
line of JSON per recipe: its name, and the shape of the batch or an error. Optional
packages cannot be imported, as in an installation without extras.
"""

import gzip
import json
import os
import pathlib
import random
import sys

# Packages that only extras of this package install.
OPTIONAL = (
    *("apache_beam", "backports.zstd", "ctranslate2", "datasets", "fastapi", "jax"),
    *("huggingface_hub", "nltk", "PYEVALB", "torch", "transformers"),
)
WORDS = ("the", "dog", "cat", "runs", "Hund", "Katze", "läuft", "schläft", "ein", "7")
SMALL = ("training.batch_tokens=512",)
# Vocabulary sizes for recipes whose text has too many characters or symbols for the 310
# subwords of the other recipes.
VOCABULARY_SIZES = {"craft_parsing": 420, "phrases": 380}


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def sentences(count):
    return [
        " ".join(random.choices(WORDS, k=random.randint(2, 9))) for _ in range(count)
    ]


def write_data(folder):
    """Writes small files under all names that the recipes use."""
    for split in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de", "fr"):
            write(folder / "multi30k" / f"{split}.{language}.gz", sentences(300))
    for split in ("train", "dev"):
        for language in ("en", "de"):
            write(folder / "tatoeba_en_de" / f"{split}.{language}.gz", sentences(300))
    tree = "(S (NP (DT {}) (NN {})) (VP (VBZ {})))"
    trees = [tree.format(*random.choices(WORDS, k=3)) for _ in range(300)]
    for split in ("train", "dev"):
        write(folder / "craft" / f"{split}.trees.gz", trees)
    for section in range(2, 24):
        write(folder / "wsj" / f"{section:02}" / "wsj.mrg", trees[:20])
    for language in ("en", "de"):
        write(folder / f"train.{language}", sentences(300))


def build_tfds(folder):
    """Builds small datasets with the names, version and features of TFDS's WMT14."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    for language in ("de", "fr"):
        texts = {"en": sentences(300), language: sentences(300)}
        dataset = tf.data.Dataset.from_tensor_slices(texts)
        sizes = {"train": 300, "validation": 9, "test": 9}
        tfds.dataset_builders.store_as_tfds_dataset(
            name="wmt14_translate",
            config=f"{language}-en",
            version="1.0.0",
            data_dir=folder,
            split_datasets={name: dataset.take(n) for name, n in sizes.items()},
            features=tfds.features.Translation([language, "en"]),
            disable_shuffling=True,
        )


def first_batch(name, folder):
    """Returns the shape of the source ids in a recipe's first batch."""
    from keras_transformer import pipelines
    from keras_transformer.recipes import load_recipe
    from keras_transformer.runs.corpora import (
        load_corpora,
        load_pairs,
        prepare_corpora,
    )

    files = {"source": f"{folder}/train.en", "target": f"{folder}/train.de"}
    overrides = {
        "files": [f"data.train={files}"],
        "phrases": ["data.size=300", "data.held_out=20"],
    }.get(name, [])
    if name.startswith("wmt14"):
        overrides = [f"data.data_dir={folder}/tfds"]
    size = VOCABULARY_SIZES.get(name, 310)
    overrides = [f"tokenizer.vocabulary_size={size}", *overrides]
    recipe = load_recipe(name, [*SMALL, *overrides])
    run = folder / "runs" / name
    run.mkdir(parents=True)
    pairs = load_pairs(recipe)
    prepare_corpora(recipe, run, pairs)
    _, corpora = load_corpora(recipe, run, pairs)
    dataset = pipelines.training_dataset(corpora["train"], recipe.training.batch_tokens)
    inputs, _ = next(iter(dataset))
    return list(inputs["source_ids"].shape)


def main():
    random.seed(1)
    folder = pathlib.Path(sys.argv[1])
    write_data(folder)
    os.environ["KERAS_TRANSFORMER_DATA"] = str(folder)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.modules.update(dict.fromkeys(OPTIONAL))  # importing them fails
    build_tfds(folder / "tfds")
    from keras_transformer.recipes import shipped_recipes

    for name in shipped_recipes():
        try:
            result = first_batch(name, folder)
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        print(json.dumps([name, result]), flush=True)


if __name__ == "__main__":
    main()
