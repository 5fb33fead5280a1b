"""Source of sentence pairs: Hugging Face datasets."""

import os
from collections.abc import Iterator

from keras_transformer.errors import DataError, install_hint
from keras_transformer.pipelines.lines import content_hash, visible_files
from keras_transformer.pipelines.sources.base import Pair, Pairs, convert_dataset_errors
from keras_transformer.pipelines.sources.text_files import check_sides, nested_text


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
    """

    def __init__(
        self,
        name: str,
        split: str = "train",
        source: str = "translation.en",
        target: str = "translation.de",
        config: str | None = None,
        revision: str | None = None,
        streaming: bool = False,
    ):
        check_sides(source, target)
        self.name = name
        self.split = split
        self.source = source
        self.target = target
        self.config = config
        self.revision = revision
        self.streaming = streaming

    def __iter__(self) -> Iterator[Pair]:
        examples = self._load(
            "load_dataset", split=self.split, streaming=self.streaming
        )
        with convert_dataset_errors(self.name):
            for number, example in enumerate(examples, start=1):
                place = self.locate(number)
                source = nested_text(example, self.source, "data.source", place)
                target = nested_text(example, self.target, "data.target", place)
                yield source, target

    def locate(self, number: int) -> str:
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
        with convert_dataset_errors(f"data.name {self.name}{split}"):
            return getattr(datasets, function)(
                self.name, self.config, revision=revision, **options
            )
