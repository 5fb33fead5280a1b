"""Inline markup: tags are taken out of a text, and put into its translation.

Where the tags of an element go is read from the alignment: around the words that are
aligned with its words. The translation of markup is thus balanced and nested, and the
model sees only text.
"""

import contextlib
import functools
import itertools
import operator
import re
import unicodedata

from keras_transformer.decoding.markup_parser import parse
from keras_transformer.decoding.spans import (
    ENDS,
    KINDS,
    PROTECTED,
    find_spans,
    pattern_at,
    translate_spans,
    without_warnings,
)
from keras_transformer.decoding.warnings import add_warning
from keras_transformer.errors import DataError, ModelError

SYNTAXES = ("text", "html", "xliff", "markdown")
# Languages that a text names for a multilingual model. They are neither tags nor text.
_LANGUAGES = re.compile(r"(?: *>>[\w -]+<< *)?")
# The separators of words in an alignment are those of ASCII.
_WORD = re.compile(r"[^ \t\n\r\x0b\x0c]+")
_BEFORE, _AFTER = (
    re.compile(r"[\"'(«“„‘¿¡\[]+"),
    re.compile(r"[\s.,;:!?…»”’\"')\]。！？]+$"),
)


def translate_marked(translator, texts, syntax="html", protect=PROTECTED):
    """Translates texts with inline markup.

    Args:
        translator: `Translator`, or another object with `n_best`, `warn` and, for
            markup, `align`.
        texts: List of str, each a sentence or a paragraph.
        syntax: `"html"`; `"xliff"`, the inline elements of XLIFF; `"markdown"`; or
            `"text"`, in which `protect` decides whether tags and escapes count.
        protect: Kinds of spans that stay as they are (see `Translator.translate`).
            `<keep>` and `</keep>` surround others.

    Returns:
        List of str: the translations, with each tag as it was.

    Raises:
        ValueError: If `syntax` is unknown.
        DataError: If `<keep>` or `</keep>` lacks the other.

    Examples:
        >>> translator = kt.open_model("phrases")
        >>> kt.decoding.translate_marked(translator, ["<b>12 euros</b>"])
        ['<b>12 Euro</b>']
    """
    found = n_best_marked(translator, texts, 1, syntax, protect)
    return [best.text for best, *_ in found]


def n_best_marked(translator, texts, n, syntax, protect, name=None):
    """Returns the `n` best translations of each text (see `translate_marked`).

    `name` is called with the index of a text, and returns how errors name it.
    """
    unknown = {protect} if isinstance(protect, str) else {*protect} - {*KINDS}
    if unknown:
        raise ValueError(
            f"`protect` must contain only {', '.join(KINDS)}. "
            f"Received: {', '.join(sorted(unknown))}."
        )
    if syntax not in SYNTAXES:
        raise ValueError(
            f"`syntax` must be one of {', '.join(SYNTAXES)}. "
            f"Received: syntax={syntax!r}."
        )
    languages = [_LANGUAGES.match(text)[0] for text in texts]
    texts = [text[len(each) :] for text, each in zip(texts, languages, strict=True)]
    known = getattr(translator, "characters", frozenset())
    if known and getattr(getattr(translator, "text_options", None), "layout", False):
        known |= {"|"}  # the bars of tables are no part of what a model translates
    # Documents in PDF have ligatures such as "ﬁ".
    ligatures = {*map(chr, range(0xFB00, 0xFB07))} - known if known else ()
    ligatures = {ord(each): unicodedata.normalize("NFKC", each) for each in ligatures}
    texts = [text.translate(ligatures) for text in texts]
    unknown = frozenset()
    if known and not known.issuperset(
        "".join(texts)
    ):  # finding them takes a tenth of a second
        unknown = getattr(translator, "unknown_characters", unknown)
    spans_of = functools.partial(
        find_spans, kinds=protect, known=known, unknown=unknown
    )
    marked = []
    for index, text in enumerate(texts):
        try:
            marked.append(parse(text, syntax, protect, spans_of))
        except DataError as error:
            place = name(index) if name else f"line {index + 1}"
            raise DataError(f"{place}: {error}") from None
    plain = [each.text for each in marked]
    spans = [each.spans for each in marked]
    found = translate_spans(translator, plain, spans, n, languages)
    changed = [
        (index, number, each.text)
        for index, candidates in enumerate(found)
        for number, each in enumerate(candidates)
        if marked[index].root is not None
    ]
    # Without tags, nothing needs to be aligned.
    tagged = [
        place
        for place, (index, _, text) in enumerate(changed)
        if marked[index].root.children and text.strip() and text != plain[index]
    ]
    rows = [changed[place] for place in tagged]
    pairs = [(languages[index] + plain[index], text) for index, _, text in rows]
    aligned = {}
    for place, row, words in zip(tagged, rows, _align(translator, pairs), strict=True):
        num_languages = len(languages[row[0]].split())
        aligned[place] = [
            (source - num_languages, target)
            for source, target in words
            if source >= num_languages
        ]
    for place, (index, number, text) in enumerate(changed):
        new = texts[index]
        if text != plain[index]:
            aligned_words = aligned.get(place, ())
            new = _Placing(marked[index], text.strip(), aligned_words).text()
        found[index][number] = found[index][number]._replace(text=new)
    for index, each in enumerate(marked):
        if each.problem:
            found[index] = add_warning(found[index], each.problem)
        for warning in found[index][0].warnings:
            translator.warn(index, warning)
    return found


def _align(translator, pairs):
    """Returns the aligned words of (source, translation) pairs, or none."""
    if pairs and hasattr(translator, "align"):
        # An ensemble has no alignments.
        with contextlib.suppress(ModelError):
            return without_warnings(translator).align(
                *map(list, zip(*pairs, strict=True))
            )
    return [()] * len(pairs)


class _Placing:
    """Finds the places of elements in a translation."""

    def __init__(self, marked, target, aligned):
        self.marked, self.target = marked, target
        self.spans = [
            (match.start(), match.end(), span.kind in ("keep", "message"))
            for span in marked.spans
            for match in re.finditer(
                pattern_at(marked.text, span.start, span.end), target
            )
        ]
        self.sources = [match.span() for match in _WORD.finditer(marked.text)]
        self.targets = [match.span() for match in _WORD.finditer(target)]
        self.source_of = {target: source for source, target in aligned}

    def text(self):
        """Returns the translation with tags, entities and white space."""
        size, words = len(self.target), range(len(self.targets))
        pieces, breaks = [], iter(self.marked.breaks)
        forms = {
            character: itertools.chain(form, itertools.repeat(character))
            if isinstance(form, list)
            else itertools.repeat(form)
            for character, form in self.marked.forms.items()
        }
        for piece in self.render(self.marked.root, 0, size, words):
            if isinstance(piece, str):
                pieces.append(piece)
                continue
            for at in range(*piece):
                character = self.target[at]
                if character == "\n" and self.marked.breaks:
                    character = next(breaks, character)
                elif not any(keep and a <= at < b for a, b, keep in self.spans):
                    character = (
                        next(forms[character]) if character in forms else character
                    )
                pieces.append(character)
        lead, trail = self.marked.edges
        return "".join([lead, *pieces, *breaks, trail])

    def render(self, parent, low, high, words):
        """Yields the tags in an element, and (start, end) of the text between them.

        The element has the characters from `low` to `high` and the words `words` of the
        translation.
        """
        placed, free = [], set(words)
        own = self._source_words(parent)
        for child in parent.children:
            inner, found = self._source_words(child), range(0)
            if child.closing is not None:
                found = words if inner == own else self._best_words(inner, words, free)
            if child.closing is not None and inner == own:
                place = low, high
            else:
                place = self._trim(child, found) if found else self._gap(child, parent)
            for first, last in self._around(child):
                pattern = re.compile(pattern_at(self.marked.text, first, last))
                matches = pattern.finditer(self.target, low, high)
                places = [match.start() for match in matches]
                if places:
                    at = min(places, key=lambda at: abs(at - place[0]))
                    place = at + child.start - first, at + child.end - first
                    break
            free -= set(found)
            placed.append(
                (*(min(max(each, low), high) for each in place), child, found)
            )
        for start, end, child, found in sorted(placed, key=operator.itemgetter(0)):
            start = max(low, start)
            end = max(start, end)
            yield low, start
            if child.closing is not None:
                yield child.opening
                yield from self.render(child, start, end, found)
                yield child.closing
            else:
                before, after = child.has_space
                is_apart = start == 0 or self.target[start - 1].isspace()
                yield " " * (before and not is_apart)
                yield child.opening
                is_apart = self.target[start : start + 1] in ("", " ")
                yield " " * (after and not is_apart)
            low = end
        yield low, high

    def _around(self, element):
        """Returns the spans around an element, and the word of which it is a part.

        The translation may contain them unchanged.
        """
        start, end = element.start, element.end
        if start == end and start in (0, len(self.marked.text)):
            return []
        around = [(span.start, span.end) for span in self.marked.spans]
        around += [(a, b) for a, b in self.sources if a < start < b or a < end < b]
        return [(a, b) for a, b in around if a <= start and end <= b]

    def _source_words(self, element):
        return [
            index
            for index, (start, end) in enumerate(self.sources)
            if start < element.end and element.start < end
        ]

    def _best_words(self, inner, words, free):
        """Returns the range of words that the words `inner` are aligned with best.

        Of all ranges of free words, it has the most words that are aligned with an
        inner one, less those that are aligned with another word.
        """
        best, total, first, found = 0, 0, None, range(0)
        for word in words:
            if word not in free:
                total, first = 0, None
                continue
            gain = 1 if self.source_of.get(word) in inner else -1
            if first is None or total <= 0:
                total, first = 0, word
            total += gain
            if total > best:
                best, found = total, range(first, word + 1)
        if not found and inner and free:  # nothing is aligned
            ratio = (inner[0] + 0.5) / len(self.sources) * len(self.targets)
            word = min(free, key=lambda each: abs(each + 0.5 - ratio))
            found = range(word, word + 1)
        return found

    def _trim(self, element, words):
        """Returns the characters of words, with punctuation only if the element has."""
        start, end = self.targets[words[0]][0], self.targets[words[-1]][1]
        inner = self._source_words(element)
        if element.end < self.sources[inner[-1]][1]:
            end -= len((_AFTER.search(self.target[start:end]) or [""])[0])
        elif words[-1] == len(self.targets) - 1 and inner[-1] < len(self.sources) - 1:
            # The end of the sentence belongs to another word of the source.
            source = self.marked.text[element.start : element.end].rstrip()
            bare = self.target[start:end].rstrip(ENDS)
            if bare and source[-1] not in ENDS:
                end = start + len(bare)
        if element.start > self.sources[inner[0]][0]:
            start += len((_BEFORE.match(self.target[start:end]) or [""])[0])
        for first, last, _ in self.spans:
            start = first if first < start < last else start
            end = last if first < end < last else end
        return start, max(start, end)

    def _gap(self, element, parent):
        """Returns the place of an empty tag: after a word, or before the next one."""
        at, text = element.start, self.marked.text
        if not text[parent.start : at].strip():
            return 0, 0
        if not text[at : parent.end].strip() or not self.targets:
            return len(self.target), len(self.target)
        word = sum(start < at for start, _ in self.sources) - 1
        is_after = not element.has_space[0] or word == len(self.sources) - 1
        word += not is_after
        found = [k for k in range(len(self.targets)) if self.source_of.get(k) == word]
        if not found:
            ratio = (word + 0.5) / len(self.sources)
            found = [int(ratio * len(self.targets))]
        start, end = self.targets[found[-1 if is_after else 0]]
        if is_after and at < self.sources[word][1]:
            # The tag stands before the word's punctuation.
            end -= len((_AFTER.search(self.target[start:end]) or [""])[0])
        place = end if is_after else start
        for first, last, _ in self.spans:
            place = last if first < place < last else place
        return place, place
