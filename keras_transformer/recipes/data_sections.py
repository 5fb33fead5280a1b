"""The data section of a recipe, with one class per kind of data.

Types are strict: a quoted number, or a boolean in place of a count, is an error.
"""

from typing import Annotated
from typing import Literal

from pydantic import BaseModel
from pydantic import BeforeValidator
from pydantic import ConfigDict
from pydantic import Field
from pydantic import PositiveFloat
from pydantic import PositiveInt
from pydantic import model_validator

Seed = Annotated[int, Field(ge=0, lt=2**32)]
Text = Annotated[str, Field(min_length=1)]
Paths = Annotated[
    list[Text],
    Field(min_length=1),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]


class Section(BaseModel):
    """Base class of a recipe's sections. Unknown keys are errors."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )


class TextPair(Section):
    """Line-aligned text files of one split, plain or .gz."""

    source: Paths
    target: Paths

    @model_validator(mode="after")
    def _as_many_files(self):
        if len(self.source) != len(self.target):
            raise ValueError(
                "source and target must have the same number of files. Received: "
                f"{len(self.source)} source, {len(self.target)} target"
            )
        return self


class FilesData(Section):
    """Pairs of text files."""

    kind: Literal["files"] = "files"
    train: TextPair
    validation: TextPair | None = None
    test: TextPair | None = None
    max_length: PositiveInt = 256


class RecordsData(Section):
    """A folder of training pairs that `keras-transformer corpus prepare` encoded.

    The folder's tokenizer is used; the recipe's tokenizer section is ignored.
    """

    kind: Literal["records"]
    train: Text
    validation: TextPair | None = None
    test: TextPair | None = None
    max_length: PositiveInt = 256


class TfdsData(Section):
    """A translation dataset of TensorFlow Datasets, with splits in its notation."""

    kind: Literal["tfds"]
    name: Text
    source_language: Text
    target_language: Text
    train: Text = "train"
    validation: Text | None = "validation"
    test: Text | None = "test"
    data_dir: Text | None = None
    max_length: PositiveInt = 256


class PhrasesData(Section):
    """Embedded phrases: CLDR dates, numbers, units and names in two locales."""

    kind: Literal["phrases"]
    source_locale: Text = "en"
    target_locale: Text = "de"
    size: PositiveInt = 31_500
    held_out: PositiveInt = 500
    seed: Seed = 1
    max_length: PositiveInt = 256


class TreePaths(Section):
    """Files or folders of bracketed trees, plain or .gz."""

    trees: Paths


class WeightedTreePaths(TreePaths):
    """`TreePaths` with the number of times per epoch for each path's trees."""

    weights: list[PositiveFloat] | None = None

    @model_validator(mode="after")
    def _as_many_weights(self):
        if self.weights is not None and len(self.weights) != len(self.trees):
            raise ValueError(
                "weights must have one value per path in trees. Received: "
                f"{len(self.weights)} weights, {len(self.trees)} paths"
            )
        return self


class TreesData(Section):
    """Constituency trees (section 6.3): sentences in, linearized trees out.

    `words` chooses the symbol for a word in a linearized tree, see `linearize`.
    """

    kind: Literal["trees"]
    train: WeightedTreePaths
    validation: TreePaths | None = None
    test: TreePaths | None = None
    words: Literal["joined", "numbers", "tags", "XX"] = "tags"
    max_length: PositiveInt = 256


DATA_KINDS = {
    "files": FilesData,
    "tfds": TfdsData,
    "phrases": PhrasesData,
    "trees": TreesData,
    "records": RecordsData,
}
