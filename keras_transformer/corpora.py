"""What a run makes of its text before it trains: the vocabulary and the ids."""

import itertools
import shutil

from keras_transformer import pipelines
from keras_transformer.run_folder import TOKENIZER

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
    if text is not None:
        note.write_text(text)
    return tokenizer
