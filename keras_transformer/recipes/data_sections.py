"""The data section of a recipe, with one class per kind of data.

Types are strict: a quoted number, or a boolean in place of a count, is an error.
"""

import os
from typing import Annotated, ClassVar, Literal, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    model_validator,
)

Fraction = Annotated[float, Field(ge=0, lt=1)]
Weight = Annotated[float, Field(gt=0, le=1000)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Text = Annotated[str, Field(min_length=1)]


def absolute_path(path: str) -> str:
    """Resolves a path against the current directory, and `~`."""
    return os.path.abspath(os.path.expanduser(path))


FilePath = Annotated[Text, AfterValidator(absolute_path)]
Paths = Annotated[
    list[FilePath],
    Field(min_length=1),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]


def _check_column(value):
    is_number = type(value) is int and value > 0
    if not is_number and not (isinstance(value, str) and value):
        raise ValueError(
            "must be a column number (counted from 1) or a column name. "
            f"Received: {value!r}"
        )
    return value


Column = Annotated[int | str, BeforeValidator(_check_column)]


class Section(BaseModel):
    """Base class of a recipe's sections. Unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )


class NoiseSettings(Section):
    """Noise of training text: an epoch also contains noisy copies of some pairs.

    Each key is the share of the pairs of which an epoch contains such a copy. The
    copies depend on the seed and the epoch and are not stored.
    """

    lowercase: Fraction = 0.0  # copies with the source in lowercase
    capitals: Fraction = 0.0  # copies with both sides in capitals
    # copies without the final punctuation mark of both sides
    final_punctuation: Fraction = 0.0
    # copies with one letter in 60 of the source wrong, missing or swapped
    typos: Fraction = 0.0
    drop_words: Fraction = 0.0  # copies without a tenth of the source's words
    # copies with the same foreign word or symbol on both sides
    foreign_words: Fraction = 0.0
    mask: Fraction = 0.0  # copies with 15% of the source's subwords unknown
    join: Fraction = 0.0  # copies that join two pairs into one line


class TextPair(Section):
    """Line-aligned text files of one split, plain or compressed."""

    source: Paths  # text files, plain or compressed
    target: Paths  # files with the translations, line by line

    @model_validator(mode="after")
    def _check_file_counts(self):
        if len(self.source) != len(self.target):
            raise ValueError(
                "source and target must have the same number of files. Received: "
                f"{len(self.source)} source, {len(self.target)} target"
            )
        return self


class TrainingTextPair(TextPair):
    """`TextPair` with the options of training on it."""

    bidirectional: bool = False  # whether to train on swapped pairs, too
    # files with word alignments such as 0-0 1-2, for training.guided_alignment_weight
    alignments: Paths | None = None

    @model_validator(mode="after")
    def _check_alignments(self):
        if self.alignments and len(self.alignments) != len(self.source):
            raise ValueError(
                "source and alignments must have the same number of files. Received: "
                f"{len(self.source)} source, {len(self.alignments)} alignments"
            )
        return self


class FilesData(Section):
    """Pairs of text files."""

    kind: Literal["files"] = "files"
    train: TrainingTextPair  # training text
    validation: TextPair | None = None  # text for validation and early stopping
    test: TextPair | None = None  # text that training does not read
    # maximum subwords per side, including the end id; longer pairs are dropped
    max_length: PositiveInt = 256
    noise: NoiseSettings | None = None  # noisy copies of training pairs


class _FilesOfPairs(Section):
    """Files that contain both sides, which `source` and `target` name."""

    kind: str
    train: Paths  # files, plain or compressed
    validation: Paths | None = None  # files for validation and early stopping
    test: Paths | None = None  # files that training does not read
    source: Text
    target: Text
    # maximum subwords per side, including the end id; longer pairs are dropped
    max_length: PositiveInt = 256
    noise: NoiseSettings | None = None  # noisy copies of training pairs


class TsvData(_FilesOfPairs):
    """Files that contain one pair per line, in tab-separated columns."""

    kind: Literal["tsv"]
    source: Column = 1  # number of the column, or its name in line 1
    target: Column = 2  # number of the column, or its name in line 1


class CsvData(TsvData):
    """Files of a spreadsheet, in which cells may be in quotes."""

    kind: Literal["csv"]


class JsonlData(_FilesOfPairs):
    """Files that contain one pair per line, as a JSON object."""

    kind: Literal["jsonl"]
    source: Text = "source"  # key of the source text, such as translation.en
    target: Text = "target"  # key of the target text, such as translation.de


class TmxData(_FilesOfPairs):
    """Translation memories in TMX."""

    kind: Literal["tmx"]
    source: Text  # code of the source language, such as en
    target: Text  # code of the target language, such as de


# The name of a dataset on the Hub is kept.
_HubName = Annotated[
    Text,
    AfterValidator(
        lambda name: absolute_path(name) if os.path.isdir(absolute_path(name)) else name
    ),
]
# Data can also be in a cloud storage.
_DataFolder = Annotated[
    Text,
    AfterValidator(lambda path: path if "://" in path else absolute_path(path)),
]


class HfData(Section):
    """A dataset that the package `datasets` loads from the Hub or a local folder."""

    kind: Literal["hf"]
    name: _HubName  # dataset, such as Helsinki-NLP/opus-100, or a folder
    config: Text | None = None  # configuration, such as de-en
    revision: Text | None = None  # branch, tag or commit on the Hub
    source: Text = "translation.en"  # key of the source text
    target: Text = "translation.de"  # key of the target text
    train: Text = "train"  # split, such as train[:10%]
    validation: Text | None = "validation"  # split for validation
    test: Text | None = "test"  # split that training does not read
    streaming: bool = False  # read the examples without storing the dataset
    # maximum subwords per side, including the end id; longer pairs are dropped
    max_length: PositiveInt = 256
    noise: NoiseSettings | None = None  # noisy copies of training pairs


class RecordsData(Section):
    """A folder of training pairs that `keras-transformer corpus prepare` encoded.

    The run uses the tokenizer in the folder. The recipe must agree with it on
    `tokenizer.shared` and, if that is false, on `tokenizer.source_vocabulary_size`.
    """

    kind: Literal["records"]
    train: FilePath  # folder that `corpus prepare` wrote
    validation: TextPair | None = None  # text for validation and early stopping
    test: TextPair | None = None  # text that training does not read
    # maximum subwords per side, including the end id; longer pairs are dropped
    max_length: PositiveInt = 256


class TfdsData(Section):
    """A translation dataset of TensorFlow Datasets. Splits use its notation."""

    kind: Literal["tfds"]
    name: Text  # dataset, such as wmt14_translate/de-en
    source_language: Text  # feature of the dataset, such as en
    target_language: Text  # feature of the dataset, such as de
    train: Text = "train"  # split, such as train[:10%]
    validation: Text | None = "validation"  # split for validation
    test: Text | None = "test"  # split that training does not read
    data_dir: _DataFolder | None = None  # folder for downloads
    # maximum subwords per side, including the end id; longer pairs are dropped
    max_length: PositiveInt = 256
    noise: NoiseSettings | None = None  # noisy copies of training pairs


class PhrasesData(Section):
    """Dates, numbers, units and names from CLDR, in two languages."""

    kind: Literal["phrases"]
    source_locale: Text = "en"  # source language, as a locale of Babel
    target_locale: Text = "de"  # target language, as a locale of Babel
    size: PositiveInt = 31_500  # phrases with digits, held-out ones included
    held_out: PositiveInt = 500  # phrases in each of the validation and test sets
    seed: Seed = 1  # seed of the phrases
    # maximum subwords per side, including the end id; longer pairs are dropped
    max_length: PositiveInt = 256
    noise: NoiseSettings | None = None  # noisy copies of training pairs


class TreePaths(Section):
    """Files or folders of bracketed trees, plain or compressed."""

    trees: Paths  # files of bracketed trees, or folders of them


class WeightedTreePaths(TreePaths):
    """`TreePaths` with a weight per path.

    A weight of 0.5 samples half of the path's trees in each epoch.
    """

    weights: list[Weight] | None = None  # copies of each tree per epoch, by path

    @model_validator(mode="after")
    def _check_weight_counts(self):
        if self.weights is not None and len(self.weights) != len(self.trees):
            raise ValueError(
                "weights must have one value per path in trees. Received: "
                f"{len(self.weights)} weights, {len(self.trees)} paths"
            )
        return self


class TreesData(Section):
    """Constituency trees (section 6.3 of the paper).

    The source is a sentence, and the target is its tree, written as a sequence of
    symbols. See `linearize` for the values of `linearization`.
    """

    kind: Literal["trees"]
    train: WeightedTreePaths  # training trees
    validation: TreePaths | None = None  # trees for validation and early stopping
    test: TreePaths | None = None  # trees that training does not read
    # how the target writes a word: as its tag, a number, or XX
    linearization: Literal["joined", "numbers", "tags", "XX"] = "tags"
    # maximum subwords per side, including the end id; longer pairs are dropped
    max_length: PositiveInt = 256


class NoData(Section):
    """No data, in the recipe of an imported model."""

    kind: Literal["none"]
    max_length: PositiveInt = 256  # longer sources are translated in segments


def _check_tag(value):
    if value.split() != [value]:
        raise ValueError(f"must be one word, without spaces. Received: {value!r}")
    return value


_Tag = Annotated[str, AfterValidator(_check_tag)]


class CorpusOptions(Section):
    """What an entry of `data.train` has in addition to the keys of its kind."""

    weight: Weight = 1.0  # how often an epoch contains each pair
    tag: _Tag | None = None  # word in front of each source
    # Keys of a kind that a mixture has instead of its corpora.
    max_length: ClassVar[None]
    noise: ClassVar[None]


# The kinds of data that a mixture may contain.
CORPUS_KINDS = {
    section.model_fields["kind"].annotation.__args__[0]: type(
        section.__name__.replace("Data", "Corpus"),
        (CorpusOptions, section),
        {"__doc__": section.__doc__, "__module__": __name__},
    )
    for section in (
        *(FilesData, TsvData, CsvData, JsonlData, TmxData),
        *(HfData, TfdsData, PhrasesData),
    )
}
_Corpus = Annotated[Union[*CORPUS_KINDS.values()], Field(discriminator="kind")]


class MixedData(Section):
    """Several corpora, each with a weight, a tag and validation text of its own.

    `kind` may be omitted if `train` is a list of sections. An entry of the list has the
    keys of `data` for its own kind (default: `files`), except `max_length` and `noise`,
    and in addition `weight`, how often an epoch contains each of its pairs (default:
    1), and `tag`, a word that is put in front of its source texts. An entry of the kind
    `files` may have `source` and `target` without `train`.
    """

    kind: Literal["mixed"]
    train: Annotated[list[_Corpus], Field(min_length=1)]  # the corpora
    # maximum subwords per side, including the end id; longer pairs are dropped
    max_length: PositiveInt = 256
    noise: NoiseSettings | None = None  # noisy copies of training pairs

    @model_validator(mode="before")
    @classmethod
    def _complete_corpora(cls, values):
        if isinstance(values, dict) and isinstance(values.get("train"), list):
            values = {**values, "train": [*map(_complete_corpus, values["train"])]}
        return values

    @property
    def validation(self):
        """Whether a corpus has validation text, or `None` if none has."""
        return self._has_text("validation")

    @property
    def test(self):
        """Whether a corpus has test text, or `None` if none has."""
        return self._has_text("test")

    def _has_text(self, split):
        return any(getattr(each, split, True) for each in self.train) or None


def _complete_corpus(corpus):
    if not isinstance(corpus, dict):
        return corpus
    corpus = {"kind": "files", **corpus}
    if corpus["kind"] == "files" and "train" not in corpus:
        names = [*TrainingTextPair.model_fields]
        corpus["train"] = {name: corpus.pop(name) for name in names if name in corpus}
    return corpus


def data_kind(data: dict):
    """Returns the kind of a section `data` that has not been checked."""
    kind = data.get("kind", "files")
    is_mixed = kind == "files" and isinstance(data.get("train"), list)
    return "mixed" if is_mixed else kind


DATA_KINDS = {
    "files": FilesData,
    "tfds": TfdsData,
    "phrases": PhrasesData,
    "trees": TreesData,
    "records": RecordsData,
    "none": NoData,
    "tsv": TsvData,
    "csv": CsvData,
    "jsonl": JsonlData,
    "tmx": TmxData,
    "hf": HfData,
    "mixed": MixedData,
}
