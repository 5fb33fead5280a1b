"""LibreTranslate's API, so that its clients can use the server.

https://docs.libretranslate.com
"""

import asyncio
import functools
import json
import re
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from babel import Locale, UnknownLocaleError
from fastapi import Request
from pydantic import BaseModel, Field, ValidationError

from keras_transformer.documents import Document
from keras_transformer.errors import DataError, ModelError
from keras_transformer.serving.limits import RequestError, invalid
from keras_transformer.serving.protocol import parse_request

# The end of a model's name, such as europarl_en_fr or opus-mt-en-de.
_NAME_END = re.compile(r"(?:^|.*[^a-z])([a-z]{2,3})[_-]([a-z]{2,3})")
# In the headers of a part that is a file, another form, or encoded.
_NO_FIELD = re.compile(rb"(?i);\s*filename|:\s*multipart/|:\s*(?:base64|quoted-p)")
_FORMS = ["application/x-www-form-urlencoded", "multipart/form-data"]


def parse_languages(text):
    """Reads the languages of a model from a text.

    Args:
        text: The codes of source and target, such as `"en,de"`. For a multilingual
            model, which translates between any two of its languages, two or more codes,
            each with the model's own, such as `"en=eng_Latn,de=deu_Latn"`.

    Returns:
        List of `(code, name)`, where the name is English, or of `(code, name,
        model_code)` for a multilingual model. `None` if the text is not of this form.

    Examples:
        >>> from keras_transformer import serving
        >>> serving.parse_languages("en,de")
        [('en', 'English'), ('de', 'German')]
        >>> serving.parse_languages("en=eng_Latn,de=deu_Latn")
        [('en', 'English', 'eng_Latn'), ('de', 'German', 'deu_Latn')]
    """
    rows = [each.split("=") for each in text.split(",")]
    try:
        names = [Locale.parse(row[0], sep="-").english_name for row in rows]
    except (UnknownLocaleError, ValueError):
        return None
    if len(rows) < 2 or {*map(len, rows)} not in ([{1}] * (len(rows) == 2) + [{2}]):
        return None
    return [(row[0], name, *row[1:]) for row, name in zip(rows, names, strict=True)]


def parse_model_name(name):
    """Like `parse_languages`, but for the name of a model."""
    found = _NAME_END.fullmatch(name)
    return parse_languages(",".join(found.groups())) if found else None


class _Query(BaseModel):
    """Body of a request to /translate."""

    q: str | list[str]
    source: str
    target: str
    format: Literal["text", "html"] = "text"
    alternatives: int = Field(0, ge=0)
    # Not in LibreTranslate: rows of a glossary, each a list of its columns.
    glossary: list[list[str]] = Field([], max_length=1000)


def _served_translator(model, batcher, limits, prefix):
    """Returns an `ExportedTranslator` whose rows share the server's batches.

    `prefix` selects the languages of a multilingual model.
    """
    from keras_transformer.export.exported_translator import ExportedTranslator

    def run(name, **inputs):
        columns = {key: each.numpy().tolist() for key, each in inputs.items()}
        columns["inputs"] = [
            prefix + each if each else each for each in columns["inputs"]
        ]
        return batcher.submit((model, name), columns, limits.request_timeout).result()

    signatures = {name: functools.partial(run, name) for name in model.inputs}
    batch_size = min(limits.max_batch_size, limits.queue_size)
    return ExportedTranslator.of_signatures(
        signatures, model.name, batch_size, model.limits
    )


def add_routes(app, limits, languages, read_body):
    """Adds the routes of LibreTranslate's API.

    `languages` is the result of `parse_languages`. `read_body(request, limits, types)`
    reads a body of one of several content types.
    """
    batcher, versions = app.state.batcher, app.state.versions
    # Each request waits in a thread for its batches.
    threads = ThreadPoolExecutor(64, "translate")

    def known_languages():
        if languages is None:
            raise RequestError(
                501,
                "The model's languages are unknown. Start the server with --languages, "
                "such as --languages en,de",
                "languages",
            )
        return languages

    is_multilingual = bool(languages) and len(languages[0]) == 3

    def prefix_of(source, target):
        """Checks the languages of a query, and returns the prefix of its texts."""
        (first, *_), (second, *_), *_ = known_languages()
        if not is_multilingual:
            if source not in (first, "auto") or target != second:
                raise invalid(f"The model translates only from {first} to {second}")
            return b""
        codes = {code: own for code, _, own in languages}
        # The model's default is the source language of texts that name none.
        for code in {source, target} - codes.keys() - {"auto"} or {"auto"} & {target}:
            raise invalid(f"The languages are {', '.join(codes)}. Received: {code}")
        pair = codes[target] if source == "auto" else f"{codes[source]} {codes[target]}"
        return f">>{pair}<< ".encode()

    @app.get("/languages")
    async def list_languages():
        (source, *_), *_ = known_languages()
        codes = [code for code, *_ in languages]
        targets = {source: codes[1:]}
        if is_multilingual:
            targets = {each: [code for code in codes if code != each] for each in codes}
        return [
            {"code": code, "name": name, "targets": targets.get(code, [])}
            for code, name, *_ in languages
        ]

    @app.post("/detect")
    async def detect():
        raise RequestError(501, "This server does not detect languages", "detect")

    @app.post("/translate")
    async def translate(request: Request):
        # A browser adds an origin to a form that a page of another site sends.
        types = ["application/json"] + _FORMS * ("origin" not in request.headers)
        query = _parse(await read_body(request, limits, types), request)
        prefix = prefix_of(query.source, query.target)
        texts = [query.q] if isinstance(query.q, str) else query.q
        body = json.dumps({"inputs": texts}).encode()
        parse_request(body, versions.model.inputs, limits)  # checks the limits
        served = versions.model, batcher, limits, prefix
        loop = asyncio.get_running_loop()
        try:
            ranked = await loop.run_in_executor(
                threads, _translate, served, texts, query
            )
        except (DataError, ModelError) as error:
            raise invalid(str(error)) from None
        answer = {"translatedText": [best.text for best, *_ in ranked]}
        if query.alternatives:
            answer["alternatives"] = [[each.text for each in row[1:]] for row in ranked]
        if any(best.warnings for best, *_ in ranked):
            answer["warnings"] = [best.warnings for best, *_ in ranked]
        is_single = isinstance(query.q, str)
        return {key: value[0] if is_single else value for key, value in answer.items()}


def _parse(body, request):
    """Returns the `_Query` in a body of JSON, or of a form."""
    content_type = request.headers["content-type"]
    try:
        if content_type.lower().startswith(_FORMS[0]):
            form = urllib.parse.parse_qs(body.decode(), keep_blank_values=True)
        elif content_type.lower().startswith(_FORMS[1]):
            form = _read_parts(body, content_type)
        else:
            return _Query.model_validate_json(body)
        return _Query.model_validate(
            {key: each if len(each) > 1 else each[0] for key, each in form.items()}
        )
    except UnicodeDecodeError:
        raise invalid("The body must be UTF-8") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = f"'{first['loc'][0]}': " if first["loc"] else ""
        raise invalid(f"{place}{first['msg']}") from None


def _read_parts(body, content_type):
    """Returns lists of the values of a multipart form by name, each a plain field."""
    boundary = re.search(r'(?i)boundary="?([^";]+)', content_type)
    if boundary is None:
        raise invalid("A multipart form must have a boundary")
    form = {}
    for part in (b"\n" + body).split(b"\n--" + boundary[1].strip().encode())[1:]:
        if part.startswith(b"--"):
            break
        # The line break before the next part belongs to none.
        head, *text = re.split(rb"\r?\n\r?\n", part.removesuffix(b"\r"), maxsplit=1)
        name = re.search(rb'(?i);\s*name="?([^";\r\n]+)', head)
        if name is None or _NO_FIELD.search(head):
            raise invalid("Each part of a form must be a field, without a file")
        form.setdefault(name[1].decode(), []).append(b"".join(text).decode())
    return form


def _translate(served, texts, query):
    """Returns a list of `Translation`s, best first, for each text."""
    from keras_transformer.decoding import Translation
    from keras_transformer.decoding.glossary import parse_glossary
    from keras_transformer.decoding.markup import n_best_marked
    from keras_transformer.decoding.spans import PROTECTED

    translator = _served_translator(*served)
    if query.glossary:
        terms = parse_glossary(query.glossary, "glossary", "glossary: row ")
        translator = translator.with_search(terms)
    num_results = 1 + query.alternatives
    if query.format == "text":
        return n_best_marked(translator, texts, num_results, "text", PROTECTED)
    # The mark says that the encoding is UTF-8, whatever the text declares.
    pages = [Document("q.html", f"\ufeff<p>{text}".encode()) for text in texts]
    pieces = [piece for page in pages for piece in page.texts]
    ranked = n_best_marked(translator, pieces, num_results, "html", PROTECTED)
    ranked = iter(ranked)

    def translations(page):
        found = [next(ranked) for _ in page.texts]
        warnings = tuple(each for best, *_ in found for each in best.warnings)
        for rank in range(max(map(len, found), default=1)):
            chosen = [row[min(rank, len(row) - 1)].text for row in found]
            text = page.replace(chosen).decode().removeprefix("\ufeff<p>")
            yield Translation(text, 0.0, warnings)

    return [list(translations(page)) for page in pages]
