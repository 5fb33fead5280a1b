"""Markdown: headings, paragraphs, items of lists and cells of tables."""

import itertools
import re

from keras_transformer.documents.texts import wrapped_text


def find_markdown_texts(text, path):
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
                    yield wrapped_text(text, part[0][0], part[-1][1], gaps)


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
