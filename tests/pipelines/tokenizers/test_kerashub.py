"""The adapter for KerasHub's tokenizers matches KerasHub's results."""

import pytest
import tensorflow as tf
from tokenizer_kinds import (
    HUB_MAKERS,
    decode,
    hub_byte_pairs,
    hub_sentencepiece,
    hub_word_pieces,
    make,
)

from keras_transformer.errors import DataError
from keras_transformer.pipelines import KerasHubTokenizer

TEXTS = ["the quick brown fox", "ein Hund läuft schnell.", "hello world 42"]
ODD = ["", "  two  spaces ", "hé 猫 \u2581 😀", "\n\t", "<|endoftext|>x", "[SEP]"]


@pytest.fixture(scope="module", params=HUB_MAKERS)
def pair(request):
    """KerasHub's tokenizer, its special ids, and the adapter of the tokenizer."""
    make_hub, special_ids = HUB_MAKERS[request.param]
    return make_hub(), special_ids, make(request.param)


def renumber(hub, special_ids):
    """Returns {KerasHub's id: our id}. Ids 0 to 3 are special, the others follow."""
    ordinary = [i for i in range(hub.vocabulary_size()) if i not in special_ids]
    numbers = {each: 4 + place for place, each in enumerate(ordinary)}
    return numbers | {each: i for i, each in enumerate(special_ids) if each is not None}


def test_adapter_renumbers_kerashub_ids(pair):
    hub, special_ids, tokenizer = pair
    numbers = renumber(hub, special_ids)
    assert tokenizer.vocabulary_size == max(numbers.values()) + 1
    texts = TEXTS + ODD
    expected = [[numbers[each] for each in row] for row in hub.tokenize(texts)]
    # Special tokens that are spelled out in a text are removed.
    expected = [[each for each in row if each not in (0, 2, 3)] for row in expected]
    ids = tokenizer.tokenize(texts)
    assert ids.dtype == tf.int32
    assert ids.to_list() == expected
    pieces = tokenizer.pieces()
    assert [[pieces[each] for each in row] for row in expected[:3]] == [
        [hub.id_to_token(each) for each in row] for row in hub.tokenize(TEXTS)
    ]


def test_adapter_detokenizes_like_kerashub(pair):
    hub, _, tokenizer = pair
    texts = [*TEXTS, "", "hé 42."]
    expected = hub.detokenize(hub.tokenize(texts))
    ids = tokenizer.tokenize(texts)
    assert decode(tokenizer.detokenize(ids)) == expected
    written = tokenizer.piece_bytes()
    assert written[:4] == [b""] * 4
    spelled = [b"".join(written[each] for each in row) for row in ids.to_list()]
    assert [text.decode().strip() for text in spelled] == expected


def test_fingerprint_depends_on_vocabulary_and_special_ids():
    first, again = (KerasHubTokenizer(hub_byte_pairs()) for _ in range(2))
    assert first.fingerprint() == again.fingerprint()
    others = [
        KerasHubTokenizer(hub_byte_pairs(), end_id=261),
        KerasHubTokenizer(hub_word_pieces()),
        KerasHubTokenizer(hub_sentencepiece()),
    ]
    assert len({each.fingerprint() for each in (first, *others)}) == 4


def test_adapter_rejects_unsupported_tokenizers(tmp_path):
    import keras_hub

    with pytest.raises(ValueError, match="sequence_length=9"):
        KerasHubTokenizer(hub_sentencepiece(sequence_length=9))
    with pytest.raises(ValueError, match="dtype=string"):
        KerasHubTokenizer(hub_sentencepiece(dtype="string"))
    with pytest.raises(ValueError, match=r"\[999\]"):
        KerasHubTokenizer(hub_word_pieces(), end_id=999)
    tokenizer = KerasHubTokenizer(hub_word_pieces())
    with pytest.raises(DataError, match="save_to_preset"):
        tokenizer.save(tmp_path)
    tokenizer = KerasHubTokenizer(keras_hub.tokenizers.ByteTokenizer())
    assert tokenizer.detokenize(tokenizer.tokenize(["hé"]))[0] == "hé".encode()
    with pytest.raises(DataError, match="Received: ByteTokenizer"):
        tokenizer.piece_bytes()
