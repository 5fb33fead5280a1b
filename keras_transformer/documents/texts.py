"""Texts of documents, and the places in which their translations belong."""

import re
from collections.abc import Callable
from typing import NamedTuple


class Text(NamedTuple):
    """A text, and the place of its translation, from `start` to `end`, in characters.

    `write` returns what replaces the place, from the translation.
    """

    text: str
    start: int
    end: int
    write: Callable[[str], str] = str


def wrapped_text(text, start, end, breaks):
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
