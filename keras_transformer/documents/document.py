"""Documents, whose texts are translated while all their other bytes stay the same.

A function for each format finds the places of the texts in a document, and only these
places change. So markup, timestamps, keys and comments are never written anew.
"""

import codecs
import functools
import io
import pathlib
import re
import zipfile

from keras_transformer.documents.docx import find_docx_texts, read_docx
from keras_transformer.documents.html import find_html_texts
from keras_transformer.documents.markdown import find_markdown_texts
from keras_transformer.documents.strings import (
    find_json_texts,
    find_po_texts,
    find_subtitles,
)
from keras_transformer.documents.xml import pairs_finder
from keras_transformer.errors import DataError

_LETTER = re.compile(r"[^\W\d_]")
_TIMESTAMP = re.compile(r"\s*\d+-\d+-\d+T[\d:.]+(?:Z|[+-][\d:]+)?\s*")
# Byte order marks, which remain as the first character.
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_DECLARED = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?([\w.:-]+)""")


class Document:
    """A document: .html, .md, .srt, .vtt, .po, .xlf, .tmx, .docx or .json.

    Args:
        path: Path of the document.
        data: Content, bytes. If `None`, the file is read.
        attributes: Whether the attributes `alt` and `title` are texts, too. For HTML.

    Attributes:
        texts: List of str, the texts to translate, with inline markup.
        line_numbers: The line of each text, from 1. For .docx, of the XML file in it.
        syntax: The inline markup, an argument of `decoding.translate_marked`.

    Raises:
        DataError: If the suffix is none of these, or the content is not of the format.
        OSError: If the file cannot be read.
        ValueError: If `attributes` is true, and the format is not HTML.

    Examples:
        >>> page = kt.documents.Document("page.html", b"<h1>News</h1>It <b>rains</b>.")
        >>> page.texts
        ['News', 'It <b>rains</b>.']
        >>> page.replace(["Nouvelles", "Il <b>pleut</b>."])
        b'<h1>Nouvelles</h1>Il <b>pleut</b>.'
    """

    def __init__(self, path, data=None, attributes=False):
        path = pathlib.Path(path)
        self._data = path.read_bytes() if data is None else data
        suffix = document_format(path)
        if suffix is None:
            raise DataError(
                f"{path}: must end in {', '.join(FORMATS)}. Translate other files as "
                "plain text, line by line"
            )
        self.syntax, find_texts = FORMATS[suffix]
        if attributes:
            if self.syntax != "html":
                raise ValueError(f"`attributes` needs HTML. Received: path={path}.")
            find_texts = functools.partial(find_html_texts, has_attributes=True)
        self._is_archive = suffix == ".docx"
        files = read_docx(self._data, path) if self._is_archive else {"": self._data}
        self._files = {}
        self.texts, self.line_numbers = [], []
        for name, content in files.items():
            text, encoding = _decode(content, path)
            found = [one for one in find_texts(text, path) if _is_language(one.text)]
            self._files[name] = text, encoding, found
            self.texts += [one.text for one in found]
            self.line_numbers += [1 + text.count("\n", 0, one.start) for one in found]

    def replace(self, translations):
        """Returns the bytes of the document with the translations of its texts."""
        translations, files = iter(translations), {}
        errors = "strict" if self.syntax == "text" else "xmlcharrefreplace"
        for name, (text, encoding, found) in self._files.items():
            pieces, end = [], 0
            for one in found:
                pieces += [text[end : one.start], one.write(next(translations))]
                end = one.end
            new = "".join([*pieces, text[end:]])
            try:
                files[name] = new.encode(encoding, errors)
            except UnicodeEncodeError:
                files[name] = _in_utf8(new)
        if not self._is_archive:
            return files[""]
        written = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(self._data)) as old,
            zipfile.ZipFile(written, "w") as new,
        ):
            for member in old.infolist():
                new.writestr(member, files.get(member.filename) or old.read(member))
        return written.getvalue()


def _is_language(text):
    return _LETTER.search(text) and not _TIMESTAMP.fullmatch(text)


def document_format(path):
    """Returns the format of a path, a suffix such as `".html"`, also for `.htm`.

    Returns:
        Str, or `None` if `Document` cannot read such files.

    Examples:
        >>> kt.documents.document_format("page.htm")
        '.html'
        >>> kt.documents.document_format("notes.txt") is None
        True
    """
    suffix = pathlib.Path(path).suffix.lower()
    suffix = _OTHER_SUFFIXES.get(suffix, suffix)
    return suffix if suffix in FORMATS else None


def _decode(data, path):
    """Returns the text of a file, with its line ends, and its encoding."""
    declared = _DECLARED.search(data[:2048])
    encoding = declared[1].decode() if declared else "utf-8"
    for mark, codec in _MARKS.items():
        encoding = codec if data.startswith(mark) else encoding
    try:
        return data.decode(encoding), encoding
    except LookupError:
        raise DataError(f"{path}:1: unknown encoding {encoding}") from None
    except UnicodeDecodeError as error:
        line = 1 + data.count(b"\n", 0, error.start)
        raise DataError(f"{path}:{line}: must be text in {encoding}") from None


def _in_utf8(text):
    """Returns a text that declares another encoding in UTF-8, and the one it has."""
    data = text.encode()
    declared = _DECLARED.search(data[:2048])
    start, end = declared.span(1) if declared else (0, 0)
    return data[:start] + b"UTF-8" * bool(declared) + data[end:]


# For each suffix, the inline markup of the texts, and a function that finds them.
FORMATS = {
    ".html": ("html", find_html_texts),
    ".md": ("markdown", find_markdown_texts),
    ".srt": ("text", find_subtitles),
    ".vtt": ("text", find_subtitles),
    ".po": ("text", find_po_texts),
    ".xlf": ("xliff", pairs_finder("trans-unit|segment", "source", "target")),
    ".tmx": ("xliff", pairs_finder("tu", "seg", "seg")),
    ".docx": ("xliff", find_docx_texts),
    ".json": ("text", find_json_texts),
}
_OTHER_SUFFIXES = {
    ".htm": ".html",
    ".xhtml": ".html",
    ".markdown": ".md",
    ".pot": ".po",
    ".xliff": ".xlf",
}
