"""Documents, whose texts are translated while all their other bytes stay the same.

A function for each format finds the places of the texts in a document, and only these
places change. So markup, timestamps, keys and comments are never written anew.
"""

import codecs
import functools
import io
import itertools
import json
import pathlib
import re
import zipfile
from collections.abc import Callable
from typing import NamedTuple
from xml.parsers import expat

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


class Text(NamedTuple):
    """A text, and the place of its translation, from `start` to `end`, in characters.

    `write` returns what replaces the place, from the translation.
    """

    text: str
    start: int
    end: int
    write: Callable[[str], str] = str


class Document:
    """A document of one of `FORMATS`, which its suffix names.

    Args:
        path: Path of the document.
        data: Content, bytes. If `None`, the file is read.
        attributes: Whether the attributes `alt` and `title` are texts, too. For HTML.

    Attributes:
        texts: List of str, the texts to translate, with inline markup.
        line_numbers: The line of each text, from 1. For .docx, of the XML file in it.
        syntax: The inline markup, as `decoding.markup.translate_marked` names it.

    Raises:
        DataError: If the content is not of the format.
        OSError: If the file cannot be read.
        ValueError: If the document has no such attributes.
    """

    def __init__(self, path, data=None, attributes=False):
        path = pathlib.Path(path)
        self._data = path.read_bytes() if data is None else data
        suffix = path.suffix.lower()
        self.syntax, find_texts = FORMATS[suffix]
        if attributes:
            if self.syntax != "html":
                raise ValueError(f"`attributes` needs HTML. Received: path={path}.")
            find_texts = functools.partial(_html, has_attributes=True)
        self._is_archive = suffix == ".docx"
        files = _docx_files(self._data, path) if self._is_archive else {"": self._data}
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
        errors = "replace" if self.syntax == "text" else "xmlcharrefreplace"
        for name, (text, encoding, found) in self._files.items():
            pieces, end = [], 0
            for one in found:
                pieces += [text[end : one.start], one.write(next(translations))]
                end = one.end
            files[name] = "".join([*pieces, text[end:]]).encode(encoding, errors)
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


def is_document(path):
    """Returns whether the suffix of a path is one of `FORMATS`."""
    return pathlib.Path(path).suffix.lower() in FORMATS


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


def _wrapped(text, start, end, breaks):
    """Returns a `Text` of several lines, which are translated together.

    `breaks` are the places of the line ends and indentations, as (start, end). The
    translation is divided at spaces outside tags, in proportion to the lines.
    """
    ends = [place for place, _ in breaks] + [end]
    starts = [start] + [place for _, place in breaks]
    lines = [text[a:b] for a, b in zip(starts, ends, strict=True)]
    source = " ".join(lines)

    def write(translation):
        spaces = [one.start() for one in re.finditer(r"<[^>]*>| ", translation)]
        spaces = [place for place in spaces if translation[place] == " "]
        written, begin, done = "", 0, -1
        for line, gap in zip(lines, breaks, strict=False):
            done += len(line) + 1
            ideal = done / len(source) * len(translation)

            def rank(place, ideal=ideal):
                # A line that begins like a list or a heading would become one.
                is_mark = translation[place + 1 : place + 2] in "-+*#=>~`|0123456789"
                return is_mark and place != round(ideal), abs(place - ideal)

            spaces = [place for place in spaces if place > begin]
            if not spaces:
                break
            place = min(spaces, key=rank)
            written += translation[begin:place] + text[slice(*gap)]
            begin = place + 1
        return written + translation[begin:]

    return Text(source, start, end, write)


# All other elements of HTML divide texts.
_INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|ins|kbd|keep|mark|q|"
    "rp|rt|ruby|s|samp|small|span|strike|strong|sub|sup|time|tt|u|var|wbr"
)
_UNTRANSLATED = {"script", "style", "pre", "textarea", "template", "svg", "math"}


def _html(text, path, has_attributes=False):
    # Imported here because it loads Keras.
    from keras_transformer.decoding.markup import TagParser, is_untranslated

    found = TagParser(text).found
    if all(kind == "text" for _, kind, *_ in found):
        raise DataError(f"{path}:1: must be HTML, but has no tag")
    begin, hidden, depth, tags = 0, None, 0, []
    kept, num_kept = None, 0  # an inline element that stays, and how many are open
    found += [(len(text), "empty", "", {})] * 2
    for (start, kind, name, attributes), (end, *_) in itertools.pairwise(found):
        if kind == "text":
            continue
        if hidden is None:
            if is_untranslated(attributes):
                kept = kept or name
            elif has_attributes and name and not kept:
                tags.append((start, end))
            if _INLINE.fullmatch(name):
                num_kept += (name == kept) * {"open": 1, "close": -1}.get(kind, 0)
                kept = kept if num_kept else None
                continue
            kept, num_kept = None, 0
            is_hidden = kind == "open" and (
                name in _UNTRANSLATED or is_untranslated(attributes)
            )
            # In broken HTML, an element may not end. The parser knows of two kinds.
            if is_hidden and name not in ("script", "style"):
                is_hidden = f"</{name}" in text[end:].lower()
            for one in _html_text(text, begin, start):
                yield from _with_attributes(text, tags, one)
            hidden = name if is_hidden else None
        if name == hidden:
            depth += {"open": 1, "close": -1}.get(kind, 0)
            hidden = hidden if depth else None
        begin = end
    yield from _with_attributes(text, tags, Text("", len(text), len(text)))


def _html_text(text, start, end):
    """Yields the text between two tags, unless it has only inline tags and entities."""
    piece = text[start:end]
    if _LETTER.search(re.sub(r"<[^>]*>|&\w+;", "", piece)):
        end = start + len(piece.rstrip())
        start += len(piece) - len(piece.lstrip())
        found = re.finditer(r"<[^>]*>|[ \t\r]*\n\s*", text[start:end])
        breaks = [one.span() for one in found if one[0][0] != "<"]
        yield _wrapped(text, start, end, [(start + a, start + b) for a, b in breaks])


_TAG = re.compile(r"""<(?:[^<>"']|"[^"]*"|'[^']*')*>""")
_ATTRIBUTE = re.compile(r"""(\s([^\s<>"'/=]+)\s*=\s*)("[^"]*"|'[^']*')""")


def _with_attributes(text, tags, one):
    """Yields a `Text` after the attributes of the first `tags`, up to its end."""
    changes = []
    while tags and tags[0][0] < one.end:
        is_before = tags[0][0] < one.start
        for found in _ATTRIBUTE.finditer(text, *tags.pop(0)):
            place = found.span(3) if is_before else (one.start, one.start)
            if found[2].lower() in ("alt", "title"):
                yield _attribute(found, *place, None if is_before else changes)
    yield _changed(one, changes)


def _attribute(found, start, end, changes=None):
    """Returns the `Text` of an attribute.

    One within another text has an empty place before it. How it changes is added to
    `changes`.
    """
    quoted = found[3]

    def write(translation):
        entity = {'"': "&quot;", "'": "&#39;"}[quoted[0]]
        new = quoted[0] + translation.replace(quoted[0], entity) + quoted[0]
        if changes is None:
            return new
        changes.append((found[0], found[1] + new))
        return ""

    return Text(quoted[1:-1], start, end, write)


def _changed(text, changes):
    """Returns a `Text` in whose translation attributes are replaced, and forgotten."""

    def change(found):
        for index, (old, _) in enumerate(changes):
            if old == found[0]:
                return changes.pop(index)[1]
        return found[0]

    def write(translation):
        translation = text.write(translation)
        if changes:
            translation = _TAG.sub(
                lambda tag: _ATTRIBUTE.sub(change, tag[0]), translation
            )
        changes.clear()
        return translation

    return text._replace(write=write)


def _markdown(text, path):
    from markdown_it import MarkdownIt

    header = re.match(r"\ufeff?---\r?\n.*?\n---[ \t]*\r?\n", text, re.DOTALL)
    base = header.end() if header else 0
    starts = [base, *(base + found.end() for found in re.finditer("\n", text[base:]))]
    end = base
    for token in MarkdownIt().enable(["table", "strikethrough"]).parse(text[base:]):
        if token.type == "inline" and token.content.strip():
            # The cells of a table share a line.
            place, spans = max(end, starts[token.map[0]]), []
            for line in map(str.strip, token.content.split("\n")):
                start = text.find(line, place)
                place = start + len(line)
                spans.append((start, place))
            # In a cell, the parser has removed the backslash before a bar.
            if min(spans)[0] >= 0:
                end = spans[-1][1]
                note = re.compile(r"\[\^[^\]\s]+\]:\s*").match(text, spans[0][0])
                spans[0] = note.end() if note else spans[0][0], spans[0][1]
                for part in _between_hard_breaks(token, spans, text):
                    gaps = [(a, b) for (_, a), (b, _) in itertools.pairwise(part)]
                    yield _wrapped(text, part[0][0], part[-1][1], gaps)


def _between_hard_breaks(token, spans, text):
    """Divides the lines of a paragraph, as (start, end), at its hard line breaks.

    It is not divided at those inside of emphasis or links.
    """
    depth, breaks, parts = 0, [], [spans[:1]]
    for child in token.children:
        depth += child.nesting
        if child.type.endswith("break"):
            breaks.append((child.type == "hardbreak", depth == 0))
    # Code and HTML may also extend over several lines.
    if len(breaks) != len(spans) - 1:
        return [spans]
    for (is_hard, is_outer), span in zip(breaks, spans[1:], strict=True):
        start, end = parts[-1][-1]
        if is_hard and text[end - 1] == "\\":
            parts[-1][-1] = start, end - 1
        parts += [[]] * (is_hard and is_outer)
        parts[-1] = [*parts[-1], span]
    return parts


_TIME = r"(?:\d+:)?\d\d:\d\d[.,]\d+"
# A line with a time, and the lines up to the next blank one.
_CUE = re.compile(
    rf"^[ \t]*{_TIME}[ \t]+-->[ \t]+{_TIME}.*\n((?:[ \t]*\S.*(?:\n|\Z))+)", re.MULTILINE
)


def _subtitles(text, path):
    kind = "WEBVTT" if path.suffix.lower() == ".vtt" else "SubRip"
    if kind == "WEBVTT" and not text.lstrip("\ufeff").startswith(kind):
        raise DataError(f"{path}:1: must be {kind}")
    if not re.search(_TIME, text) and text.strip():
        raise DataError(f"{path}:1: must be {kind}, but no line has a time")
    for cue in _CUE.finditer(text):
        start, end = cue.start(1), cue.start(1) + len(cue[1].rstrip())
        found = re.finditer(r"[ \t\r]*\n[ \t]*", text[start:end])
        breaks = [(start + one.start(), start + one.end()) for one in found]
        # Each line of a dialogue is a separate text.
        while breaks and all(text[b] in "-–" for _, b in breaks):
            line_end, next_start = breaks.pop(0)
            yield _wrapped(text, start, line_end, [])
            start = next_start
        yield _wrapped(text, start, end, breaks)


_STRING = r'"(?:[^"\\\r\n]|\\.)*"'
_PO_LINE = re.compile(
    r"\ufeff?\s*(#.*|((msgctxt|msgid|msgid_plural|msgstr(\[\d+\])?)\s*)?"
    rf"{_STRING}\s*)?"
)
_PO_FIELD = re.compile(
    rf"^(msgid|msgid_plural|msgstr(?:\[\d+\])?)\s*({_STRING}(?:\s*{_STRING})*)", re.M
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def _po(text, path):
    for number, line in enumerate(text.split("\n"), 1):
        if not _PO_LINE.fullmatch(line):
            raise DataError(f"{path}:{number}: not a line of a .po file")

    def write(translation):
        lines = [_po_string(line) for line in translation.splitlines(keepends=True)]
        return "\n".join(['""', *lines] if len(lines) > 1 else lines)

    source = {}
    for found in _PO_FIELD.finditer(text):
        field = found[1]
        value = "".join(one[1:-1] for one in re.findall(_STRING, found[2]))
        if not field.startswith("msgstr"):
            source[field] = re.sub(
                r"\\(.)", lambda one: _ESCAPES.get(one[1], one[1]), value
            )
        elif not value:
            is_plural = field not in ("msgstr", "msgstr[0]")
            message = source["msgid_plural" if is_plural else "msgid"]
            yield Text(message, *found.span(2), write)


def _po_string(line):
    escaped = line.replace("\\", "\\\\").replace('"', '\\"')
    for letter, character in _ESCAPES.items():
        escaped = escaped.replace(character, f"\\{letter}")
    return f'"{escaped}"'


def _json(text, path):
    try:
        json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    is_ascii = text.isascii()
    for found in re.finditer(rf"({_STRING})(\s*:)?", text):
        if not found[2]:  # a value, not a key
            value = json.loads(found[1])

            def write(translation, value=value, written=found[1]):
                if translation == value:  # could be written in several ways
                    return written
                return json.dumps(translation, ensure_ascii=is_ascii)

            yield Text(value, *found.span(1), write)


_ATTRIBUTES = r"""(?:[^<>"'/]|"[^"]*"|'[^']*')*"""


def _check_xml(text, roots, path):
    """Raises `DataError` unless a text is XML with one of `roots` as first element."""
    parser, found = expat.ParserCreate(), []

    def add(name, attributes):
        found.append((name, parser.CurrentLineNumber))

    parser.StartElementHandler = add
    try:
        parser.Parse(text.removeprefix("\ufeff"), True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise DataError(f"{path}:{error.lineno}: not XML: {reason}") from None
    name, line = found[0]
    if name not in roots:
        raise DataError(f"{path}:{line}: must be <{roots[0]}>. Received: <{name}>")


def _pairs(units, source, target):
    """Returns a function that yields the sources without a translation, in XML.

    The arguments are names of elements: of a pair, and of its sides.
    """
    unit = re.compile(rf"<({units})\b({_ATTRIBUTES})>(.*?)</\1>", re.DOTALL)
    source_pattern = re.compile(
        rf"<{source}\b{_ATTRIBUTES}>(.*?)</{source}>", re.DOTALL
    )
    target_pattern = re.compile(
        rf"<{target}\b({_ATTRIBUTES})(?:/>|>(.*?)</{target}>)", re.DOTALL
    )

    def find_texts(text, path):
        _check_xml(text, ["tmx" if units == "tu" else "xliff"], path)
        for pair in unit.finditer(text):
            start, end = pair.span(3)
            end = start + (pair[3] + "<alt-trans").index("<alt-trans")
            found = source_pattern.search(text, start, end)
            if not found or re.search(r"""translate\s*=\s*["']no""", pair[2]):
                continue
            filled = target_pattern.search(text, found.end(), end)
            if filled is None:
                if target == "target":
                    line = text[: found.start()].rpartition("\n")[2]
                    start = f"\n{line}" * line.isspace() + "<target>"
                    yield _element(found[1], found.end(), found.end(), start, target)
            elif filled[2] is None:  # <target/>
                start = f"<{target}{filled[1].rstrip()}>"
                yield _element(found[1], *filled.span(), start, target)
            elif not filled[2].strip() or _NEW.search(pair[2] + filled[1]):
                yield Text(found[1], *filled.span(2))

    return find_texts


_NEW = re.compile(r"""\bstate\s*=\s*["'](?:new|needs-translation|initial)["']""")


def _element(source, start, end, opening, name):
    return Text(source, start, end, lambda content: f"{opening}{content}</{name}>")


def _docx_files(data, path):
    """Returns the files in a .docx that contain text, by name."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = {
                name: archive.read(name)
                for name in archive.namelist()
                if re.fullmatch(
                    r"word/(document|(header|footer|foot|end).*)\.xml", name
                )
            }
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{path}:1: must be .docx: {error}") from None
    if "word/document.xml" not in files:
        raise DataError(f"{path}:1: must be .docx, but has no word/document.xml")
    return files


_DOCX_ROOTS = ["w:document", "w:hdr", "w:ftr", "w:footnotes", "w:endnotes"]
# A run with its text, and what may stand between the runs of a text.
_RUN = re.compile(
    rf"(<w:r\b{_ATTRIBUTES}>(<w:rPr>.*?</w:rPr>|<w:rPr/>)?<w:t(?: {_ATTRIBUTES})?>)"
    r"([^<]*)(</w:t></w:r>)",
    re.DOTALL,
)
_BETWEEN = re.compile(
    r"(?:</?w:(?:proofErr|bookmarkStart|bookmarkEnd|hyperlink)\b[^>]*>)*"
)


def _docx(text, path):
    _check_xml(text, _DOCX_ROOTS, path)
    runs = []
    for run in _RUN.finditer(text):
        if runs and not _BETWEEN.fullmatch(text, runs[-1].end(), run.start()):
            yield _runs_text(text, runs)
            runs = []
        runs.append(run)
    if runs:
        yield _runs_text(text, runs)


def _runs_text(text, runs):
    """Returns a `Text` of runs, in which runs of another format are elements <g>.

    In the translation, a run stands where its <g> stands.
    """
    groups, end = [], runs[0].start()  # lists of gap, head, format, content and tail
    for run in runs:
        gap, end = text[end : run.start()], run.end()
        if groups and not gap and groups[-1][2] == run[2]:
            groups[-1][3] += run[3]
        else:
            groups.append([gap, *run.groups()])
    source = groups[0][3]
    if len(groups) > 1:
        source = "".join(f'<g id="{i}">{each[3]}</g>' for i, each in enumerate(groups))

    def write(translation):
        if translation == source:
            return text[runs[0].start() : end]
        gaps, written, which = [each[0] for each in groups], "", 0
        for found in re.finditer(r'<g id="(\d+)">(.*?)</g>|([^<]+)', translation):
            which = int(found[1] or which)
            _, head, _, _, tail = groups[which]
            content = found[2] or found[3] or ""
            if content != content.strip():
                head = re.sub("<w:t>$", '<w:t xml:space="preserve">', head)
            gap = gaps.pop(0) if gaps else ""
            written += f"{gap}{head}{content}{tail}"
        return written + "".join(gaps)

    return Text(source, runs[0].start(), end, write)


# For each suffix, the inline markup of the texts, and a function that finds them.
FORMATS = {
    ".html": ("html", _html),
    ".htm": ("html", _html),
    ".md": ("markdown", _markdown),
    ".srt": ("text", _subtitles),
    ".vtt": ("text", _subtitles),
    ".po": ("text", _po),
    ".xlf": ("xliff", _pairs("trans-unit|segment", "source", "target")),
    ".tmx": ("xliff", _pairs("tu", "seg", "seg")),
    ".docx": ("xliff", _docx),
    ".json": ("text", _json),
}
