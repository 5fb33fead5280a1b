"""XLIFF and TMX: sources without a translation, which is written beside them."""

import html
import re
from html.entities import html5
from xml.parsers import expat

from keras_transformer.documents.texts import Text
from keras_transformer.errors import DataError

ATTRIBUTES = r"""(?:[^<>"'/]|"[^"]*"|'[^']*')*"""


def check_xml(text, roots, path):
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


def pairs_finder(units, source, target):
    """Returns a function that yields the sources without a translation, in XML.

    The arguments are names of elements: of a pair, and of its sides.
    """
    prefix = r"(?:[\w.-]+:)?"
    part = re.compile(
        r"<!--.*?-->|<!\[CDATA\[.*?\]\]>"
        rf"|<(?P<name>{prefix}(?:{units}))\b(?P<own>{ATTRIBUTES})>(?P<pair>.*?)</(?P=name)>"
        rf"|<(?P<end>/?){prefix}(?:file|group|unit)\b(?P<outer>{ATTRIBUTES})(?P<empty>/?)>",
        re.DOTALL,
    )
    source_pattern = re.compile(
        rf"<({prefix}){source}\b{ATTRIBUTES}>(.*?)</\1{source}>", re.DOTALL
    )
    target_pattern = re.compile(
        rf"<({prefix}){target}\b({ATTRIBUTES})(?:/>|>(.*?)</\1{target}>)", re.DOTALL
    )

    def find_texts(text, path):
        check_xml(text, ["tmx" if units == "tu" else "xliff"], path)
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
