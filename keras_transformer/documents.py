"""Documents, whose texts are translated while all their other bytes stay the same.

A function for each format finds the places of the texts in a document, and only these
places change. So markup, timestamps, keys and comments are never written anew.
"""

import codecs
import functools
import html
import io
import itertools
import json
import pathlib
import re
import zipfile
from collections.abc import Callable
from html.entities import html5
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
        suffix = document_format(path)
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
    """Returns the one of `FORMATS` that the suffix of a path names, or `None`."""
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
        if translation == source:
            return text[start:end]
        spaces = [one.start() for one in re.finditer(r"<[\w/!?][^>]*>| ", translation)]
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
    "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|ins|kbd|keep|label|"
    r"mark|q|rp|rt|ruby|s|samp|small|span|strike|strong|sub|sup|time|tt|u|var|wbr|\w+-.*"
)
_UNTRANSLATED = {"script", "style", "pre", "textarea", "template", "svg", "math"}


def _html(text, path, has_attributes=False):
    # Imported here because it loads Keras.
    from keras_transformer.decoding.markup import TagParser, is_untranslated

    found = TagParser(text).found
    if text.strip() and all(kind == "text" for _, kind, *_ in found):
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
    source, starts = _without_markers(text, header.end() if header else 0)
    end = 0
    for token in MarkdownIt().enable(["table", "strikethrough"]).parse(source):
        if token.type == "inline" and token.content.strip():
            # The cells of a table share a line.
            place, spans = max(end, starts[token.map[0]]), []
            for line in map(str.strip, token.content.split("\n")):
                # In a cell, the parser has removed the backslash before a bar.
                pattern = re.escape(line).replace(r"\|", r"\\*\|")
                found = re.compile(pattern).search(text, place)
                if found is None:
                    break
                place = found.end()
                spans.append(found.span())
            else:
                end = place
                for part in _between_hard_breaks(token, spans, text):
                    gaps = [(a, b) for (_, a), (b, _) in itertools.pairwise(part)]
                    yield _wrapped(text, part[0][0], part[-1][1], gaps)


# What begins the line of an admonition, a tab, a container or an alert, with a title.
_MARKER = re.compile(
    r"""(?P<indented>(?:!!!|\?\?\?\+?)[ \t]+[\w \t-]+|===[!+]?[ \t]*(?="))"""
    r"""(?:"(?P<title>[^"]*)")?\s*"""
    r"|:{3,}[ \t]*(?:\{[^}]*\}|[\w.-]+)?[ \t]*\[?(?P<name>.*?)\]?\s*|\[!\w+\][+-]?\s*"
)
# The marks of definitions and footnotes, and of a task after that of its list item.
_DEFINITION = re.compile(
    r"(?::[ \t]+|\[\^[^\]\s]+\]:[ \t]*)(?=\S)"
    r"|(?P<list>(?:[-+*]|\d+[.)])[ \t]+)\[[ xX]\][ \t]+"
)
# Code of MDX, up to an empty line.
_MODULE = re.compile(
    r"""import\s+(?:['"]|[\w*{][^'"]*\sfrom\s+['"]|\{\s*$)|export\s+(?:"""
    r"(?:const|let|var)\s+\w+\s*=|(?:async\s+)?function\b|[{*]|class\s+\w+"
    r"|default\s+(?:function|class|\w+;?\s*$|[({]))"
)


def _without_markers(text, base):
    """Returns Markdown from `base` as CommonMark, and where the text of lines begins.

    What other programs mark becomes a heading, a comment or an item of a list, so that
    each is a text. The number of lines stays the same.
    """
    lines, starts, written = text[base:].split("\n"), [], []
    fence, is_code, indents, start = "", False, [], base
    for number, line in enumerate(lines):
        outer = re.match(r"[ \t]*(?:>[ \t]?)*[ \t]*", line)[0]
        rest, begin = line[len(outer) :], start + len(outer)
        starts.append(start)
        start += len(line) + 1
        if not rest.strip():
            is_code = False
            written.append(line)
            continue
        width = len(outer.expandtabs(4))
        while indents and width < indents[-1] and not fence:
            indents.pop()
        if indents:
            outer = (
                " " * max(0, width - 4 * len(indents)) if ">" not in outer else outer
            )
        mark = re.match("`{3,}|~{3,}", rest)
        if fence:
            is_end = mark and mark[0].startswith(fence) and rest.strip() == mark[0]
            fence = "" if is_end else fence
        elif mark:
            fence = mark[0]
        elif is_code or (not outer and _MODULE.match(rest)):
            is_code, rest = True, "<!-- -->"
        elif found := _MARKER.fullmatch(rest):
            following = next((each for each in lines[number + 1 :] if each.strip()), "")
            has_content = re.match(r"[ \t]*", following)[0].expandtabs(4)
            if not found["indented"] or len(has_content) >= width + 4:
                indents += [width + 4] * bool(found["indented"])
                group = "title" if found["indented"] else "name"
                title = (found[group] or "").strip()
                starts[-1] = begin + max(0, found.start(group))
                rest = f"# {title}" if title else "<!-- -->"
        elif found := _DEFINITION.match(rest):
            starts[-1] = begin + found.end()
            rest = (found["list"] or "- ") + rest[found.end() :]
        written.append(outer + rest)
    return "\n".join(written), starts


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
    cues = [cue.span(1) for cue in _CUE.finditer(text)]
    if kind == "SubRip":
        # Text after an empty line still belongs to a cue.
        begins = [*[cue.start() for cue in _CUE.finditer(text)][1:], len(text)]
        for (_, end), begin in zip(list(cues), begins, strict=False):
            found = re.compile(r"(?:[ \t]*\S.*(?:\n|\Z))+").finditer(text, end, begin)
            cues += [one.span() for one in found]
    for start, end in sorted(cues):
        cue = text[start:end]
        is_open = "</v>" not in cue  # as is common if one speaks alone
        end -= len(cue) - len(cue.rstrip())
        found = re.finditer(r"[ \t\r]*\n[ \t]*", text[start:end])
        breaks = [(start + one.start(), start + one.end()) for one in found]
        # Each line of a dialogue is a separate text.
        is_dialogue = all(
            text[b] in "-–" or (is_open and _VOICE.match(text, b)) for _, b in breaks
        )
        lines = [*breaks, (end, end)] if is_dialogue else [(end, end)]
        breaks = [] if is_dialogue else breaks
        for line_end, next_start in lines:
            voice = _VOICE.match(text, start, line_end) if is_open else None
            yield _wrapped(text, voice.end() if voice else start, line_end, breaks)
            start = next_start


_VOICE = re.compile(r"<v[. ][^>]*>\s*")


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
            plain, restore = _without_accelerator(message)
            yield Text(
                plain,
                *found.span(2),
                lambda translation, restore=restore: write(restore(translation)),
            )


# What marks the key of a menu item, before a letter. Not that of "AT&T" or "&amp;".
_ACCELERATOR = re.compile(r"(?<!\w)[&_](?=[^\W_])(?!\w+;)|(?<=\w)&(?=[a-z])(?!\w+;)")


def _without_accelerator(message):
    """Returns a message without its accelerator, and a function that sets it again.

    It is set before the same letter if there is one, best at the start of a word.
    """
    found = _ACCELERATOR.search(message)
    if not found or message.count(found[0]) > 1:
        return message, str
    place = found.start()
    plain, letter = message[:place] + message[found.end() :], message[found.end()]

    def restore(translation):
        at = place if translation == plain else None
        for pattern in (rf"\b{letter}", letter, r"[^\W\d_]"):
            if at is None and (new := re.search(pattern, translation, re.IGNORECASE)):
                at = new.start()
        return (
            translation
            if at is None
            else found[0].join([translation[:at], translation[at:]])
        )

    return plain, restore


def _po_string(line):
    escaped = line.replace("\\", "\\\\").replace('"', '\\"')
    for letter, character in _ESCAPES.items():
        escaped = escaped.replace(character, f"\\{letter}")
    return f'"{escaped}"'


_SURROGATE = re.compile("[\ud800-\udfff]")


def _json(text, path):
    try:
        json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    is_ascii = text.isascii()
    for found in re.finditer(rf"({_STRING})(\s*:)?", text):
        if not found[2]:  # a value, not a key
            value = json.loads(found[1])
            if _SURROGATE.search(value):  # half a character, which no model reads
                continue

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
    if name not in roots and name.rpartition(":")[2] not in roots:
        raise DataError(f"{path}:{line}: must be <{roots[0]}>. Received: <{name}>")


def _pairs(units, source, target):
    """Returns a function that yields the sources without a translation, in XML.

    The arguments are names of elements: of a pair, and of its sides.
    """
    prefix = r"(?:[\w.-]+:)?"
    part = re.compile(
        r"<!--.*?-->|<!\[CDATA\[.*?\]\]>"
        rf"|<(?P<name>{prefix}(?:{units}))\b(?P<own>{_ATTRIBUTES})>(?P<pair>.*?)</(?P=name)>"
        rf"|<(?P<end>/?){prefix}(?:file|group|unit)\b(?P<outer>{_ATTRIBUTES})(?P<empty>/?)>",
        re.DOTALL,
    )
    source_pattern = re.compile(
        rf"<({prefix}){source}\b{_ATTRIBUTES}>(.*?)</\1{source}>", re.DOTALL
    )
    target_pattern = re.compile(
        rf"<({prefix}){target}\b({_ATTRIBUTES})(?:/>|>(.*?)</\1{target}>)", re.DOTALL
    )

    def find_texts(text, path):
        _check_xml(text, ["tmx" if units == "tu" else "xliff"], path)
        stays = [False]  # whether the content of each outer element is untranslated
        for pair in part.finditer(text):
            if pair["end"]:
                stays.pop()
            elif pair["outer"] is not None and not pair["empty"]:
                stays.append(_stays(pair["outer"], stays[-1]))
            if pair["pair"] is None or _stays(pair["own"], stays[-1]):
                continue
            start, end = pair.span("pair")
            end = start + re.search(rf"<{prefix}alt-trans\b|$", pair["pair"]).start()
            found = source_pattern.search(text, start, end)
            if not found:
                continue
            name, content = found[1] + target, _xml_content(found[2])
            filled = target_pattern.search(text, found.end(), end)
            if filled is None:
                if target == "target":
                    line = text[: found.start()].rpartition("\n")[2]
                    start = f"\n{line}" * line.isspace() + f"<{name}>"
                    yield _element(content, found.end(), found.end(), start, name)
            elif filled[3] is None:  # <target/>
                start = f"<{name}{filled[2].rstrip()}>"
                yield _element(content, *filled.span(), start, name)
            elif not filled[3].strip() or _NEW.search(pair["own"] + filled[2]):
                yield Text(content, *filled.span(3), _without_keep)

    return find_texts


def _stays(attributes, is_inherited):
    """Returns whether the content of an XLIFF element is not to be translated."""
    found = re.search(r"""\btranslate\s*=\s*["'](yes|no)""", attributes)
    return found[1] == "no" if found else is_inherited


def _xml_content(source):
    """Returns XML without CDATA sections, in which the file's own entities stay."""
    source = re.sub(
        r"<!\[CDATA\[(.*?)\]\]>",
        lambda found: html.escape(found[1], quote=False),
        source,
        flags=re.DOTALL,
    )
    return re.sub(
        r"&([\w:][\w:.-]*;)",
        lambda one: one[0] if one[1] in html5 else f"<keep>{one[0]}</keep>",
        source,
    )


def _without_keep(translation):
    return re.sub("</?keep>", "", translation)


_NEW = re.compile(r"""\bstate\s*=\s*["'](?:new|needs-translation|initial)["']""")


def _element(source, start, end, opening, name):
    return Text(
        source,
        start,
        end,
        lambda content: f"{opening}{_without_keep(content)}</{name}>",
    )


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
# The parts of a paragraph. All but `other` may stand in or between the runs of a text.
_DOCX_PART = re.compile(
    rf"(?P<run><w:r(?:\s{_ATTRIBUTES})?>(?P<format><w:rPr/>|<w:rPr>"
    r"(?:<w:rPrChange\b.*?</w:rPrChange>|(?!</w:rPr>).)*</w:rPr>)?)"
    rf"|(?P<text>(?P<tag><w:t(?:\s{_ATTRIBUTES})?>)(?P<content>[^<]*)</w:t>)"
    r"|(?P<end></w:r>)|(?P<skipped><w:(?:proofErr|lastRenderedPageBreak)\b[^>]*>|<w:t/>)"
    r"|(?P<mark><w:(?P<kind>bookmark|commentRange)(?P<side>Start|End)\b[^>]*>)"
    rf"|(?P<link><w:hyperlink\b{_ATTRIBUTES}>)|(?P<link_end></w:hyperlink>)"
    r"|(?P<other><[^>]*>)",
    re.DOTALL,
)


class _Part(NamedTuple):
    """A part of a paragraph of .docx, and the run in which it is, or `None`."""

    kind: str
    match: re.Match
    run: re.Match | None


def _docx(text, path):
    _check_xml(text, _DOCX_ROOTS, path)
    parts, run = [], None
    for match in _DOCX_PART.finditer(text):
        run = match if match["run"] else run
        parts.append(_Part(match.lastgroup, match, run))
        run = None if match["end"] else run
        if match["other"]:
            yield from _docx_texts(text, parts[:-1])
            parts = []


def _docx_texts(text, parts):
    """Yields the `Text`s of parts without other ones. No link begins or ends in one."""
    begin, link = 0, None
    for index, part in enumerate(parts):
        if part.kind == "link":
            link = index
        elif part.kind == "link_end" and link is None:
            yield from _runs_text(text, parts[begin:index])
            begin = index + 1
        elif part.kind == "link_end":
            link = None
    if link is not None:
        yield from _runs_text(text, parts[begin:link])
        begin = link + 1
    yield from _runs_text(text, parts[begin:])


class _Runs(NamedTuple):
    """Runs of one format, in one link."""

    link: str
    format: str
    run: str  # how a run begins
    tag: str
    content: str

    @property
    def rank(self):
        """Low for text that stands out little."""
        return bool(self.link), len(self.format)


def _runs_text(text, parts):
    """Yields the `Text` of parts, in which runs of another format are elements <g>.

    In the translation, a run stands where its <g> stands.
    """
    while parts and parts[0].kind in ("end", "skipped", "mark"):
        parts = parts[1:]
    while parts and parts[-1].kind in ("run", "skipped", "mark"):
        parts = parts[:-1]
    groups, marks, link = [], [], ""
    for kind, match, run in parts:
        if kind == "link":
            link = match[0]
        elif kind == "link_end":
            link = ""
        elif kind == "mark":
            marks.append((len(groups), match))
        elif kind == "text":
            new = _Runs(link, run["format"] or "", run[0], match["tag"], "")
            is_marked = marks and marks[-1][0] == len(groups)
            if not groups or groups[-1][:2] != new[:2] or is_marked:
                groups.append(new)
            content = groups[-1].content + match["content"]
            groups[-1] = groups[-1]._replace(content=content)
    if not groups:
        return
    start, end = parts[0].match.start(), parts[-1].match.end()
    source = groups[0].content
    if len(groups) > 1:
        source = "".join(
            f'<g id="{index}">{each.content}</g>' for index, each in enumerate(groups)
        )
    # A text may begin and end inside of a run, which is divided if need be.
    first = parts[0].run[0] if parts[0].kind == "text" else ""
    last = parts[-1].run[0] if parts[-1].kind == "text" else ""

    def write(translation):
        if translation == source:
            return text[start:end]
        written = _written_runs(groups, marks, translation)
        if last and "</w:r>" in written.rpartition(f"{last}<w:t")[2][:-6]:
            written += last
        elif last:
            written = written.removesuffix("</w:r>")
        if first and written.startswith(f"{first}<w:t"):
            return written[len(first) :]
        return f"</w:r>{written}" if first else written

    yield Text(source, start, end, write)


def _written_runs(groups, marks, translation):
    """Returns the XML of a translation with the elements <g> of `_Runs`."""
    found = re.findall(r'<g id="(\d+)">(.*?)</g>|([^<]+)', translation, re.DOTALL)
    inside = [int(index) for index, *_ in found if index]
    plainest = min(range(len(groups)), key=lambda index: groups[index].rank)
    pieces, pending, num_done = [], "", 0  # the index of a group, and a content
    for index, content, outside in found:
        if index:
            pieces.append((int(index), pending + content))
            pending, num_done = "", num_done + 1
            continue
        # Text outside, such as a space, joins a neighbor, but does not become a link.
        around = inside[max(0, num_done - 1) : num_done + 1]
        best = min(around, key=lambda each: groups[each].rank, default=plainest)
        if groups[best].link and best != plainest:
            best = plainest
        if inside[num_done : num_done + 1] == [best] and pieces[-1:] != [best]:
            pending = outside
        else:
            pieces.append((best, outside))
    places = [index for index, _ in pieces]
    before, after, ends = {}, {}, {}
    for index, match in marks:
        ends.setdefault((match["kind"], _mark_id(match)), {})[match["side"]] = index
    for _, match in marks:
        sides = ends[match["kind"], _mark_id(match)]
        marked = range(sides.get("Start", 0), sides.get("End", len(groups)))
        at = [place for place, each in enumerate(places) if each in marked]
        if match["side"] == "Start":
            before.setdefault(at[0] if at else 0, []).append(match[0])
        else:
            after.setdefault(at[-1] if at else 0, []).append(match[0])
    written, link, previous = "", "", None
    for place, (index, content) in enumerate(pieces):
        group, marked = groups[index], "".join(before.get(place, ()))
        if link and link != group.link:
            written, link, previous = written + "</w:hyperlink>", "", None
        written += marked
        if content:
            if group.link != link:
                written, link = written + group.link, group.link
            is_same = previous == index and written.endswith("</w:t></w:r>")
            if is_same:
                written = written.removesuffix("</w:t></w:r>")
            written += "" if is_same else group.run + group.tag
            written += content + "</w:t></w:r>"
        previous = index if content else previous
        if place in after:
            written, previous = written + "".join(after[place]), None
    written += "</w:hyperlink>" * bool(link)
    return re.sub(r"<w:t>(?=\s|[^<]*\s</w:t>)", '<w:t xml:space="preserve">', written)


def _mark_id(match):
    return re.search(r'w:id="([^"]*)"', match[0] + ' w:id=""')[1]


# For each suffix, the inline markup of the texts, and a function that finds them.
FORMATS = {
    ".html": ("html", _html),
    ".md": ("markdown", _markdown),
    ".srt": ("text", _subtitles),
    ".vtt": ("text", _subtitles),
    ".po": ("text", _po),
    ".xlf": ("xliff", _pairs("trans-unit|segment", "source", "target")),
    ".tmx": ("xliff", _pairs("tu", "seg", "seg")),
    ".docx": ("xliff", _docx),
    ".json": ("text", _json),
}
_OTHER_SUFFIXES = {
    ".htm": ".html",
    ".xhtml": ".html",
    ".markdown": ".md",
    ".pot": ".po",
    ".xliff": ".xlf",
}
