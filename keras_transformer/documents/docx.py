"""Word's .docx: paragraphs, whose runs of several formats move with their words."""

import io
import re
import zipfile
from typing import NamedTuple

from keras_transformer.documents.texts import Text
from keras_transformer.documents.xml import ATTRIBUTES, check_xml
from keras_transformer.errors import DataError


def read_docx(data, path):
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
        raise DataError(
            f"{path}: cannot be read as .docx ({error}). Save it as .docx again"
        ) from None
    if "word/document.xml" not in files:
        raise DataError(f"{path}: cannot be read as .docx (no word/document.xml)")
    return files


_DOCX_ROOTS = ["w:document", "w:hdr", "w:ftr", "w:footnotes", "w:endnotes"]
# The parts of a paragraph. All but `other` may stand in or between the runs of a text.
_DOCX_PART = re.compile(
    # A field within a paragraph whose result is no word, such as a number of a page.
    rf"(?P<field>(?:<w:fldSimple\b{ATTRIBUTES}>|<w:r(?:\s{ATTRIBUTES})?>(?:<w:rPr>"
    r"(?:(?!</w:rPr>).)*</w:rPr>)?<w:fldChar\b[^>]*\"begin\")"
    r"(?:(?!</w:p>|\"begin\"|<w:fldSimple\b|<w:t\b[^>]*>[^<]*[^\W\d_]).)*?"
    r"(?:</w:fldSimple>|\"end\"[^>]*>\s*</w:r>))"
    rf"|(?P<run><w:r(?:\s{ATTRIBUTES})?>(?P<format><w:rPr/>|<w:rPr>"
    r"(?:<w:rPrChange\b.*?</w:rPrChange>|(?!</w:rPr>).)*</w:rPr>)?)"
    rf"|(?P<text>(?P<tag><w:t(?:\s{ATTRIBUTES})?>)(?P<content>[^<]*)</w:t>"
    r"|<w:(?P<hyphen>soft|noBreak)Hyphen\s*/>)"
    r"|(?P<end></w:r>)|(?P<skipped><w:(?:proofErr|lastRenderedPageBreak)\b[^>]*>|<w:t/>"
    r"|<w:(?P<gone>del|moveFrom|smartTagPr)\b[^>]*(?<!/)>.*?</w:(?P=gone)>)"
    r"|(?P<mark><w:(?P<kind>bookmark|commentRange)(?P<side>Start|End)\b[^>]*>)"
    rf"|(?P<link><w:hyperlink\b{ATTRIBUTES}>)|(?P<link_end></w:hyperlink>)"
    r"|(?P<insertion><w:(?:ins|moveTo|smartTag)\b[^>]*(?<!/)>)"
    r"|(?P<insertion_end></w:(?:ins|moveTo|smartTag)>)"
    r"|(?P<other><[^>]*>)",
    re.DOTALL,
)


class _Part(NamedTuple):
    """A part of a paragraph of .docx, and the run in which it is, or `None`."""

    kind: str
    match: re.Match
    run: re.Match | None


def find_docx_texts(text, path):
    check_xml(text, _DOCX_ROOTS, path)
    parts, run = [], None
    for match in _DOCX_PART.finditer(text):
        run = match if match["run"] else run
        parts.append(_Part(match.lastgroup, match, run))
        run = None if match["end"] else run
        if match["other"]:
            yield from _docx_texts(text, parts[:-1])
            parts = []


def _docx_texts(text, parts):
    """Yields the `Text`s of parts without other ones.

    No link or insertion begins or ends within a text. The translation of a text accepts
    its insertions and deletions, and lacks its smart tags and optional hyphens.
    """
    begin, opened = 0, []
    for index, part in enumerate(parts):
        if part.kind in ("link", "insertion"):
            opened.append(index)
        elif part.kind in ("link_end", "insertion_end") and opened:
            opened.pop()
        elif part.kind in ("link_end", "insertion_end"):
            yield from _runs_text(text, parts[begin:index])
            begin = index + 1
    for index in (*opened, len(parts)):
        yield from _runs_text(text, parts[begin:index])
        begin = index + 1


_PROTECTED = ' mtype="protected"'


class _Runs(NamedTuple):
    """Runs of one format, in one link."""

    link: str
    format: str
    run: str  # how a run begins, or a whole field
    tag: str  # "" for a field
    content: str

    @property
    def rank(self):
        """Low for text that stands out little."""
        return not self.tag, bool(self.link), len(self.format)


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
        elif kind == "field":
            result = "".join(re.findall(r"<w:t\b[^>]*>([^<]*)", match[0]))
            groups.append(_Runs(link, "", match[0], "", result))
        elif kind == "text":
            tag = match["tag"] or "<w:t>"
            new = _Runs(link, run["format"] or "", run[0], tag, "")
            is_marked = marks and marks[-1][0] == len(groups)
            is_new = not groups or groups[-1][:2] != new[:2] or not groups[-1].tag
            if is_new or is_marked:
                groups.append(new)
            hyphen = "\u2011" if match["hyphen"] == "noBreak" else ""
            content = groups[-1].content + (match["content"] or hyphen)
            groups[-1] = groups[-1]._replace(content=content)
    if not any(each.tag for each in groups):
        return
    start, end = parts[0].match.start(), parts[-1].match.end()
    source = groups[0].content
    if len(groups) > 1:
        source = "".join(
            f'<g id="{index}"{_PROTECTED * (not each.tag)}>{each.content}</g>'
            for index, each in enumerate(groups)
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
    pattern = rf'<g id="(\d+)"(?:{_PROTECTED})?>(.*?)</g>|([^<]+)'
    found = re.findall(pattern, translation, re.DOTALL)
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
        if groups[best].link or not groups[best].tag:
            best = plainest
        if inside[num_done : num_done + 1] == [best] and pieces[-1:] != [best]:
            pending = outside
        else:
            pieces.append((best, outside))
    fields = [index for index, each in enumerate(groups) if not each.tag]
    pieces += [(index, "") for index in fields if index not in inside]
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
        if (content or not group.tag) and group.link != link:
            written, link = written + group.link, group.link
        if not group.tag:
            written += group.run
        elif content:
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
