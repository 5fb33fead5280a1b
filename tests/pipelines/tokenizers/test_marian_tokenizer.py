"""`MarianTokenizer` against the transformers library, in a graph, and on disk.

Each side of a Marian model has a splitter (a SentencePiece model, or `None` for spaces)
and a vocabulary that maps its pieces to ids.
"""

import json
import pathlib

import pytest
import tensorflow as tf
from toolkit_models import HOSTILE_TEXTS, PIECES, splitter

from keras_transformer.errors import DataError
from keras_transformer.pipelines import load_tokenizer
from keras_transformer.pipelines.tokenizers.marian import MarianTokenizer, languages

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "interop"
WORDS = ("</s>", "<unk>", "a", "\u2028", "\\n", ">>fra<<")


@pytest.fixture(scope="module")
def tokenizer():
    side = (PIECES, splitter())
    return MarianTokenizer(side, side)


@pytest.fixture(scope="module")
def expected():
    """Ids and texts that the transformers library computed from `HOSTILE_TEXTS`."""
    return json.loads((FOLDER / "transformers_results.json").read_text())


def test_ids_and_texts_match_transformers(tokenizer, expected):
    assert tokenizer.tokenize(HOSTILE_TEXTS).to_list() == expected["ids"]
    target = tokenizer.target
    ids = target.tokenize(HOSTILE_TEXTS)
    # transformers treats ">>...<<" as a language prefix in targets, too. We do not.
    for found, theirs, text in zip(
        ids.to_list(), expected["target_ids"], HOSTILE_TEXTS, strict=True
    ):
        assert found == theirs or text.startswith(">>"), text
    rows = tf.ragged.constant(expected["target_ids"], tf.int32, ragged_rank=1)
    known = tf.ragged.boolean_mask(rows, rows != tokenizer.unknown_id)
    texts = [text.decode() for text in target.detokenize(known).numpy()]
    assert texts == expected["texts"]


def test_splitters_of_both_sides_stay_apart_in_a_saved_graph(tmp_path):
    # Only nmt_nfkc converts a full-width letter to a plain one.
    sides = [(PIECES, splitter(name)) for name in ("nmt_nfkc", "identity")]
    module, tokenizer = tf.Module(), MarianTokenizer(*sides)
    module.tokenizer = tokenizer
    module.tokenize = tf.function(
        lambda texts: [
            side.tokenize(texts).to_tensor() for side in (tokenizer, tokenizer.target)
        ],
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    texts = tf.constant(["\uff41 b"])
    expected = [ids.numpy().tolist() for ids in module.tokenize(texts)]
    assert expected[0] != expected[1]
    tf.saved_model.save(module, str(tmp_path / "m"))
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    assert [ids.numpy().tolist() for ids in loaded.tokenize(texts)] == expected


def test_special_ids_follow_the_vocabulary(tokenizer):
    size = len(PIECES)
    assert (tokenizer.end_id, tokenizer.unknown_id) == (0, 1)
    assert (tokenizer.pad_id, tokenizer.start_id) == (size, size + 1)
    assert tokenizer.vocabulary_size == size + 2
    # The characters "</s>" in a text do not become the end id.
    assert 0 not in tokenizer.tokenize(["a </s>"]).to_list()[0]
    row = [size + 1, 2, 4, 0, 5]
    assert tokenizer.detokenize([row]).numpy().tolist() == [b"ac"]


def test_added_pieces_differ_from_the_vocabularies():
    sides = (*WORDS, "<s>", "<s>_"), (*WORDS, "<pad>", "<unused0>", "b")
    tokenizer = MarianTokenizer(*((pieces, None) for pieces in sides))
    added = ["<pad>_", "<s>__"]
    assert tokenizer.pieces() == [*sides[0], "<unused0>_", *added]
    assert tokenizer.target.pieces() == [*sides[1], *added]


def test_texts_without_splitter_are_split_at_spaces(tmp_path):
    tokenizer = MarianTokenizer((WORDS, None), (WORDS, None))
    texts = ["a  \u2028 \\n", "a\u2028", " a </s> >>fra<< ", ""]
    ids = [[2, 3, 4], [1], [2, 1, 5], []]
    # "</s>" in a text is unknown (1), but the vocabulary contains ">>fra<<" (5).
    assert tokenizer.tokenize(texts).to_list() == ids
    assert tokenizer.detokenize([[2, 3, 0]]).numpy()[0].decode() == "a \u2028"
    assert b"".join(tokenizer.piece_bytes()[n] for n in ids[0]).decode() == (
        " a \u2028 \\n"
    )


@pytest.mark.parametrize("model", [True, False], ids=["splitter", "spaces"])
def test_target_language_precedes_each_text(model):
    """A language prefix of the vocabulary at the start of a text replaces it."""
    pieces = (*PIECES, ">>deu<<", "ab", "x")
    side = (pieces, splitter() if model else None)
    tokenizer = MarianTokenizer(side, side, language="fra")
    plain = MarianTokenizer(side, side)
    cases = {
        "ab": ">>fra<< ab",
        "": ">>fra<< ",
        "ab >>deu<< ab": ">>fra<< ab >>deu<< ab",
        ">>deu<< ab": ">>deu<< ab",
        ">>deu<<ab": ">>deu<< ab",
        ">>deu<<": ">>deu<<",
        ">>fra<< ab": ">>fra<< ab",
        # A prefix that the vocabulary lacks is text.
        ">>xyz<< ab": ">>fra<< >>xyz<< ab",
    }
    found = tokenizer.tokenize(list(cases)).to_list()
    assert found == plain.tokenize(list(cases.values())).to_list()
    first = [pieces[row[0]] for row in found]
    assert first == [*[">>fra<<"] * 3, *[">>deu<<"] * 3, *[">>fra<<"] * 2]
    unmarked = plain.tokenize(["ab"]).to_list()
    assert tokenizer.target.tokenize(["ab"]).to_list() == unmarked
    assert languages(PIECES) == ["fra"]
    with pytest.raises(DataError, match="no target language 'xyz'"):
        MarianTokenizer(side, side, language="xyz")


def test_opus_normalization_replaces_unusual_characters():
    words = (*WORDS, ",", "a.", "b", '"a', 'b"', "(b)", "...")
    tokenizer = MarianTokenizer((words, None), (words, None), "opus")
    cases = {
        **{"a。 b": ["a.", "b"], "\u201ca b\u201d": ['"a', 'b"'], "（b）": ["(b)"]},
        **{"a\u200bb": ["a", "b"], "  a\x07 ": ["a"], "…": ["..."], "a\ufeff": ["a"]},
    }
    found = tokenizer.tokenize(list(cases)).to_list()
    assert [[words[each] for each in row] for row in found] == list(cases.values())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda f: f.update(kind="bpe"), "not a Marian tokenizer"),
        (lambda f: f.update(prefixes=1), "not a Marian tokenizer"),
        (lambda f: f.update(language=["fra"]), "not a Marian tokenizer"),
        (lambda f: f.update(language="deu"), "no target language"),
        (lambda f: f.update(normalization="nfkc"), "normalization must be one of"),
        (lambda f: f["source"].update(pieces=["a", "a"]), "Received: 'a' twice"),
        (lambda f: f["source"].update(pieces=["a"]), "must contain </s>"),
        (lambda f: f["source"].update(pieces=[*PIECES, 7]), "not a Marian tokenizer"),
        (
            lambda f: f["source"].update(pieces=[*PIECES, "\ud800"]),
            "not a Marian tokenizer",
        ),
        (lambda f: f["source"].update(model="A"), "not a Marian tokenizer"),
        (lambda f: f["source"].update(model="AAAA"), "not a SentencePiece model"),
        (lambda f: f.pop("target"), "not a Marian tokenizer"),
    ],
)
def test_altered_file_is_refused(tokenizer, tmp_path, change, reason):
    tokenizer.save(tmp_path)
    path = tmp_path / "tokenizer.marian"
    facts = json.loads(path.read_text("utf-8"))
    # What both sides share is stored once.
    assert facts["target"] == {"pieces": None, "model": "source"}
    change(facts)
    path.write_text(json.dumps(facts))
    with pytest.raises(DataError, match=rf"tokenizer\.marian: .*{reason}"):
        load_tokenizer(tmp_path)
