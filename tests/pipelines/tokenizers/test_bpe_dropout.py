"""BPE-dropout, against the merges and the sampled segmentations of SentencePiece.

BPE-dropout skips each merge with a given probability, so that a text has many
segmentations.
"""

import collections
import hashlib
import os
import subprocess
import sys
from concurrent import futures

import numpy as np
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.errors import DataError
from keras_transformer.pipelines import train_tokenizer
from keras_transformer.pipelines.lines import read_lines
from keras_transformer.pipelines.sources.phrases import phrases
from keras_transformer.pipelines.tokenizers import bpe_dropout
from keras_transformer.pipelines.tokenizers.bpe_dropout import BpeDropout, Merges

ODD = [
    "",
    " ",
    "  a  b ",
    "e\u0301",
    "漢字かな交じり文",
    "😀😀",
    "\u200d",
    "aaaaaaaaaaa",
    "a\tb",
]


@pytest.fixture(scope="module")
def lines():
    pairs = phrases(size=2500, seed=3, held_out=20).train
    return [text for pair in pairs for text in pair] + ODD


@pytest.fixture(scope="module")
def tokenizer(lines):
    return train_tokenizer("bpe", lines, 700)


@pytest.fixture(scope="module")
def processor(tokenizer):
    return sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)


def model_of(pieces):
    """Returns a BPE model with these pieces, in order of merge priority."""
    model = sentencepiece_model_pb2.ModelProto()
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
    special = [("<pad>", kinds.CONTROL), ("<unk>", kinds.UNKNOWN)]
    special += [("<s>", kinds.CONTROL), ("</s>", kinds.CONTROL)]
    special += [(f"<0x{byte:02X}>", kinds.BYTE) for byte in range(256)]
    for number, (piece, kind) in enumerate(
        [*special, *((piece, kinds.NORMAL) for piece in pieces)]
    ):
        model.pieces.add(piece=piece, score=-number, type=kind)
    model.trainer_spec.model_type = model.trainer_spec.BPE
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.pad_id, model.trainer_spec.unk_id = 0, 1
    model.trainer_spec.bos_id, model.trainer_spec.eos_id = 2, 3
    model.trainer_spec.vocab_size = len(model.pieces)
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.remove_extra_whitespaces = False
    return model.SerializeToString()


def test_merges_without_dropout_match_sentencepiece(tokenizer, processor, lines):
    merges = Merges(tokenizer.model)
    rows = processor.encode(lines)
    assert len(rows) > 4000
    for ids in rows:
        symbols = merges.symbols(ids)
        # Each of the `tried` merges replaces two symbols by one.
        found, tried = merges.split(symbols)
        assert found.tolist() == ids
        assert tried == len(symbols) - merges.num_pieces(ids)


def test_merges_match_sentencepiece_on_real_text(data_dir):
    path = data_dir / "multi30k" / "train.de.gz"
    lines = [line for _, line in zip(range(6000), read_lines(path), strict=False)]
    model = train_tokenizer("bpe", lines, 3000).model
    merges = Merges(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    for ids in processor.encode(lines):
        assert merges.split(merges.symbols(ids))[0].tolist() == ids


def test_symbols_of_the_vocabulary_are_not_merged():
    symbols = ["(NP", "(NPX", "NN"]
    text = ["(NP (NPX aaa NN ) (NPXY NNN ab", "(N P) xNN (NPX"]
    tokenizer = train_tokenizer("bpe", text * 9, 287, symbols=symbols)
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    merges = Merges(tokenizer.model)
    # Ids of the symbols.
    fixed = {processor.piece_to_id("\u2581" + symbol) for symbol in symbols}
    for ids in processor.encode(text):
        found, tried = merges.split(merges.symbols(ids))
        assert found.tolist() == ids
        # With all merges skipped, each symbol is still one id.
        none, _ = merges.split(merges.symbols(ids), range(tried))
        assert len(none) > len(ids)
        assert [each for each in none if each in fixed] == [
            each for each in ids if each in fixed
        ]


def sampled(processor, texts, dropout):
    """Returns segmentations of SentencePiece, the same ones in every run.

    Its seed applies to the first draw of a thread.
    """
    sentencepiece.set_random_generator_seed(1)
    with futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(
            lambda: [
                tuple(processor.encode(text, enable_sampling=True, alpha=dropout))
                for text in texts
            ]
        ).result()


@pytest.mark.parametrize("dropout", [0.05, 0.3])
def test_segmentations_are_as_frequent_as_in_sentencepiece(
    tokenizer, processor, dropout
):
    """The frequency of each segmentation agrees, within four standard deviations."""
    count = 3000
    for word in ("Septemberabend", "Kilometerstunden", "pro"):
        ours, lengths = BpeDropout(tokenizer.model).sample([word] * count, dropout, 5)
        rows = np.split(ours, np.cumsum(lengths)[:-1])
        found = collections.Counter(tuple(row.tolist()) for row in rows)
        expected = collections.Counter(sampled(processor, [word] * count, dropout))
        assert len(found) > 1
        for ids in found | expected:
            mean = (found[ids] + expected[ids]) / 2
            assert abs(found[ids] - expected[ids]) < 4 * (2 * mean) ** 0.5 + 2


def test_sampled_texts_are_as_long_as_in_sentencepiece(tokenizer, processor, lines):
    """Totals of eight draws, since a single one varies by about a percent."""
    ours = 0
    for seed in range(8):
        ids, lengths = BpeDropout(tokenizer.model).sample(lines, 0.1, seed)
        assert len(ids) == lengths.sum() > 0
        ours += len(ids)
    theirs = sum(map(len, sampled(processor, lines * 8, 0.1)))
    assert ours == pytest.approx(theirs, rel=0.01)
    assert ours > 8 * 1.1 * sum(map(len, processor.encode(lines)))


@pytest.mark.parametrize("spans", [False, True])
def test_ids_follow_from_the_seed_alone(tokenizer, lines, monkeypatch, spans):
    """Ids depend neither on earlier calls nor on which splits of words are cached."""
    model = tokenizer.model
    if spans:
        # The piece "n▁a" spans two words.
        model = model_of([*"\u2581abne", "en", "\u2581a", "n\u2581a", "an"])
    first = BpeDropout(model).sample(lines, 0.2, 7)
    sampler = BpeDropout(model)
    sampler.sample(lines[::-1], 0.4, 7)
    for limit in ("_MAX_SPLITS", "_MAX_CACHED_SYMBOLS", None):
        again = sampler.sample(lines, 0.2, 7)
        for one, other in zip(first, again, strict=True):
            np.testing.assert_array_equal(one, other)
        if limit:
            monkeypatch.setattr(bpe_dropout, limit, 0)
    assert sampler.sample(lines, 0.2, 8)[0].tolist() != first[0].tolist()


PIECES = [*"\u2581abenrst", "en", "er", "st", "\u2581a", "te", "sten", "ste", "\u2581b"]
TEXT = ["aber neben besten", "", "raten  er testen 漢", "a er", "besten testen"]
# Ids that `sample` returned when this test was written. They must never change.
IDS = [
    [271, 262, 263, 265, 260, 264, 263, 262, 268, 275, 263, 273],
    [],
    [
        *(260, 265, 261, 267, 268, 260, 260, 263, 265),
        *(260, 267, 263, 274, 264, 260, 234, 192, 166),
    ],
    [260, 261, 260, 263, 265],
    [275, 263, 266, 267, 268, 260, 272, 270, 263, 264],
]


def test_sample_returns_the_recorded_ids():
    """If the ids changed, a resumed run would train on other data."""
    ids, lengths = BpeDropout(model_of(PIECES)).sample(TEXT, 0.5, 11)
    rows = np.split(ids, np.cumsum(lengths)[:-1])
    assert [row.tolist() for row in rows] == IDS


def test_other_models_are_rejected():
    model = sentencepiece_model_pb2.ModelProto.FromString(model_of(PIECES))
    model.trainer_spec.model_type = model.trainer_spec.UNIGRAM
    with pytest.raises(DataError, match=r"tokenizer\.dropout must be 0 unless"):
        Merges(model.SerializeToString())


@pytest.mark.slow
def test_two_processes_draw_the_same_ids(tokenizer, lines, tmp_path):
    script = (
        "import sys, hashlib, pathlib\n"
        "from keras_transformer.pipelines import load_tokenizer\n"
        "lines = pathlib.Path(sys.argv[1], 'lines').read_text().split('|')\n"
        "ids = load_tokenizer(sys.argv[1]).sample(lines, 0.1, 3)\n"
        "print(hashlib.sha256(ids.flat_values.numpy().tobytes()).hexdigest())\n"
    )
    tokenizer.save(tmp_path)
    (tmp_path / "lines").write_text("|".join(lines))
    ids = tokenizer.sample("|".join(lines).split("|"), 0.1, 3).flat_values.numpy()
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "9"},
    )
    assert done.stdout.strip() == hashlib.sha256(ids.tobytes()).hexdigest()
