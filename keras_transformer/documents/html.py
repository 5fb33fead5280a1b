"""HTML: the texts between elements that divide a page, with their inline elements."""

import itertools
import re

from keras_transformer.documents.texts import Text, wrapped_text
from keras_transformer.errors import DataError

# Elements that divide texts, as does what is no element. Browsers show others inline.
_BLOCK = re.compile(
    "|address|area|article|aside|audio|base|blockquote|body|br|button|canvas|caption|"
    "center|col|colgroup|datalist|dd|details|dialog|dir|div|dl|dt|embed|fieldset|"
    "figcaption|figure|footer|form|frame|frameset|h[1-6]|head|header|hgroup|hr|html|"
    "iframe|input|legend|li|link|listing|main|map|math|menu|meta|meter|nav|noframes|"
    "noscript|object|ol|optgroup|option|output|p|param|picture|plaintext|pre|progress|"
    "script|search|section|select|slot|source|style|summary|svg|table|tbody|td|template|"
    "textarea|tfoot|th|thead|title|tr|track|ul|video|xmp"
)
_UNTRANSLATED = {"script", "style", "pre", "textarea", "template", "svg", "math"}


def find_html_texts(text, path, has_attributes=False):
    # Imported here because it loads Keras.
    from keras_transformer.decoding.markup_parser import TagParser, is_untranslated

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
            if not _BLOCK.fullmatch(name):
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
    if re.search(r"[^\W\d_]", re.sub(r"<[^>]*>|&\w+;", "", piece)):
        end = start + len(piece.rstrip())
        start += len(piece) - len(piece.lstrip())
        found = re.finditer(r"<[^>]*>|[ \t\r]*\n\s*", text[start:end])
        breaks = [one.span() for one in found if one[0][0] != "<"]
        breaks = [(start + a, start + b) for a, b in breaks]
        yield wrapped_text(text, start, end, breaks)


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
