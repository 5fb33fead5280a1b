"""Sources of sentence pairs: TensorFlow Datasets, and datasets of Hugging Face."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import Any

from keras_transformer.errors import DataError, install_hint
from keras_transformer.pipelines.lines import content_hash, visible_files
from keras_transformer.pipelines.sources.base import Pair, Pairs, Path
from keras_transformer.pipelines.sources.text_files import check_sides, nested_pair


@dataclasses.dataclass(eq=False)
class TfdsPairs(Pairs):
    """Pairs of a TFDS translation dataset, in the stored order.

    Iteration yields `(source, target)`. A side that is not UTF-8 is `None`. The first
    iteration downloads and prepares the dataset if necessary.

    The dataset must have texts by language: a `tfds.features.Translation`
    (`wmt14_translate/de-en`), a text feature per language (`TranslateFolder`), or
    `TranslationVariableLanguages` (`ted_multi_translate`). Examples without both
    languages are skipped.

    Args:
        name: Dataset and config, such as "wmt14_translate/de-en", or a
            `tfds.core.DatasetBuilder`.
        split: A TFDS split, such as "train" or "train[:1%]".
        source_language: Language code of the source, such as "en". Defaults to the
            dataset's own source language.
        target_language: Language code of the target. Defaults to the dataset's own
            target language.
        data_dir: Folder in which TFDS stores datasets. Defaults to TFDS's own folder.

    Raises:
        DataError: Iteration raises it before the first pair if the dataset, the split
            or a language does not exist, or the dataset cannot be prepared.

    Examples:
        >>> pairs = kt.pipelines.TfdsPairs(
        ...     "wmt14_translate/de-en", "train[:1%]", "en", "de"
        ... )
    """

    name: Any
    split: str = "train"
    source_language: str | None = None
    target_language: str | None = None
    data_dir: Path | None = None

    def __iter__(self) -> Iterator[Pair]:
        # The import takes seconds, so it waits until a dataset is read.
        import tensorflow_datasets as tfds

        builder = self._builder
        source, target = self._languages()
        with _convert_errors(f"{builder.name}, split {self.split!r}"):
            dataset = builder.as_dataset(
                split=self.split,
                shuffle_files=False,
                # Reading one file after another preserves the stored order.
                read_config=tfds.ReadConfig(interleave_cycle_length=1),
            )
        feature = _translation_key(builder.info.features, source, target)
        for example in tfds.as_numpy(dataset):
            texts = example[feature] if feature else example
            if "language" in texts and "translation" in texts:
                languages = map(_decode_text, texts["language"])
                texts = dict(zip(languages, texts["translation"], strict=True))
                if source not in texts or target not in texts:
                    continue
            yield _decode_text(texts[source]), _decode_text(texts[target])

    def fingerprint(self) -> str | None:
        """Returns a string that changes with the version, split, languages and sizes.

        For a dataset without a stored size (`TranslateFolder`), it is `None`, because
        the text may change while the version stays the same.
        """
        builder = self._builder
        if not builder.info.dataset_size:
            return None
        sizes = {
            name: (split.num_examples, split.num_bytes)
            for name, split in sorted(builder.info.splits.items())
        }
        return repr((builder.info.full_name, self.split, *self._languages(), sizes))

    @functools.cached_property
    def _builder(self):
        """The dataset's builder, with the dataset prepared."""
        import tensorflow_datasets as tfds

        builder = self.name
        if isinstance(builder, str):
            with _convert_errors(f"data.name={self.name!r}"):
                builder = tfds.builder(self.name, data_dir=self.data_dir)
        if not builder.info.splits:
            with _convert_errors(f"preparing {builder.info.full_name}"):
                builder.download_and_prepare()
        return builder

    def _languages(self) -> tuple[str, str]:
        source, target = self._builder.info.supervised_keys or (None, None)
        languages = self.source_language or source, self.target_language or target
        if None in languages or languages[0] == languages[1]:
            raise DataError(
                "data.source_language and data.target_language must be two different "
                f"languages of {self._builder.name}. Received: {languages[0]}, "
                f"{languages[1]}"
            )
        return languages


def _translation_key(features, source: str, target: str) -> str | None:
    """Returns the feature with both texts, or `None` if each language is a feature."""
    languages = {None: _names(features)}
    languages |= {key: _names(feature) for key, feature in features.items()}
    for key, names in languages.items():
        if source in names and target in names:
            return key
    known = sorted(set().union(*languages.values()))
    raise DataError(
        "data.source_language and data.target_language must be languages of the same "
        f"feature. Received: {source!r} and {target!r}. Available: {', '.join(known)}"
    )


def _names(feature) -> list[str]:
    """Returns the languages of a translation feature, or the keys of another one."""
    names = getattr(feature, "languages", None)
    return list(names or (feature.keys() if hasattr(feature, "keys") else ()))


def _decode_text(text: bytes | str) -> str | None:
    try:
        return text if isinstance(text, str) else text.decode()
    except UnicodeDecodeError:
        return None


@dataclasses.dataclass(eq=False)
class HuggingFacePairs(Pairs):
    """Pairs of a dataset that the package `datasets` loads, in the stored order.

    Args:
        name: A dataset on the Hub, such as `"Helsinki-NLP/opus-100"`, or a local
            folder of data files.
        split: A split in the notation of `datasets`, such as `"train[:1%]"`.
        source: Key of the source text. Dots address nested features, such as
            `"translation.en"`.
        target: Key of the target text, in the same form.
        config: Configuration of the dataset, such as `"de-en"`.
        revision: Branch, tag or commit of a dataset on the Hub.
        streaming: Whether to read the examples without storing the dataset. A run
            stores the ids in any case, so resuming does not read the examples again.

    Raises:
        DataError: If source and target are the same. Iteration raises it before the
            first pair if `datasets` is not installed, or the dataset or the split does
            not exist, and later if an example lacks one of the texts.

    Examples:
        >>> keys = {"source": "translation.en", "target": "translation.de"}
        >>> pairs = kt.pipelines.HuggingFacePairs(
        ...     "Helsinki-NLP/opus-100", "validation", config="de-en", **keys
        ... )
    """

    name: str
    split: str = "train"
    source: str = "translation.en"
    target: str = "translation.de"
    config: str | None = None
    revision: str | None = None
    streaming: bool = False

    def __post_init__(self):
        check_sides(self.source, self.target)

    def __iter__(self) -> Iterator[Pair]:
        examples = self._load(
            "load_dataset", split=self.split, streaming=self.streaming
        )
        with _convert_errors(self.name):
            for number, example in enumerate(examples, start=1):
                yield nested_pair(example, self, self.locate(number))

    def locate(self, number: int, is_target: bool = False) -> str:
        return f"{self.name}, split {self.split}, example {number}"

    def fingerprint(self) -> str | None:
        """Returns a string that changes with the dataset's files and the arguments.

        For a local folder, it depends on the content of all files except hidden ones,
        such as those of Git; for a dataset on the Hub, on its commit.
        """
        if os.path.isdir(self.name):
            content = [
                (os.path.relpath(file, self.name), content_hash(file))
                for file in sorted(visible_files(self.name))
            ]
        else:
            content = self._load("load_dataset_builder").hash
        return repr((content, self.config, self.split, self.source, self.target))

    def _load(self, function, **options):
        try:
            import datasets
        except ImportError:
            raise DataError(
                f"`data.kind: hf` requires the package datasets: {install_hint('hf')}"
            ) from None
        datasets.disable_progress_bars()
        revision = None if os.path.isdir(self.name) else self.revision
        split = f", split {self.split!r}" if "split" in options else ""
        with _convert_errors(f"data.name {self.name}{split}"):
            return getattr(datasets, function)(
                self.name, self.config, revision=revision, **options
            )


@contextlib.contextmanager
def _convert_errors(what: str):
    """Converts the errors that TFDS and `datasets` raise to a `DataError` on `what`."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"{what}: {first_line}") from error
