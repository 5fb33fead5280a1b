"""Every packaged recipe yields a batch in an installation without extras.

Run as a script, this file prints a line of JSON per recipe: its name, and the shape of
the first batch of source ids or an error. Optional packages cannot be imported.
"""

import gzip
import json
import os
import pathlib
import random
import subprocess
import sys

import pytest

# Packages that only extras of this package install.
OPTIONAL = (
    *("apache_beam", "backports.zstd", "ctranslate2", "datasets", "fastapi", "jax"),
    *("huggingface_hub", "nltk", "PYEVALB", "torch", "transformers"),
)
WORDS = ("the", "dog", "cat", "runs", "Hund", "Katze", "läuft", "schläft", "ein", "7")
# Vocabulary sizes for recipes whose text has too many characters or symbols for the 310
# subwords of the other recipes.
VOCABULARY_SIZES = {"craft_parsing": 420, "phrases": 380}


@pytest.mark.slow  # It builds two datasets and learns a vocabulary per recipe.
def test_packaged_recipes_yield_a_batch(tmp_path):
    done = subprocess.run(
        [sys.executable, __file__, tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # TFDS reports its progress on standard output, too.
    lines = [line for line in done.stdout.splitlines() if line.startswith('["')]
    for name, shape in map(json.loads, lines):
        # The script sets training.batch_tokens to 512.
        assert isinstance(shape, list) and 0 < shape[0] * shape[1] <= 512, (name, shape)


def sentences(count):
    return [
        " ".join(random.choices(WORDS, k=random.randint(2, 9))) for _ in range(count)
    ]


def write_data(folder):
    """Writes small files under all names that the recipes use."""
    texts = {}
    for split in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de", "fr"):
            texts[f"multi30k/{split}.{language}.gz"] = sentences(300)
    for name in (
        "tatoeba_en_de",
        "europarl_en_fr",
        "tatoeba_en_fr",
        "catalogues_en_fr",
    ):
        for split in ("train", "dev"):
            for language in name[-5:].split("_"):
                texts[f"{name}/{split}.{language}.gz"] = sentences(300)
    for language in ("en", "fr"):
        texts[f"dev_sets/newstest2013.{language}.gz"] = sentences(30)
    tree = "(S (NP (DT {}) (NN {})) (VP (VBZ {})))"
    trees = [tree.format(*random.choices(WORDS, k=3)) for _ in range(300)]
    texts |= {f"craft/{split}.trees.gz": trees for split in ("train", "dev")}
    texts |= {f"wsj/{section:02}/wsj.mrg": trees[:20] for section in range(2, 24)}
    texts |= {f"train.{language}": sentences(300) for language in ("en", "de")}
    for name, lines in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "wt", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


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
    from keras_transformer.runs import corpora

    size = VOCABULARY_SIZES.get(name, 310)
    overrides = [f"tokenizer.vocabulary_size={size}", "training.batch_tokens=512"]
    if name in ("files", "student"):
        files = {"source": f"{folder}/train.en", "target": f"{folder}/train.de"}
        overrides.append(f"data.train={files}")
    if name == "phrases":
        overrides += ["data.size=300", "data.held_out=20"]
    if name.startswith("wmt14"):
        overrides.append(f"data.data_dir={folder}/tfds")
    recipe, run = load_recipe(name, overrides), folder / "runs" / name
    run.mkdir(parents=True)
    pairs = corpora.load_pairs(recipe.data)
    corpora.prepare_corpora(recipe, run, pairs)
    corpus = corpora.load_corpora(recipe, run, pairs)[1]["train"]
    inputs, _ = next(iter(pipelines.training_dataset(corpus, 512)))
    return list(inputs["source_ids"].shape)


def main(folder):
    random.seed(1)
    write_data(folder)
    os.environ["KERAS_TRANSFORMER_DATA"] = str(folder)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.modules.update(dict.fromkeys(OPTIONAL))  # importing them fails
    build_tfds(folder / "tfds")
    from keras_transformer.recipes import packaged_recipes

    for name in packaged_recipes():
        try:
            result = first_batch(name, folder)
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        print(json.dumps([name, result]), flush=True)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
