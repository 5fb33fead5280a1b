"""What a run makes of its text before it trains: the vocabulary and the ids."""

import itertools
import shutil

from keras_transformer import pipelines
from keras_transformer.experiments.folder import TOKENIZER
from keras_transformer.parsing import TreeFiles
from keras_transformer.pipelines.sources.phrases import phrases

# In the tokenizer's folder: the fingerprint of its text.
_LEARNT_FROM = "text.sha256"


def prepare(recipe, output, pairs, begun=False):
    """Writes the vocabulary and the corpora's ids, unless they are there.

    Args:
        recipe: A `Recipe`.
        output: The run's folder.
        pairs: Sources by split.
        begun: Whether the run has a checkpoint, to whose vocabulary it is bound.
    """
    tokenizer = _tokenizer(recipe.tokenizer, pairs["train"], output / TOKENIZER, begun)
    sampling = {
        "dropout": recipe.tokenizer.dropout,
        "segmentations": recipe.tokenizer.segmentations,
        "seed": recipe.training.seed,
    }
    for split in _encoded(pairs):
        pipelines.encode_corpus(
            pairs[split],
            tokenizer,
            tokenizer,
            output / "cache" / split,
            max_length=recipe.data.max_length,
            **(sampling if split == "train" else {}),
        )


def prepared(output, pairs):
    """What `prepare` wrote: the tokenizer, and each split's corpus."""
    tokenizer = pipelines.load_tokenizer(output / TOKENIZER)
    return tokenizer, {
        split: pipelines.EncodedCorpus.load(output / "cache" / split)
        for split in _encoded(pairs)
    }


def _encoded(pairs):
    return [split for split in pairs if split != "test"]


def _tokenizer(settings, pairs, folder, begun):
    note = folder / _LEARNT_FROM
    text = pairs.fingerprint() if hasattr(pairs, "fingerprint") else None
    if folder.is_dir():
        # Before the first checkpoint a text may still be mended.
        is_of_text = begun or not note.is_file() or note.read_text() == text
        if is_of_text:
            return pipelines.load_tokenizer(folder)
        shutil.rmtree(folder)
    tokenizer = pipelines.as_pairs(pairs).tokenizer()
    if tokenizer is not None:
        tokenizer.save(folder)
        return tokenizer
    symbols, sentences = (), itertools.chain.from_iterable(pairs)
    if hasattr(pairs, "symbols"):
        # Of trees only the words: symbols have their ids already.
        symbols, sentences = pairs.symbols(), pairs.sentences()
    tokenizer = pipelines.train_tokenizer(
        settings.kind,
        sentences,
        settings.vocabulary_size,
        split_digits=settings.split_digits,
        symbols=symbols,
    )
    tokenizer.save(folder)
    if text is not None:
        note.write_text(text)
    return tokenizer


def load_pairs(recipe):
    """The recipe's sentence pairs: a source each for train, validation and test."""
    data = recipe.data
    if data.kind == "phrases":
        splits = phrases(
            data.source_locale,
            data.target_locale,
            size=data.size,
            seed=data.seed,
            held_out=data.held_out,
        )
        return splits._asdict()
    if data.kind == "tfds":

        def source(split):
            return pipelines.TfdsPairs(
                data.name,
                split,
                source_language=data.source_language,
                target_language=data.target_language,
                data_dir=data.data_dir,
            )
    elif data.kind == "trees":

        def source(split):
            weights = getattr(split, "weights", None)
            return TreeFiles(split.trees, weights, data.words)
    else:

        def source(split):
            return pipelines.TextFiles(split.source, split.target)

    splits = {name: getattr(data, name) for name in ("train", "validation", "test")}
    pairs = {}
    if data.kind == "records":
        pairs["train"] = pipelines.RecordFolder(splits.pop("train"))
    for name, split in splits.items():
        if split is not None:
            pairs[name] = source(split)
    return pairs
