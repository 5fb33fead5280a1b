"""What a run makes of its text before it trains: the vocabulary and the ids."""

import itertools

from keras_transformer import pipelines
from keras_transformer.run_folder import TOKENIZER


def prepare(recipe, output, pairs):
    """Writes the vocabulary and the corpora's ids, unless they are there."""
    tokenizer = _tokenizer(recipe.tokenizer, pairs["train"], output / TOKENIZER)
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


def _tokenizer(settings, pairs, folder):
    if folder.is_dir():
        return pipelines.load_tokenizer(folder)
    if hasattr(pairs, "tokenizer"):
        tokenizer = pairs.tokenizer()
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
    return tokenizer
