"""Prepares the vocabulary and the encoded text of a run.

The stages of a run can differ in `TextOptions`: whether the training text is read in
one direction or in both, and how the tokenizer samples subwords. Stages with the same
`TextOptions` share one encoded text.
"""

import contextlib
import re
import shutil

from keras_transformer import pipelines
from keras_transformer.decoding.text import measure_text
from keras_transformer.errors import DataError, RecipeError
from keras_transformer.files import replace_folder
from keras_transformer.parsing import TreeFiles
from keras_transformer.pipelines.encoded_corpus import stored_ends
from keras_transformer.pipelines.sources.phrases import phrases
from keras_transformer.pipelines.sources.text_files import PAIR_LINES
from keras_transformer.pipelines.tokenizers.byte_pairs import BytePairTokenizer
from keras_transformer.pipelines.tokenizers.fairseq import TEXT_PREFIX
from keras_transformer.pipelines.tokenizers.normalization import TextSettings
from keras_transformer.pipelines.tokenizers.registry import reservoir_sample
from keras_transformer.progress import ProgressBar
from keras_transformer.saving.names import TOKENIZER
from keras_transformer.untrusted import read_text

# File in the tokenizer's folder. It contains the fingerprint of the text from which
# the vocabulary was learned.
_TEXT_FINGERPRINT = "text.sha256"
# Number of training pairs, drawn at random, from which `TextSettings` are measured.
_MEASURED_PAIRS = 20_000
_REPORTED_TEXTS = 10_000  # between two calls that show progress


def prepare_corpora(recipe, output, pairs, has_begun=False, progress=False):
    """Writes the vocabulary and the ids of the corpora, unless they exist.

    If `has_begun`, the run has a checkpoint, so its vocabulary is fixed. `progress` is
    whether to show progress on standard error.
    """
    if not has_begun:
        check_lengths(recipe)
        # Errors in it are found before hours of work on the training text.
        next(iter(pairs.get("validation", ())), None)
    tokenizer = _prepare_tokenizer(
        recipe.tokenizer, pairs["train"], output / TOKENIZER, has_begun, progress
    )
    for name, (source, text) in _text_sources(recipe, pairs).items():
        sampling, examples = {}, "validation examples"
        if text is not None:
            examples = "training examples"
            sampling = {
                "bpe_dropout": text.bpe_dropout,
                "num_segmentations": text.num_segmentations,
            }
        label = f"encoding data.{name}"
        with _show_phase(label, "pairs", source.num_pairs, progress) as report:
            pipelines.encode_corpus(
                source,
                tokenizer,
                tokenizer.target,
                output / "cache" / name,
                max_length=recipe.data.max_length,
                seed=recipe.training.seed,
                examples=examples,
                report=report,
                **sampling,
            )


@contextlib.contextmanager
def _show_phase(label, unit, count, is_shown):
    """Yields a function that shows how many of `count()` units are done, or `None`."""
    if not is_shown:
        yield None
        return
    bar = ProgressBar(label, None, 0, unit, transient=True, has_first_line=True)
    with bar:

        def report(done):
            bar.total = bar.total or count()
            bar.show_count(done, unit)

        yield report


def _check_tags(tokenizer, pairs):
    """Checks that each tag of a mixture is one subword."""
    symbols = pairs.symbols()
    if not symbols or not isinstance(pairs, pipelines.MixedPairs):
        return
    for tag, ids in zip(symbols, tokenizer.tokenize(symbols).to_list(), strict=True):
        if len(ids) != 1 or ids[0] == tokenizer.unknown_id:
            raise DataError(
                f"data.train: the vocabulary has no subword for the tag {tag}. Learn a "
                "new vocabulary, which reserves one, or use another tag"
            )


def check_lengths(recipe):
    """Checks that texts of `data.max_length` subwords have learned positions."""
    model, max_length = recipe.model, recipe.data.max_length
    if model.positions == "learned" and max_length > model.max_length:
        raise RecipeError(
            "data.max_length must be at most model.max_length, the number of learned "
            f"positions. Received: data.max_length={max_length}, "
            f"model.max_length={model.max_length}"
        )


def check_corpora(recipe):
    """Checks a recipe's text as far as this is quick."""
    check_lengths(recipe)
    for pairs in load_pairs(recipe.data).values():
        pairs.fingerprint()


def load_corpora(recipe, output, pairs):
    """Returns the tokenizer and the corpora that `prepare_corpora` wrote.

    The corpora are a dict of `EncodedCorpus`. Its keys are the `cache_name` of each
    stage's text and, if there is validation data, `"validation"`.
    """
    tokenizer = pipelines.load_tokenizer(output / TOKENIZER)
    noise = getattr(recipe.data, "noise", None)
    corpora = {}
    for name, (source, text) in _text_sources(recipe, pairs).items():
        arguments = output / "cache" / name, source.weights
        if ends := stored_ends(arguments[0]):
            # Otherwise, all texts would be read to count their lines.
            source.ends = ends
        if text is None or noise is None:
            corpora[name] = pipelines.EncodedCorpus.load(*arguments)
        else:
            corpora[name] = pipelines.NoisyCorpus.load(
                *(*arguments, noise.model_dump(), tokenizer),
                *(recipe.training.seed, source.symbols(), recipe.data.max_length),
                getattr(source, "parts", None),
            )
    return tokenizer, corpora


def training_pairs(pairs, text_options):
    """Returns the training pairs, in both directions if `text_options` requires it."""
    if text_options.bidirectional:
        return pipelines.BothDirections(pairs["train"])
    return pairs["train"]


def _text_sources(recipe, pairs):
    """Returns a dict of corpus names to (`Pairs`, `TextOptions`).

    For validation, the options are `None`.
    """
    found = {}
    for stage in recipe.stages:
        options = stage.text_options
        found[options.cache_name] = training_pairs(pairs, options), options
    if "validation" in pairs:
        found["validation"] = pairs["validation"], None
    return found


def _prepare_tokenizer(settings, pairs, folder, has_begun, progress):
    """Returns the tokenizer in `folder`, after training and saving it if necessary."""
    path = folder / _TEXT_FINGERPRINT
    fingerprint = pairs.fingerprint()
    is_trained = False
    if folder.is_dir():
        # Before the first checkpoint, users may still change the text. A vocabulary
        # that was learned from the old text is then learned again.
        is_fixed = has_begun or not path.exists()
        if is_fixed or read_text(path, error=DataError) == fingerprint:
            tokenizer = pipelines.load_tokenizer(folder)
            _check_tags(tokenizer, pairs)
            return tokenizer
        shutil.rmtree(folder)
    tokenizer = pairs.tokenizer()
    if tokenizer is not None:
        _check_sides(settings, tokenizer)
    elif settings.model:
        tokenizer = _load_sentencepiece(settings, "")
        if not settings.shared:
            source = _load_sentencepiece(settings, "source_")
            tokenizer = pipelines.SeparateTokenizers(source, tokenizer)
    else:
        phase = "learning the vocabulary", "texts read", lambda: None, progress
        with _show_phase(*phase) as report:
            text = _measure_text(pairs)
            tokenizer = _train_tokenizer(settings, pairs, text, report)
        is_trained = True
    _check_tags(tokenizer, pairs)
    with replace_folder(folder) as temporary:
        tokenizer.save(temporary)
        if is_trained and fingerprint is not None:
            (temporary / _TEXT_FINGERPRINT).write_text(fingerprint)
    return tokenizer


def _check_sides(settings, tokenizer):
    """Checks that the tokenizer stored with `data.train` matches the recipe."""
    is_separate = isinstance(tokenizer, pipelines.SeparateTokenizers)
    needed = {"shared": not is_separate}
    if is_separate:
        needed["source_vocabulary_size"] = tokenizer.vocabulary_size
    for name, value in needed.items():
        if getattr(settings, name) != value:
            raise DataError(
                "the tokenizer must match the ids in data.train. Set "
                f"tokenizer.{name}={str(value).lower()}. "
                f"Received: {str(getattr(settings, name)).lower()}"
            )


def _measure_text(pairs):
    """Returns the `TextSettings` of a new vocabulary, or `None` for parse trees."""
    if isinstance(pairs, pipelines.MixedPairs):
        pairs = pairs.untagged
    if pairs.symbols():
        return None
    found = (pair for pair in pairs if None not in pair)
    sampled = reservoir_sample(found, _MEASURED_PAIRS)
    if not sampled:
        return None
    sources, targets = zip(*sampled, strict=True)
    return TextSettings(normalization=True, **measure_text(sources, targets))


def _train_tokenizer(settings, pairs, text, report):
    """Learns the vocabulary, or one for each side, from the training text."""

    def count(texts):
        for number, text in enumerate(texts):
            if report is not None and number % _REPORTED_TEXTS == 0:
                report(number)
            yield text

    def train(texts, size, symbols=()):
        return pipelines.train_tokenizer(
            settings.kind,
            count(texts),
            size,
            split_digits=settings.split_digits,
            symbols=symbols,
            text=text,
        )

    symbols = pairs.symbols()
    if settings.shared:
        return train(pairs.sentences(), settings.vocabulary_size, symbols)
    try:
        size = settings.source_vocabulary_size
        source = train((text for text, _ in pairs), size, symbols)
    except DataError as error:
        key = "tokenizer.source_vocabulary_size"
        message = str(error).replace("tokenizer.vocabulary_size", key)
        raise DataError(message) from None
    target = train((text for _, text in pairs), settings.vocabulary_size)
    return pipelines.SeparateTokenizers(source, target)


def _load_sentencepiece(settings, side):
    """Loads a SentencePiece file. `side` prefixes its recipe keys: "" or "source_"."""
    path = getattr(settings, f"{side}model")
    label = f"tokenizer.{side}model {path}"
    try:
        tokenizer = BytePairTokenizer.load(path)
    except OSError as error:
        raise DataError(f"{label}: {error.strerror}") from None
    except DataError as error:
        raise DataError(f"tokenizer.{side}model {error}") from None
    if settings.bpe_dropout and not tokenizer.has_merges:
        raise DataError(f"{label}: tokenizer.bpe_dropout requires a model of type bpe")
    found, size = tokenizer.vocabulary_size, getattr(settings, f"{side}vocabulary_size")
    if found != size:
        raise DataError(
            f"{label}: has {found} subwords. Set tokenizer.{side}vocabulary_size="
            f"{found}. Received: {size}"
        )
    return tokenizer


def load_scored_pairs(recipe, split):
    """Returns the sources and the references of a split, two lists of str.

    Pairs with an empty side, or a side that is not UTF-8, are omitted.
    """
    return scored_texts(recipe, load_pairs(recipe.data)[split], split)


def scored_texts(recipe, pairs, split):
    """Returns sources and references (see `load_scored_pairs`) of `Pairs`."""
    # A line that is not UTF-8 is `None`.
    kept = [pair for pair in pairs if all(text and text.strip() for text in pair)]
    if not kept:
        raise DataError(
            f"data.{split} must contain at least one pair of texts that are not empty"
        )
    sources, references = map(list, zip(*kept, strict=True))
    return sources, strip_languages(recipe.tokenizer.kind, references)


def strip_languages(kind, references):
    """Returns references as a model generates them that has a tokenizer of a kind.

    A target of a multilingual corpus begins with its language. A translation does not.
    """
    if kind != "fairseq":
        return references
    return [TEXT_PREFIX.sub("", each) for each in references]


def load_pairs(data):
    """Returns the sentence pairs of a section `data` as a dict of splits to `Pairs`.

    The splits are `"train"`, `"validation"` and `"test"`, if the section has them.
    """
    if data.kind == "mixed":
        return _mix(data.train)
    if data.kind == "none":
        raise DataError(
            "the recipe of an imported model (data.kind: none) has no training text. "
            "Train another recipe with --from MODEL"
        )
    if data.kind == "phrases":
        splits = phrases(
            data.source_locale,
            data.target_locale,
            size=data.size,
            seed=data.seed,
            held_out=data.held_out,
        )._asdict()
        return {split: pipelines.as_pairs(pairs) for split, pairs in splits.items()}

    def pairs_of_split(split):
        if data.kind in PAIR_LINES:
            return PAIR_LINES[data.kind](split, data.source, data.target)
        if data.kind == "hf":
            return pipelines.HuggingFacePairs(
                data.name,
                split,
                data.source,
                data.target,
                data.config,
                data.revision,
                streaming=data.streaming,
            )
        if data.kind == "tfds":
            languages = data.source_language, data.target_language
            return pipelines.TfdsPairs(data.name, split, *languages, data.data_dir)
        if data.kind == "trees":
            weights = getattr(split, "weights", None)
            return TreeFiles(split.trees, weights, data.linearization)
        alignments = getattr(split, "alignments", None)
        return pipelines.TextFiles(split.source, split.target, alignments)

    splits = {name: getattr(data, name) for name in ("train", "validation", "test")}
    pairs = {}
    if data.kind == "records":
        pairs["train"] = pipelines.RecordFolder(splits.pop("train"))
    given = {name: split for name, split in splits.items() if split is not None}
    return pairs | {name: pairs_of_split(split) for name, split in given.items()}


def _mix(corpora):
    """Returns the pairs of a recipe's corpora as a dict of splits to `MixedPairs`."""
    parts = {}
    for name, corpus in zip(_corpus_names(corpora), corpora, strict=True):
        for split, pairs in load_pairs(corpus).items():
            # A corpus that swaps its pairs also puts its tag in front of targets.
            given = getattr(corpus, split, None)
            if getattr(given, "bidirectional", False):
                pairs = pipelines.BothDirections(pairs)
            parts.setdefault(split, []).append((name, pairs, corpus))
    mixed = {}
    for split, found in parts.items():
        names, pairs, given = zip(*found, strict=True)
        weights = [each.weight for each in given] if split == "train" else None
        tags = [each.tag for each in given]
        mixed[split] = pipelines.MixedPairs(pairs, weights, tags, names)
    return mixed


def _corpus_names(corpora):
    """Returns a different name for each corpus of a recipe, for metrics."""
    tags = [re.sub(r"\W", "", corpus.tag or "") for corpus in corpora]
    numbers = [str(number) for number in range(1, len(tags) + 1)]
    names = [
        tag if tag and tags.count(tag) == 1 else tag + number
        for tag, number in zip(tags, numbers, strict=True)
    ]
    return names if len({*names}) == len(names) else numbers


def check_targets(model, corpus, pairs):
    """Checks that the model can generate every symbol of the training trees."""
    if model.output_size is None:
        return
    rows = corpus.rows_outside(model.output_size)
    if len(rows):
        raise DataError(
            f"{pairs.locate(int(corpus.numbers(rows)[0]))}: the vocabulary lacks the "
            f"symbol of a label, a tag or brackets ({len(rows)} such trees). The "
            "vocabulary was learned from different trees"
        )
