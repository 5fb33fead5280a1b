"""Parsing of inline markup: text without tags, and the elements that were in it.

HTML, XLIFF, Markdown and escapes become a list of events, from which `Marked` texts are
built.
"""

import html
import re
from html.parser import HTMLParser
from typing import NamedTuple

from keras_transformer.decoding.spans import PLURAL, Span
from keras_transformer.errors import DataError

_KEEP = re.compile(rf"<keep>(.*?)</keep>|({PLURAL})", re.DOTALL)
_ENTITY = r"&(?:#\d+|#[xX][\da-fA-F]+|\w+);"
_TAG = re.compile(rf"<[A-Za-z/!?]|{_ENTITY}")
# Quotation marks and line breaks as in the strings of programs. What stands beside a
# break tells it from commands of LaTeX, relative folders, and words about escapes.
_ESCAPE = re.compile(
    r"""(?<![^\W\d_])\\"|\\"(?![^\W\d_])|\\'"""
    r"|(?:(?<!\s)\s+)?(?:\\[nrt])+(?=\s*(?:$|[^\Wa-z_]|[-*•<{%]))\s*"
    r"|(?<=[.,;:!?)])(?:\\[nr])+(?=[a-z])"
)
# Folders of Windows, which begin with a drive or a host.
_FOLDER = re.compile(
    r"""(?:\b[A-Za-z]:\\(?![nrt](?![a-z])|["'])|(?<!\S)\\\\(?=\w))\S*[^\s.,;:!?)"']"""
)
# Kinds of spans whose quotation marks and backslashes are no escapes.
_SOLID = {"urls", "emails", "placeholders", "code"}
_NO_TAG = re.compile(r"<[^<>\"']*<")  # another tag begins before this one ends
# Words in angle brackets, unless they are an element that ends or needs no end.
_WORDS = re.compile(r"<([A-Za-z]\w*)(?:\s+\w+)+\s*>")
_ENDLESS = {"dd", "dt", "li", "option", "p", "td", "th", "tr"}
# The rest of a link of Markdown, after its text.
_LINK_END = (
    r"\](?:\(\s*(?:<[^>]*>|(?:[^()\s]|\([^()]*\))*)"
    r"(?:\s+(?:\"[^\"]*\"|'[^']*'|\([^)]*\)))?\s*\)|\[[^\]]*\])?"
)
# A reference to a footnote, or a sign that is no markup between spaces.
_NO_TEXT = re.compile(r"(\[\^[^\]\s]+\]|(?<=\s)[*_](?=\s))")
# Characters that are markup of Markdown in most places.
_MARKUP = "\\`*_[]<>~|"
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta"}
_VOID |= {"source", "track", "wbr", "x", "bx", "ex"}
# Elements whose content is not language, and those that are code as a whole.
_CODE = {"code", "kbd", "samp", "var", "pre"}
# The readings in <ruby> are those of the source.
_OPAQUE = {"script", "style", "bpt", "ept", "ph", "it", "rt", "rp"}
# Footnote marks stay at the word before them.
_NOTE = re.compile(
    r"<sup\b[^<>]*>(?:<[^<>]*>|[^<>\w]|\d)*?</sup>|<a\b[^<>]*>\[\d+\]</a>"
)
# Opening and closing codes of XLIFF.
_PAIRS = {"bpt": "open", "bx": "open", "ept": "close", "ex": "close"}


class _Event(NamedTuple):
    """A part of marked-up text."""

    kind: str  # "text", "keep", "break", "open", "close" or "empty"
    raw: str
    key: object = None  # what an opening and its closing tag share
    text: str = ""  # of a "text" or "keep", what a reader sees


class Element:
    """An element in a text without tags, from `start` to `end`, or an empty tag."""

    def __init__(self, start, opening, has_space=False):
        self.start, self.end, self.opening, self.closing = start, start, opening, None
        self.has_space = [has_space, False]  # before and after
        self.children = []


class Marked(NamedTuple):
    """A text without its tags."""

    text: str
    spans: list  # `Span`s
    root: Element | None = None  # `None` if the source is not marked up
    breaks: tuple = ()  # tags that are line breaks in the text
    forms: dict | None = None  # how to write characters, such as "&amp;" for "&"
    edges: tuple = ("", "")  # white space before and after the text
    problem: str = ""  # of the tags


def parse(raw, syntax, protect, spans_of):
    """Returns the `Marked` text of a str, with the `Span`s that `spans_of` finds."""
    has_escapes = syntax == "text" and "escapes" in protect and _ESCAPE.search(raw)
    if syntax == "text" and not ("tags" in protect and _TAG.search(raw)):
        if not has_escapes:
            return Marked(raw, spans_of(raw))
        return _assemble([*_escape_events(raw, spans_of)], "plain", spans_of)
    parse = _markdown_events if syntax == "markdown" else _html_events
    events = []
    # Every third part is text, and one of the others what stays.
    for number, part in enumerate(_KEEP.split(raw)):
        if number % 3:
            kind = "keep" if number % 3 == 1 else "message"  # of ICU
            events += [] if part is None else [_Event("keep", part, kind, part)]
        elif re.search("</?keep>", part):
            raise DataError("<keep> and </keep> must surround each text that stays")
        else:
            events += parse(part)
    if has_escapes:
        divided = []
        for each in events:
            if each.kind == "text":
                divided += _escape_events(each.raw, spans_of, _unescape)
            else:
                divided.append(each)
        events = divided
    return _assemble(events, syntax, spans_of)


def _assemble(events, syntax, spans_of):
    """Builds the `Marked` text of a list of `_Event`s."""
    text, lead, kept, breaks, raw = "", "", [], [], ""
    root, problem, recent = Element(0, ""), "", []
    stack, has_empty = [(None, root)], False
    written = []  # in Markdown, how each character is written

    def close(event=None):
        """Ends the innermost element. Without its tag, it becomes an empty one."""
        nonlocal problem
        element = stack.pop()[1]
        if event:
            element.end, element.closing = len(text), event.raw
        else:
            problem = f"the tag {element.opening} has no partner. It is kept."
            stack[-1][1].children += element.children
            element.children = []

    filled = [
        number
        for number, event in enumerate(events)
        if event.kind in ("text", "keep") and event.text.strip()
    ] or [len(events)]
    for number, event in enumerate(events):
        if event.kind in ("text", "keep"):
            part = event.text
            if event.kind == "text":
                if syntax in ("html", "markdown"):
                    part = re.sub(r"[ \t\r\n]+", " ", part)
                # White space beside an empty tag is written with the tag.
                if not text and not has_empty:
                    lead += part[: len(part) - len(part.lstrip())]
                if not text or (text[-1:].isspace() and part[:1] == " "):
                    bare = part.lstrip()
                    if text[-1:] == "\n" and not recent:
                        breaks[-1] += part[: len(part) - len(bare)]
                    part = bare
                raw += event.raw
                if syntax == "markdown":
                    is_form = len(event.text) == 1 < len(event.raw)
                    written += [event.raw] if is_form else event.text
            else:
                kept.append(Span(len(text), part, event.key or "keep"))
            breaks += re.findall("\n", part)
            for each in recent:
                each.has_space[1] = event.text[:1].isspace()
            recent = [] if event.text else recent
            text += part
        elif event.kind == "break" and filled[0] < number < filled[-1]:
            beside = text[len(text.rstrip(" ")) :]
            text = text.rstrip(" ") + "\n"
            breaks.append(beside + event.raw)
            recent = []
        elif event.kind == "close" and event.key in [key for key, _ in stack[1:]]:
            while stack[-1][0] != event.key:
                close()
            close(event)
        else:
            element = Element(len(text), event.raw, text[-1:].isspace())
            stack[-1][1].children.append(element)
            recent.append(element)
            has_empty = has_empty or event.kind in ("empty", "break")
            if event.kind == "open":
                stack.append((event.key, element))
            elif event.kind == "close":
                problem = f"the tag {event.raw} has no partner. It is kept."
    while len(stack) > 1:
        close()
    if syntax == "markdown":
        forms = _markdown_forms(written)
    else:
        forms = {}
        for each, entity in _ENTITIES.items() if syntax != "plain" else ():
            found = re.findall(f"{_ENTITY}|{each}", raw)
            found = [form for form in found if html.unescape(form) == each]
            # Characters that are also written without entities stay, one by one.
            forms[each] = found if each in found else entity
        for each in {event.text for event in events if event.key == "escape"}:
            found = re.findall(rf"\\?{each}", raw)
            forms[each] = found if each in found else rf"\{each}"
    is_beside = any(each.closing is None for each in recent)
    trail = "" if is_beside else text[len(text.rstrip()) :].replace("\n", "")
    text = text.rstrip()
    root.end = len(text)
    free = [
        span
        for span in spans_of(text)
        if not any(one.start < span.end and span.start < one.end for one in kept)
    ]
    spans = sorted(kept + free)
    return Marked(text, spans, root, breaks, forms, (lead, trail), problem)


def _markdown_forms(written):
    """Returns how to write characters of a text of Markdown, of which each is given.

    A list has the forms of a character one after another.
    """
    bare = {each for each in written if len(each) == 1}
    forms = {each: f"\\{each}" for each in _MARKUP if each not in bare}
    for each in {each for each in written if len(each) > 1}:
        character = html.unescape(each) if each[0] == "&" else each[1]
        if each[0] == "&" or forms.get(character) == each:
            forms[character] = each
        else:  # markup only in some places, such as the period of "1."
            forms[character] = [one for one in written if one in (character, each)]
    return forms


class TagParser(HTMLParser):
    """Finds where tags and text begin: `found`, (start, kind, name, attributes)."""

    def __init__(self, raw):
        super().__init__(convert_charrefs=False)
        self._lines = [0, *(match.end() for match in re.finditer("\n", raw))]
        self.found = []
        self._closed = {*re.findall(r"</(\w+)", raw.lower())} | _VOID | _ENDLESS
        self.feed(raw)
        self.close()

    def _add(self, kind, name="", attributes=()):
        line, column = self.getpos()
        start = self._lines[line - 1] + column
        self.found.append((start, kind, name, dict(attributes)))

    def parse_starttag(self, i):
        words = _WORDS.match(self.rawdata, i)
        is_text = words and words[1].lower() not in self._closed
        if is_text or _NO_TAG.match(self.rawdata, i):
            self.handle_data("<")
            return i + 1
        return super().parse_starttag(i)

    def handle_starttag(self, tag, attrs):
        if "@" in tag:  # an address in angle brackets
            self.handle_data(tag)
            return
        self._add("empty" if tag in _VOID else "open", tag, attrs)

    def handle_startendtag(self, tag, attrs):
        self._add("empty", tag, attrs)

    def handle_endtag(self, tag):
        self._add("close", tag)

    def handle_data(self, data):
        self._add("text")

    handle_entityref = handle_charref = handle_data

    def handle_comment(self, data):
        self._add("empty")

    handle_decl = handle_pi = unknown_decl = handle_comment


def is_untranslated(attributes):
    """Returns whether attributes of HTML exclude an element from translation."""
    classes = (attributes.get("class") or "").split()
    return attributes.get("translate") == "no" or "notranslate" in classes


def _html_events(raw):
    """Returns the `_Event`s of HTML, or of XLIFF."""
    found = TagParser(raw).found
    found.append((len(raw), "", "", {}))
    events, index = [], 0
    while index < len(found) - 1:
        start, kind, name, attributes = found[index]
        index += 1
        key = name = name.rpartition(":")[2]  # without the prefix of a namespace
        stays = is_untranslated(attributes) or name in _CODE
        stays = stays or attributes.get("mtype") == "protected"
        content = None
        is_opaque = name in _OPAQUE or _NOTE.match(raw, start)
        if kind == "open" and (stays or is_opaque):
            ends = [
                i
                for i in range(index, len(found))
                if found[i][1] == "close" and found[i][2].rpartition(":")[2] == name
            ]
            if ends and stays:
                content = raw[found[index][0] : found[ends[0]][0]]
            elif ends:
                kind, index = "empty", ends[0] + 1
        if name in _PAIRS and kind == "empty":
            kind, key = _PAIRS[name], attributes.get("rid") or attributes.get("id")
        while kind == "text" and found[index][1] == "text":
            index += 1
        part = raw[start : found[index][0]]
        if name == "br":
            kind = "break"
        events.append(_Event(kind, part, key, _unescape(part)))
        if content:
            events.append(_Event("keep", content, text=content))
            index = ends[0]
    return events


def _unescape(raw):
    # `html.unescape` also takes the `&copy=1` of an address for an entity.
    return re.sub(_ENTITY, lambda match: html.unescape(match[0]), raw)


def _escape_events(raw, spans_of, read=str):
    """Yields the `_Event`s of a text with escapes. `read` decodes its other parts."""
    solid = [match.span() for match in _FOLDER.finditer(raw)]
    solid += [
        (span.start, span.end)
        for span in spans_of(raw)
        if span.kind in _SOLID and re.search(r"""[\\"']""", span.text)
    ]
    escapes = [
        match.span()
        for match in _ESCAPE.finditer(raw)
        if not any(a < match.end() and match.start() < b for a, b in solid)
    ]
    at = 0
    for start, end in sorted(solid + escapes):
        if start < at:
            continue
        if at < start:
            yield _Event("text", raw[at:start], text=read(raw[at:start]))
        part, at = raw[start:end], end
        if (start, end) in solid:
            yield _Event("keep", part, text=part)
        elif part[0] == "\\" and part[1] in "\"'":
            yield _Event("text", part, "escape", part[1])
        else:
            yield _Event("break", part)
    if at < len(raw):
        yield _Event("text", raw[at:], text=read(raw[at:]))


def _markdown_events(raw):
    """Returns the `_Event`s of a paragraph of Markdown.

    The parser gives no places, so each token is looked for where the last one ended.
    """
    from markdown_it import MarkdownIt

    tokens, events, at = [], [], 0
    parser = MarkdownIt().enable("strikethrough")
    parser.inline.parse(raw, parser, {}, tokens)
    for token in tokens:
        name = token.type.split("_")[0]
        kind = {1: "open", 0: "empty", -1: "close"}[token.nesting]
        pattern = re.escape(token.markup or token.content)
        if name in ("text", "softbreak"):
            kind = "text"
        if name in ("softbreak", "hardbreak"):
            kind = "break" if name == "hardbreak" else kind
            pattern = r"(?: *|\\)\n *"
        elif name == "link":
            is_open = kind == "open"
            pattern = r"[<\[]" if is_open else f">|{_LINK_END}"
        elif name == "image":
            pattern = rf"!\[{re.escape(token.content)}{_LINK_END}"
        elif name == "code":
            pattern = rf"({pattern}(?!`))(.*?)((?<!`){pattern}(?!`))"
        match = re.compile(pattern, re.DOTALL).match(raw, at)
        if match is None:
            return [_Event("text", raw, text=raw)]
        at = match.end()
        if name == "code":
            opening, content, closing = match.groups()
            events.append(_Event("open", opening, name))
            events.append(_Event("keep", content, text=content))
            events.append(_Event("close", closing, name))
        elif name == "html":
            events += _html_events(token.content)
        elif token.type == "text":
            parts = _NO_TEXT.split(match[0])
            for part, other in zip(parts[::2], [*parts[1::2], ""], strict=True):
                events.append(_Event("text", part, text=part))
                kind = "empty" if other.startswith("[") else "keep"
                kind = "text" if f"\\{other}" in raw else kind
                events += [_Event(kind, other, text=other)] if other else []
        elif re.search(r"\s&[lg]t;\s", raw[match.start() - 1 : at + 1]):
            events.append(_Event("keep", match[0], text=match[0]))
        elif match[0]:
            events.append(_Event(kind, match[0], name, token.content or " "))
    return events
