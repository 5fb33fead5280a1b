"""Recipes whose training text is a list of corpora, with weights and tags."""

import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from keras_transformer import pipelines
from keras_transformer.decoding.text import TextOptions, segment
from keras_transformer.errors import DataError, RecipeError
from keras_transformer.recipes import dump_recipe, load_recipe
from keras_transformer.runs import validation
from keras_transformer.runs.corpora import load_corpora, load_pairs, prepare_corpora

WORDS = {"a": ["one", "two", "three", "four"], "b": ["red", "green", "blue"]}
SIZES = {"a": 40, "b": 30}
WEIGHTS = {"a": 1.0, "b": 2.5}
TAGS = {"a": ">>fra<<", "b": "<BT>"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with two corpora, one in two files and one in a table."""
    folder = tmp_path_factory.mktemp("mixture")
    for name, words in WORDS.items():
        lines = [
            (f"{n} " + " ".join(np.roll(words, n)), f"{n} " + " ".join(words))
            for n in range(SIZES[name])
        ]
        for side, suffix in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in lines)
            (folder / f"{name}.{suffix}").write_text(text)
        table = "".join("\t".join(pair) + "\n" for pair in lines)
        (folder / f"{name}.tsv").write_text(table)
    return folder


@pytest.fixture
def corpora(folder):
    """The value of `data.train`: a list of two corpora."""
    files = {"source": f"{folder}/a.en", "target": f"{folder}/a.de"}
    table = f"{folder}/b.tsv"
    return [
        {**files, "tag": TAGS["a"], "validation": files},
        {
            **{"kind": "tsv", "train": table, "validation": table},
            **{"tag": TAGS["b"], "weight": WEIGHTS["b"]},
        },
    ]


def load(corpora, **sections):
    sections = {"tokenizer": {"vocabulary_size": 300}, **sections}
    return load_recipe({"data": {"train": corpora}, **sections})


@pytest.fixture
def prepared(corpora, tmp_path):
    """The recipe, its pairs, and the tokenizer and the corpora of the run."""
    recipe = load(corpora)
    pairs = load_pairs(recipe.data)
    prepare_corpora(recipe, tmp_path, pairs)
    return recipe, pairs, *load_corpora(recipe, tmp_path, pairs)


def test_recipe_with_a_list_of_corpora_round_trips(corpora, tmp_path):
    recipe = load(corpora)
    dump_recipe(recipe, tmp_path / "config.yaml")
    assert load_recipe(tmp_path / "config.yaml") == recipe
    assert recipe.data.kind == "mixed"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": 0}, "corpus 2: weight must be greater than 0. Received: 0"),
        ({"weight": -2.0}, "corpus 2: weight must be greater than 0. Received: -2.0"),
        ({"tag": "a b"}, "corpus 2: tag: must be one word, without spaces. Rec"),
        ({"tagg": "a"}, "corpus 2: unknown key tagg. Did you mean tag?"),
        ({"kind": "trees"}, "corpus 2: kind must be one of files, tsv, csv"),
        ({"kind": "files", "train": {}}, "corpus 2: source must be given"),
        ({"max_length": 9}, "corpus 2: unknown key max_length"),
        ({"noise": {"typos": 0.1}}, "corpus 2: unknown key noise"),
    ],
)
def test_error_of_a_corpus_names_its_number_and_key(corpora, changes, message):
    corpora[1] = {**corpora[1], **changes}
    with pytest.raises(RecipeError, match=r"^recipe: data") as error:
        load(corpora)
    assert message in str(error.value)


def test_stage_cannot_swap_tagged_pairs(corpora):
    with pytest.raises(RecipeError, match="bidirectional: true must be set"):
        load(corpora, training={"stages": [{"steps": 1, "bidirectional": True}]})


def test_tag_is_one_subword_in_front_of_each_source(prepared):
    _, pairs, tokenizer, corpora = prepared
    ids = tokenizer.tokenize([*TAGS.values()])
    assert ids.row_lengths().numpy().tolist() == [1, 1]
    rows = map(corpora["train"].pair, range(sum(SIZES.values())))
    first = [int(source[0]) for source, _ in rows]
    expected = np.repeat(ids.flat_values.numpy(), [*SIZES.values()])
    assert first == expected.tolist()
    # The text was measured without tags, which have capitals.
    assert tokenizer.text.sentences and not tokenizer.text.capitals
    assert pairs["train"].locate(SIZES["a"] + 2).endswith("b.tsv:2")


def test_tags_are_kept_by_each_sentence_of_a_text(prepared):
    *_, tokenizer, _ = prepared
    texts = [">>fra<< One two. Red blue.", "<BT>  Red.", "One two. Red blue."]
    options = TextOptions(sentences=True)
    split = tokenizer.split_language_prefix
    found = segment(tokenizer.tokenize, texts, 50, split, options)
    expected = [">>fra<< One two.", ">>fra<< Red blue.", "<BT> Red."]
    expected += ["One two.", "Red blue."]
    assert tokenizer.detokenize(found.ids).numpy().astype(str).tolist() == expected
    assert pipelines.train_tokenizer("bpe", ["a b"], 263).split_language_prefix is None


@pytest.mark.parametrize("is_keras", [False, True])
def test_weights_decide_how_often_pairs_are_drawn(prepared, is_keras):
    """Each resumed order is the rest of the original one, on both paths."""
    corpus = prepared[-1]["train"]

    def rows(start, count):
        if is_keras:
            batches = pipelines.TrainingBatches(corpus, 300, 5, start)
            found = [batches[number] for number in range(count)]
        else:
            dataset = pipelines.training_dataset(corpus, 300, 5, start)
            found = list(dataset.take(count))
        sources = [np.asarray(inputs["source_ids"]) for inputs, _ in found]
        return [tuple(row[row > 0].tolist()) for batch in sources for row in batch]

    steps = pipelines.steps_per_epoch(corpus, 300)
    if is_keras:
        steps = pipelines.TrainingBatches(corpus, 300).steps_per_epoch
    part_of = {tuple(corpus.pair(n)[0].tolist()): n >= 40 for n in range(70)}
    drawn = rows(0, 2 * steps)
    # Rows of padding, which fill the shapes for JAX, are empty.
    counts = Counter(row for row in drawn[: len(drawn) // 2] if row)
    parts = Counter(part_of[row] for row in filter(None, drawn))
    assert parts == {False: 2 * 40, True: 2 * 75}
    assert {counts[row] for row in part_of if not part_of[row]} == {1}
    assert {counts[row] for row in part_of if part_of[row]} == {2, 3}
    later = rows(steps + 1, steps - 1)
    assert drawn[-len(later) :] == later


def test_given_vocabulary_must_contain_the_tags(corpora, folder, tmp_path):
    texts = [(folder / f"{name}.en").read_text() for name in WORDS]
    given = pipelines.train_tokenizer("bpe", texts, 290, symbols=["<BT>"])
    given.save(tmp_path)
    settings = {"model": f"{tmp_path}/tokenizer.model", "vocabulary_size": 290}
    recipe = load(corpora, tokenizer=settings)
    with pytest.raises(DataError, match="no subword for the tag >>fra<<"):
        prepare_corpora(recipe, tmp_path / "run", load_pairs(recipe.data))
    assert not (tmp_path / "run").exists()


def test_validation_measures_each_corpus(prepared, monkeypatch):
    recipe, pairs, tokenizer, corpora = prepared
    monkeypatch.setattr(validation, "Translator", lambda *_, **__: None)
    monkeypatch.setattr(validation, "PairScorer", lambda *_: None)

    # Scores of each corpus: the rows and the negative log-probability of a token.
    logs = {SIZES["a"]: 1.5, SIZES["b"]: 4.0}
    num_tokens = {}

    def measure(_, dataset):
        labels = [labels.numpy() for _, labels in dataset]
        size = sum(map(len, labels))
        num_tokens[size] = sum(map(np.count_nonzero, labels))
        return math.exp(logs[size])

    monkeypatch.setattr(validation.evaluation, "perplexity", measure)
    recipe.training.validation_bleu = False
    arguments = SimpleNamespace(), tokenizer, corpora["validation"], pairs["validation"]
    validate = validation.build_validator(recipe, *arguments)
    found = validate()
    mean = sum(logs[size] * num_tokens[size] for size in logs)
    mean /= sum(num_tokens.values())
    expected = {"perplexity": mean, "perplexity_fra": 1.5, "perplexity_BT": 4.0}
    assert found == pytest.approx({n: math.exp(v) for n, v in expected.items()})


@pytest.mark.parametrize(
    ("tags", "names"),
    [
        (["<a>", None], ["a", "2"]),
        (["<a>", ">>a<<"], ["a1", "a2"]),
        (["2", None], ["1", "2"]),
        (["a1", "a", "<a>"], ["a1", "a2", "a3"]),
        (["a2", "a", "<a>"], ["1", "2", "3"]),
    ],
)
def test_each_corpus_has_its_own_name(tags, names):
    corpora = [{"kind": "tsv", "train": "a", "tag": tag} for tag in tags]
    assert [*load_pairs(load(corpora).data)["train"].names] == names
