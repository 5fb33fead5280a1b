"""LibreTranslate's API over HTTP, with a model that reverses the words of a text."""

import urllib.error

import numpy as np
import pytest
from fake_model import FakeModel, ask, served

from keras_transformer.decoding.warnings import TRUNCATED
from keras_transformer.serving.libretranslate import parse_languages, parse_model_name
from keras_transformer.serving.limits import Limits

LIMITS = Limits(max_texts=5, queue_size=20, max_text_length=200, max_batch_size=4)
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
MULTIPART = {"Content-Type": "multipart/form-data; boundary=x"}
NESTED = "--x\nContent-Type: multipart/mixed; name=q; boundary=x\n\n" * 2000
PAIR = {"source": "en", "target": "de"}


class NamedModel(FakeModel):
    """A `FakeModel` with languages in its name, which reports truncated texts."""

    name = "words_en_de"

    def run(self, signature, columns):
        outputs = super().run(signature, columns)
        truncated = np.array([len(text) > 100 for text in columns["inputs"]])
        return {"truncated": truncated, **outputs}


@pytest.fixture(scope="module")
def port():
    with served(NamedModel(), LIMITS) as port:
        yield port


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ({"q": "a b"}, {"translatedText": "b a"}),
        ({"q": "a b", "source": "auto"}, {"translatedText": "b a"}),
        ({"q": ["a b", "", "c d"]}, {"translatedText": ["b a", "", "d c"]}),
        (
            {"q": "a b", "alternatives": 1, "api_key": "x"},
            {"translatedText": "b a", "alternatives": ["b a!"]},
        ),
        (
            {"q": ["a b"], "alternatives": 1, "format": "html"},
            {"translatedText": ["b a"], "alternatives": [["b a!"]]},
        ),
        (
            {"q": "<p>a b</p>\n<pre>c d</pre> e f ", "format": "html"},
            {"translatedText": "<p>b a</p>\n<pre>c d</pre> f e "},
        ),
        (
            {"q": "<hr>ä ö<script>x y", "format": "html"},
            {"translatedText": "<hr>ö ä<script>x y"},
        ),
        (
            {"q": "a " * 60},
            {
                "translatedText": " ".join(["a"] * 60),
                "warnings": [TRUNCATED],
            },
        ),
    ],
)
def test_translate(port, query, answer):
    assert ask(port, "POST", "/translate", {**PAIR, **query})[::2] == (200, answer)


@pytest.mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        ({**PAIR, "q": 1}, {}, 400, "'q': Input should be a valid string"),
        ({**PAIR, "q": []}, {}, 400, "Input inputs must be a non-empty list"),
        (PAIR, {}, 400, "'q': Field required"),
        ({"q": "a", "source": "en"}, {}, 400, "'target': Field required"),
        (
            {**PAIR, "q": "a", "format": "pdf"},
            {},
            400,
            "'format': Input should be 'text' or 'html'",
        ),
        (
            {**PAIR, "q": "a", "target": "fr"},
            {},
            400,
            "The model translates only from en to de",
        ),
        (
            {**PAIR, "q": "a", "alternatives": 3},
            {},
            400,
            "words_en_de: cannot return an n-best list of 4",
        ),
        (
            {**PAIR, "q": "a", "glossary": [["a", "b"]]},
            {},
            400,
            "words_en_de: cannot use a glossary. Export the model with --constraints",
        ),
        (
            {**PAIR, "q": "a", "glossary": [["a", "b", ""], ["a"]]},
            {},
            400,
            "glossary: row 2: must have a source phrase, a tab",
        ),
        (
            {**PAIR, "q": "a", "glossary": [["a", "b\n\nc"]]},
            {},
            400,
            "glossary: row 1: columns must not contain tabs or line breaks",
        ),
        ({**PAIR, "q": "a", "glossary": [[" "]]}, {}, 400, "glossary: contains no"),
        (
            {**PAIR, "q": "a", "glossary": [["a", "b"]] * 1001},
            {},
            400,
            "'glossary': List should have at most 1000 items",
        ),
        ({**PAIR, "q": "a <keep> b"}, {}, 400, "line 1: <keep> and </keep> must"),
        ({**PAIR, "q": ["a"] * 6}, {}, 400, "A request must have at most 5 rows."),
        ({**PAIR, "q": "a" * 201}, {}, 400, "A text must have at most 200 characters."),
        ("[", {}, 400, "Invalid JSON"),
        ("q=%ff", FORM, 400, "'source': Field required"),
        (b"\xff", FORM, 400, "The body must be UTF-8"),
        (NESTED, MULTIPART, 400, "Each part of a form must be a field"),
        ("q=a", {**FORM, "Origin": "http://a.b"}, 415, "Content-Type must be"),
        ("q=a", {"Content-Type": "text/plain"}, 415, "Content-Type must be"),
    ],
)
def test_refused_queries(port, body, headers, status, message):
    found, _, answer = ask(port, "POST", "/translate", body, headers)
    assert found == status and answer["error"].startswith(message)
    assert "\n" not in answer["error"]


@pytest.mark.parametrize("line_end", ["\r\n", "\n"])
def test_multipart_forms(port, line_end):
    rows = [
        f'--x\nContent-Disposition: form-data; name="{name}"\n\n{text}\n'
        for name, text in {**PAIR, "q": "ä b"}.items()
    ]
    headers = {**MULTIPART}
    body = "".join([*rows, "--x--\n"]).replace("\n", line_end).encode()
    found = ask(port, "POST", "/translate", body, headers)
    assert found[::2] == (200, {"translatedText": "b ä"})
    headers["Origin"] = "http://a.b"
    assert ask(port, "POST", "/translate", body, headers)[0] == 415


def test_client_library(port):
    client = pytest.importorskip("libretranslatepy", reason="no libretranslatepy")
    api = client.LibreTranslateAPI(f"http://127.0.0.1:{port}")
    assert api.translate("ä ö & c", "en", "de") == "c & ö ä"
    assert api.languages() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    with pytest.raises(urllib.error.HTTPError, match="501"):
        api.detect("a b")
    status, _, answer = ask(port, "POST", "/detect", {"q": "a"})
    assert (status, answer["error"]) == (501, "This server does not detect languages")


def test_unknown_languages():
    with served(FakeModel(), LIMITS) as port:
        for method, path in (("GET", "/languages"), ("POST", "/translate")):
            status, _, answer = ask(port, method, path, {**PAIR, "q": "a"})
            assert status == 501 and "--languages en,de" in answer["error"]


def test_languages_of_names():
    pair = [("en", "English"), ("de", "German")]
    for name in ("tatoeba_en_de", "opus-mt-en-de", "en_de"):
        assert parse_model_name(name) == pair
    for name in ("mine", "a_en_xx", "en", "phrases", "ten_de_"):
        assert parse_model_name(name) is None
    assert parse_languages("pt-BR,zh")[0] == ("pt-BR", "Portuguese (Brazil)")
    assert parse_languages("en") is None and parse_languages("en,de,fr") is None


def test_predictions_have_warnings(port):
    path = "/v1/models/words_en_de:predict"
    texts = ["a b", "a " * 60]
    for signature in ("serving_default", "translate_n_best"):
        body = {"signature_name": signature, "inputs": texts}
        outputs = ask(port, "POST", path, body)[2]["outputs"]
        assert outputs["warnings"] == [[], [TRUNCATED]]
    assert "warnings" not in ask(port, "POST", path, {"inputs": ["a"]})[2]["outputs"]
    assert parse_languages("en=eng_Latn,de") is None


def test_languages_of_a_multilingual_model():
    class Model(NamedModel):
        def run(self, signature, columns):
            self.received = columns["inputs"]
            return super().run(signature, columns)

    model, languages = Model(), parse_languages("en=eng_Latn,de=deu_Latn,fr=fra_Latn")
    with served(model, LIMITS, languages=languages) as port:
        for source, target, prefix in (
            ("en", "fr", b">>eng_Latn fra_Latn<< "),
            ("auto", "de", b">>deu_Latn<< "),
        ):
            query = {"q": ["a b"], "source": source, "target": target}
            assert ask(port, "POST", "/translate", query)[0] == 200
            assert model.received == [prefix + b"a b"]
        query["target"] = "es"
        status, _, answer = ask(port, "POST", "/translate", query)
        assert status == 400
        assert answer["error"] == "The languages are en, de, fr. Received: es"
        found = ask(port, "GET", "/languages")[2]
        assert found[1] == {"code": "de", "name": "German", "targets": ["en", "fr"]}
