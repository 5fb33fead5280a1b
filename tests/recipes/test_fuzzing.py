"""Fuzzing of the recipe loader: any input gives a recipe or a one-line error.

A mark `fault(id, expected)` defines a row of docs/results/reliability.md.
"""

import itertools

import pytest
import yaml
from fuzzing import ANY_TEXT, LONG, SHORT, describe_outcomes, fuzz
from hypothesis import strategies as st

from keras_transformer.errors import RecipeError
from keras_transformer.recipes import Recipe, dump_recipe, load_recipe
from keras_transformer.recipes.yaml_values import dump_yaml, read_yaml

GOOD = """\
data: {train: {source: [a.en], target: [a.de]}, max_length: 50}
tokenizer: {kind: bpe, vocabulary_size: 800}
model: {size: tiny, dropout: 0.3}
training: {steps: 10, seed: 1}
decoding: {beam_size: 4}
"""


def words(text):
    return text.split()


# Keys of recipes, some of them invalid.
KEYS = words("""
data.kind data.train data.train.source data.max_length data.size data.train.trees
data.validation data.linearization data.name data tokenizer.kind tokenizer
tokenizer.bpe_dropout model.size model model.d_model model.activation
model.score_mode model.max_length
training.steps training.seed training.early_stopping training a.b.c . << __class__
training.checkpoint_minutes training.checkpoint_steps training.average_checkpoints
training.early_stopping.patience decoding.beam_size evaluation.tokenize
decoding.length_penalty data.train.source.x
""")
KEYS += [""]
# YAML values, many of which are invalid.
WORDS = words("""
~ null true no 1 -1 0 1e9 1e-9 .inf .nan 0x1f 0o17 1:30 2001-01-01 2001-99-99 1_000 = <<
[] {} *a %TAG --- ... ' @ ` !!binary files tfds phrases trees tags bpe word_piece tiny
base auto ${HOME} ${NOWHERE} ${ ~/x a.en paper inverse_sqrt
""")
WORDS += ["", "9" * 30, "9" * 5000, "[1, 2]", "{a: 1}", "{a: 1, a: 2}", "&a [*a]"]
WORDS += ["&a 1", "[" * 200, "{a: " * 200, "!!int x", "!!float x", "!!bool x"]
WORDS += ["!!timestamp x", "!!binary ä", "!!python/object/apply:os.system [id]"]
WORDS += ["!!python/name:os.system", "!x y", "!!set {a}"]
WORDS += ["|\n a", ">\n a", "- a", "? a", "# a", '"\\ud800"', "\\0", '"\\0"']
VALUES = (
    st.sampled_from(WORDS) | ANY_TEXT | st.integers().map(str) | st.floats().map(str)
)
OVERRIDES = st.lists(
    st.tuples(st.sampled_from(KEYS) | ANY_TEXT, VALUES).map("=".join) | ANY_TEXT,
    max_size=4,
)
# Lists of overrides, many of which are valid.
PLAUSIBLE = st.lists(
    st.sampled_from(
        words(
            "training.steps= training.seed= training.keep_checkpoints= model.d_ff= "
            "decoding.beam_size= decoding.extra_length= data.max_length="
        )
    ).flatmap(
        lambda key: (st.integers(1, 99) | st.integers(-1, 10**12)).map(
            lambda value: f"{key}{value}"
        )
    )
    | st.text(st.characters(), min_size=1).map(
        lambda name: f'data.train.source=["{name}"]'
    )
    | st.sampled_from(["model.size=big", "data.max_length=1e3", "model.dropout=0"]),
    max_size=2,
)


@st.composite
def altered(draw):
    """A valid recipe with pieces inserted, removed or replaced."""
    text = GOOD
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        stop = draw(st.integers(start, min(len(text), start + 20)))
        text = text[:start] + draw(VALUES) + text[stop:]
    return text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda each: (
        st.lists(each, max_size=3)
        | st.dictionaries(
            st.sampled_from([part for key in KEYS for part in key.split(".")]),
            each,
            max_size=4,
        )
    ),
    max_leaves=8,
)
TEXTS = altered() | VALUES | JSON.map(lambda each: yaml.safe_dump(each))
CONTENTS = TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary()
# Pairs of a file's content and overrides: a valid recipe, or any content.
CASES = st.tuples(st.just(GOOD.encode()), OVERRIDES | PLAUSIBLE) | st.tuples(
    CONTENTS, st.just([]) | OVERRIDES
)


DEFAULTS = load_recipe({"data": {"kind": "none"}, "model": {}}).model_dump()


def check(path):
    numbers = itertools.count()

    def check_case(case):
        content, overrides = case
        path.write_bytes(content)
        try:
            recipe = load_recipe(path, overrides)
        except RecipeError as error:
            message = str(error)
            assert message.startswith((str(path), "--set")) and "\n" not in message
            assert len(message) <= 1000
            return "refused in one line"
        # A loaded recipe can be written and read again. Writing defaults takes long.
        values = recipe.model_dump()
        changed = {
            section: {
                key: value
                for key, value in values[section].items()
                if value != DEFAULTS[section].get(key)
            }
            for section in values
        }
        assert read_yaml(dump_yaml(changed).encode().decode()) == changed
        assert Recipe.model_validate(values) == recipe
        if next(numbers) % 20 == 0:
            dump_recipe(recipe, path)
            assert load_recipe(path) == recipe
        return "read"

    return check_case


@pytest.mark.fault("X05", "a recipe, or one line that names the file")
@pytest.mark.parametrize("count", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)])
def test_load_recipe_gives_a_recipe_or_one_line(tmp_path, record_property, count):
    outcomes = fuzz(CASES, check(tmp_path / "r.yaml"), count)
    record_property("happened", describe_outcomes(outcomes))
    # If one outcome were rare, the cases would not test much.
    assert min(outcomes["read"], outcomes["refused in one line"]) > count / 20


@pytest.mark.parametrize(
    "override", ["data.kind=[]", "data.kind={}", "data=[]", "data=!!set [a]"]
)
def test_load_recipe_rejects_inputs_found_by_fuzzing(tmp_path, override):
    check(tmp_path / "r.yaml")((GOOD.encode(), [override, "a=1"]))
