"""Glossaries: their files, where terms occur, and translations that contain them."""

import pytest
from characters import ALPHABET, Characters, characters_model
from small_transformers import built
from tiny_export import SENTENCES

import keras_transformer as kt
from keras_transformer.decoding import BeamSearch, Term, Translator, read_glossary
from keras_transformer.decoding.glossary import Glossary, find_unmet
from keras_transformer.errors import DataError, ModelError
from keras_transformer.pipelines import train_tokenizer
from keras_transformer.pipelines.tokenizers.normalization import TextSettings


def test_glossary_is_read_from_a_file(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_bytes(
        b"\xef\xbb\xbfbike\tFahrrad | Rad\r\n\nPolish\tpolnisch\tcase\n"
        b"gear\tGang\t inside, case \nway out\tAusgang\t\n"
    )
    assert read_glossary(path) == [
        Term("bike", ("Fahrrad", "Rad"), place=f"{path}:1"),
        Term("Polish", ("polnisch",), match_case=True, place=f"{path}:3"),
        Term("gear", ("Gang",), True, False, f"{path}:4"),
        Term("way out", ("Ausgang",), place=f"{path}:5"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"bike", "must have a source phrase, a tab"),
        (b"bike\t", "must have a source phrase, a tab"),
        (b"\tRad", "must have a source phrase, a tab"),
        (b"bike\tRad|\tcase", "must have a source phrase, a tab"),
        (b"bike\tRad\tcase\tx", "must have a source phrase, a tab"),
        (b"bike\tRad\tcaze", "flags must be case or inside. Received: 'caze'"),
        (b"bike\tR\xe4der", "not UTF-8"),
        (b"bike\tR\rad", "columns must not contain tabs or line breaks"),
        (b"Gear\tGetriebe", "has the source phrase of {path}:1. Write all its"),
    ],
)
def test_bad_rows_name_file_and_line(tmp_path, line, message):
    path = tmp_path / "terms.tsv"
    path.write_bytes(b"gear\tGang\n" + line)
    with pytest.raises(DataError) as error:
        read_glossary(path)
    assert str(error.value).startswith(f"{path}:2: {message.format(path=path)}")
    path.write_text("\n \n")
    with pytest.raises(DataError, match="contains no terms"):
        read_glossary(path)


@pytest.mark.parametrize(
    ("phrases", "text", "found"),
    [
        (["bike", "bikes"], "Bikes, bike and BIKE.", ["bikes", "bike", "bike"]),
        (["a b", "b c d"], "a b c d", ["b c d"]),
        (["a b", "a", "b c d"], "a b c d", ["b c d", "a"]),
        (["new york", "new"], "a new New York", ["new york", "new"]),
        (["b b"], "b b b b b", ["b b", "b b"]),
        (["rad"], "Fahrrad, Rades, (rad)", ["rad"]),
        (["rad+inside"], "Fahrrad, Rades", ["rad+inside"] * 2),
        (["Polish+case", "polish"], "Polish polish", ["Polish+case", "polish"]),
        (["C++"], "C++ or C+++", ["C++", "C++"]),
        (["é"], "é e", ["é"]),
        ([f"aaaa{i:05}" for i in range(1000)], "a" * 5000, []),
        ([], "anything", []),
    ],
)
def test_longest_terms_are_found_first(phrases, text, found):
    terms = []
    for phrase in phrases:
        source, _, flag = phrase.partition("+") if phrase != "C++" else (phrase, 0, "")
        terms.append(Term(source, ("x",), flag == "case", flag != "inside"))
    assert [phrases[index] for index in Glossary(terms).find(text)] == found


@pytest.mark.parametrize(
    ("text", "protected", "in_capitals", "found"),
    [
        ("bike <keep>Bike</keep> bike", ["Bike"], False, ["bike", "bike"]),
        ("a bike at bike.org/bike", ["bike.org/bike"], False, ["bike"]),
        ("my bike.org", ["bike.org"], False, []),
        ("bike", ["ike"], False, []),
        ("bike", ["bike", "car"], False, []),
        ("polish nato bike", [], True, ["NATO+case", "bike"]),
        ("polish nato bike", [], False, ["bike"]),
        ("İbike bike İ", [], False, ["bike"]),
    ],
)
def test_protected_parts_and_capitals(text, protected, in_capitals, found):
    terms = [Term("bike", ("x",)), Term("NATO", ("x",), True)]
    terms.append(Term("Polish", ("x",), True))
    indices = Glossary(terms).find(text, protected, in_capitals)
    names = [
        terms[index].source + "+case" * terms[index].match_case for index in indices
    ]
    assert names == found


@pytest.mark.parametrize(
    ("phrases", "text", "unmet"),
    [
        ([("Rad", "Fahrrad")], "Ein FAHRRAD.", []),
        ([("Rad", "Fahrrad")] * 2, "Fahrrad", [("Rad", "Fahrrad")]),
        ([("Rad",), ("Hund",), ("Rad",)], "Rad, Rad", [("Hund",)]),
        ([("a.b",)], "acb", [("a.b",)]),
        ([("Rad",)] * 2, "Radfahrer mit Rad-Helm", [("Rad",)]),
        ([("京都",), ("a-",)], "京都市 a-b", []),
        ([("แมว",)], "แมวดำ", []),
        ([("Rad", "Rad fahren")], "Rad fahrens", []),
        ([("Rad", "Rad fahren")] * 2, "Rad fahren, Rad fahrens", []),
    ],
)
def test_unmet_phrases_are_counted(phrases, text, unmet):
    assert find_unmet(phrases, text) == unmet


class SpelledCharacters(Characters):
    def piece_bytes(self):
        return [b""] * 4 + [each.encode() for each in ALPHABET]


def test_translations_contain_the_terms_of_their_sources():
    warned = []
    model = characters_model()
    plain = Translator(
        *(model, SpelledCharacters()),
        search=BeamSearch(3, extra_length=4),
        warn=lambda *warning: warned.append(warning),
    )
    lines = ["bad cafe.", "abc", "gag\nbad cafe. fed! bad cab.", "a!b", ""]
    expected = plain.n_best(lines, 2)
    terms = [Term("bad", ("gg", "ee")), Term("bad cab", ("cabbage",))]
    found = plain.with_search(glossary=terms).n_best(lines, 2)
    for index in (1, 3, 4):
        assert found[index] == expected[index]
    for best in found[0]:
        assert find_unmet([("gg", "ee")], best.text) == []
    _, second = found[2][0].text.split("\n")
    assert find_unmet([("cabbage",), ("gg", "ee")], second) == []
    # The same translator without a glossary, and a required phrase besides the terms.
    assert (
        plain.with_search(glossary=terms).with_search(glossary=()).n_best(lines, 2)
        == expected
    )
    both = plain.with_search(glossary=terms).n_best(lines[:1], required=[["fff"]])
    assert "fff" in both[0][0].text and "lacks" not in str(both[0][0].warnings)
    with pytest.raises(ModelError, match=r"terms\.tsv:3: .*'xyz'"):
        place = "terms.tsv:3"
        plain.with_search(glossary=[*terms, Term("a", ("b", "xyz"), place=place)])
    with pytest.raises(ModelError, match=r"tsv:3: .* spell the source phrase 'xy'"):
        plain.with_search(glossary=[*terms, Term("xy", ("b",), place=place)])


def test_terms_are_spelled_like_their_text(tiny_model):
    text = TextSettings(normalization=True, capitals=True)
    tokenizer = train_tokenizer("bpe", SENTENCES, 300, text=text)
    translator = kt.Translator(tiny_model[0], tokenizer, search=BeamSearch(2))
    terms = [Term("Hund  la\u0308uft", ("Kat\u200bze",)), Term("DIE", ("noch",), True)]
    lines = ["der Hund läuft", "DER HUND LÄUFT UND DIE", "die Katze"]
    found = translator.with_search(glossary=terms).n_best(lines, 1)
    for (best,), words in zip(found, ("katze", "katze noch", ""), strict=True):
        assert all(word in best.text.lower() for word in words.split())
        assert "lacks" not in str(best.warnings)
    assert "noch" not in found[2][0].text
    # Phrases must not be forbidden, neither whole words nor beginnings of words.
    plain = translator.with_search(forbidden=["Hund", "Kat*"])
    for phrase in ("Hund", "Katze", "der Hund"):
        with pytest.raises(ModelError, match=f"{phrase}'.* contain a forbidden phrase"):
            plain.n_best(["a"], required=[[phrase]])
    ((best,),) = plain.n_best(["der Hund"], 1, required=[[["Katze", "noch ein"]]])
    assert "noch ein" in best.text
    steered = translator.with_search(glossary=[Term("a", ("Hund",), place="t: 1")])
    with pytest.raises(ModelError, match=r"^t: 1: .* phrase 'Hund'"):
        steered.with_search(forbidden=["Hund"])


def test_terms_in_spans_and_tags_do_not_count(tiny_model):
    terms = [Term("Hund", ("noch noch noch",))]
    translator = kt.Translator(*tiny_model, search=BeamSearch(2), glossary=terms)
    lines = ["die <keep>Hund</keep>", "die https://x.org/Hund", "der Hund"]
    lines.append('die <b title="Hund">Katze</b>')
    found = translator.translate(lines)
    assert ["noch noch noch" in each for each in found] == [False, False, True, False]


def test_terms_beyond_the_maximum_length_are_reported():
    sizes = {"positions": "learned", "max_length": 6}
    model, warned = built(Characters.vocabulary_size, 1, 24, 40, **sizes), []
    translator = Translator(
        *(model, Characters()),
        search=BeamSearch(2),
        glossary=[Term("abc", ("abcdefga", "bcdefgab"))],
        warn=lambda *warning: warned.append(warning),
    )
    ((best,),) = translator.n_best(["abc"], 1)
    message = "the translation lacks 'abcdefga' or 'bcdefgab' for 'abc'"
    assert message in best.warnings and (0, message) in warned
