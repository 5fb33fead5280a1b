"""Normalization of texts, and what is stored about it with a tokenizer."""

import pickle
import random
import re
import sys
import unicodedata

import pytest
import tensorflow as tf

from keras_transformer.errors import DataError
from keras_transformer.pipelines import (
    CoreOpsBytePairTokenizer,
    SeparateTokenizers,
    load_tokenizer,
    train_tokenizer,
)
from keras_transformer.pipelines.tokenizers.bpe_extension import extend_bpe
from keras_transformer.pipelines.tokenizers.normalization import (
    TextSettings,
    compose,
    normalize,
)

SENTENCES = ["der Hund läuft", "ein Hund und noch ein Hund", "die Katze schläft"]
NOISY = "\t der\u00a0Hund \u3000 la\u0308u\u00adft\u200b\n"
CLEAN = "der Hund läuft"
SETTINGS = TextSettings(normalization=True, sentences=True, scripts=["Latin"])
# Signs and joiners that Unicode counts among the format characters.
KEPT = re.compile(
    "[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u200c\u200d\U00010000-\U0010ffff]"
)


def test_texts_are_composed_like_unicode():
    rng = random.Random(1)
    letters = [
        *(chr(code) for code in range(0x1E000) if not 0xD800 <= code < 0xE000),
        *map(chr, range(0x2F800, 0x2FA1E)),
    ]
    marks = [each for each in letters if unicodedata.combining(each)]
    composed = [each for each in letters if unicodedata.decomposition(each)]
    texts = ["", "abc", "e\u0323\u0302", "\u00ea\u0323", "\u0344", "\u1112\u1161\u11ab"]
    for _ in range(3000):
        kinds = rng.choices([letters, marks, composed, "aeouAEU"], k=rng.randrange(12))
        text = "".join(map(rng.choice, kinds))
        texts.append(unicodedata.normalize(rng.choice(["NFC", "NFD"]), text))
        texts.append(text)
    found = tf.function(compose)(tf.constant([text.encode() for text in texts]))
    expected = [unicodedata.normalize("NFC", text) for text in texts]
    assert [text.decode() for text in found.numpy()] == expected


def test_white_space_and_invisible_characters():
    spaces, removed = [], []
    for code in range(sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        if chr(code).isspace() or category in ("Zs", "Zl", "Zp"):
            spaces.append(chr(code))
        elif category in ("Cc", "Cf") and not KEPT.fullmatch(chr(code)):
            removed.append(chr(code))
    assert normalize(["".join(spaces), "".join(removed)]).numpy().tolist() == [b"", b""]
    lines = [f"{each}a{each}\t b{each}" for each in (*spaces, *removed)]
    expected = [b"a b"] * len(lines)
    assert normalize(lines).numpy().tolist() == expected


@pytest.mark.parametrize("kind", ["bpe", "word_piece", "separate"])
def test_settings_are_stored(kind, tmp_path):
    def train(size, text, line):
        trained = "bpe" if kind == "separate" else kind
        return train_tokenizer(trained, [*SENTENCES, line], size, text=text)

    plain, tokenizer = train(300, None, CLEAN), train(300, SETTINGS, NOISY)
    assert tokenizer.pieces() == plain.pieces()
    assert plain.tokenize([NOISY]).to_list() != plain.tokenize([CLEAN]).to_list()
    if kind == "separate":
        tokenizer = SeparateTokenizers(train(290, SETTINGS, CLEAN), tokenizer)
    tokenizer.save(tmp_path)
    ids = tokenizer.tokenize([CLEAN]).to_list()
    copy = pickle.loads(pickle.dumps(tokenizer))
    for each in (tokenizer, load_tokenizer(tmp_path), copy):
        assert each.text == SETTINGS and each.fingerprint() == tokenizer.fingerprint()
        assert each.tokenize([NOISY, ""]).to_list() == [*ids, []]
        noisy, clean = each.target.tokenize([NOISY, CLEAN]).to_list()
        assert noisy == clean
    if kind == "bpe":
        core = CoreOpsBytePairTokenizer(tokenizer)
        assert core.tokenize([NOISY]).to_list() == ids
        assert tokenizer.sample([NOISY], 0.0, 1).to_list() == ids
        extended = [extend_bpe(tokenizer, [line] * 2, 5) for line in (NOISY, CLEAN)]
        assert extended[0].replaced == extended[1].replaced
        assert extended[0].tokenizer.text == SETTINGS
    for path in tmp_path.rglob("text.json"):
        path.unlink()
    loaded = load_tokenizer(tmp_path)
    assert loaded.text is None and loaded.fingerprint() != tokenizer.fingerprint()


@pytest.mark.parametrize(
    "content",
    [
        *("{", '{"normalization": 1}', '{"other": true}'),
        *('{"scripts": ["latin"]}', '{"scripts": ["Latin", "Klingon"]}'),
    ],
)
def test_damaged_settings_are_refused(content, tmp_path):
    train_tokenizer("bpe", SENTENCES, 300, text=SETTINGS).save(tmp_path)
    (tmp_path / "text.json").write_text(content)
    with pytest.raises(DataError) as caught:
        load_tokenizer(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'text.json'}: ")
    if "scripts" in content:
        assert "'scripts' is wrong: must be scripts such as Latin," in message
