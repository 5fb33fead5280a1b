"""Spans that a translation contains unchanged, such as addresses and placeholders.

The translation of the text as it is comes first. Only where it lacks a span, or has one
twice, the text is translated again with a stand-in for each span, a name or a number.
If a stand-in is lost, too, the search must generate others (see `decoding.required`).
If that fails, what lies between the spans is translated by itself.
"""

import collections
import copy
import functools
import itertools
import re
import unicodedata
from typing import NamedTuple

from keras_transformer.decoding.forbidden import script_of
from keras_transformer.decoding.warnings import UNTRANSLATED, add_warning
from keras_transformer.errors import ModelError

# The default kinds.
PROTECTED = ("urls", "emails", "placeholders", "tags", "symbols", "escapes")
# A message of ICU that depends on a number or a word, with up to three inner levels.
_INNER = "[^{}]*"
for _ in range(3):
    _INNER = rf"(?:[^{{}}]|\{{{_INNER}\}})*"
PLURAL = rf"\{{\s*\w+\s*,\s*(?:plural|select|selectordinal)\s*,{_INNER}\}}"
# Of kinds that overlap, the first one counts.
_PATTERNS = {
    "code": r"`[^`\n]+`|(?<![\w/])/\w[\w.-]*(?:/[\w.-]*\w)+|\b\w+(?:_\w+)+\b(?:\(\))?"
    r"|\b[A-Za-z_]\w*\(\)|(?<![\w-])--[a-z][\w-]*",
    # A closing parenthesis belongs to an address that has its opening one.
    "urls": r"(?:\b(?:https?|ftp)://|\bwww\.)"
    r"(?:\([^\s<>()]*\)|[^\s<>\"“”«»(]|\((?![^\s<>()]*\)))*"
    r"(?:\([^\s<>()]*\)|[^\s<>\"“”«»(.,;:!?)\]}'’…])",
    "emails": r"\b[\w.+-]+@\w[\w-]*(?:\.[\w-]*\w)+",
    "placeholders": rf"{PLURAL}|"
    r"\{\s*\w+\s*,\s*(?:number|date|time|spellout|ordinal|duration|list)\b[^{}]*\}"
    r"|\{%.*?%\}|<%.*?%>|\[\[[^\[\]\n]*\]\]|\\\(\w[\w.]*\)|(?<![\w%])%[A-Za-z_]\w+%|"
    r"(?<!\S)[$:][a-z_]\w*|(?<!\w)#(?:[\da-fA-F]{6}|(?=\w*\d)[\da-fA-F]{3})\b|"
    r"%%|\{\{[^{}\n]*\}\}|[$#%]?\{[^{}\s]*\}"
    r"|%(?:\(\w+\)|\d+\$)?[-+#0]*\d*(?:\.\d+)?(?:hh?|ll?|[jzt])?[diouxXeEfgGcrsa@](?!\w)",
    # Emoji with their modifiers, arrows, and signs such as a note or a check mark. Also
    # comparisons, because models take them for tags. A tag has attributes with `=`.
    "symbols": r"(?<!\w)\w+<=?\w+\b(?![^\s<>]*(?:\s*/?>|\s+[\w:-]+\s*=[^<>]*>))|"
    "(?:[\u00a9\u00ae\u2190-\u2bff\U0001f000-\U0001faff]"
    "[\ufe0f\u200d\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*)+",
    "numbers": r"\d{1,3}(?:[ \u00a0\u202f]\d{2,3})+(?:[.,]\d+)?\b"
    r"|\w*\d(?:[\w.,:/’'-]*\w)?",
}
KINDS = (*PROTECTED, "numbers", "code")
# A number, or a part of a date or time.
_FIGURE = re.compile(
    r"(?<![.,\d])(?:\d{1,3}(?:[.,'’ \u00a0\u202f]\d{3}(?!\d))+|\d+)[.,]\d+(?![.,]?\d)"
    r"|\d{1,3}(?:[.,'’ \u00a0\u202f]\d{3}(?!\d))+|\d+"
)
# How the names of marks that all scripts share begin.
_NO_SCRIPTS = {"", "COMBINING", "VARIATION"}
_DINGBAT = re.compile("[\u2600-\u2bff\U0001f000-\U0001faff]")
# Signs that Unicode counts as punctuation, but that sentences need as little as `+`.
_SIGNS = "%‰#@§¶†‡\\"
# Words that translators know and keep, for texts without them.
_NAMES = ("Tom", "Maria", "Paris", "London", "Peter", "Berlin", "Anna", "Rome")
_FIGURES = ("17", "23", "35", "46", "58", "64", "79", "92")
# Placeholders that stand for a number.
_COUNTS = re.compile(r"%.*[diu]|.*(?:count|num|total|size|amount)\w*\}*|\{+n\}+", re.I)
_LETTER = re.compile(r"[^\W\d_]")
ENDS = ".!?…。！？"


class Span(NamedTuple):
    """A part of a text that its translation must contain."""

    start: int
    text: str
    kind: str

    @property
    def end(self):
        return self.start + len(self.text)


def find_spans(text, kinds, known=frozenset(), unknown=frozenset()):
    """Returns the `Span`s of a text, in order. They do not overlap.

    `known` are the characters that a model knows, or none if that is not known. With
    `"symbols"`, words and symbols with other characters are spans, too. Letters of
    known scripts may be normalized, so they count only if they are among the `unknown`.
    """
    patterns = [f"(?P<{kind}>{_PATTERNS[kind]})" for kind in _PATTERNS if kind in kinds]
    if "symbols" in kinds and known and not known.issuperset(text):
        # Before numbers, which may belong to a symbol.
        place = len(patterns) - ("numbers" in kinds)
        patterns[place:place] = _rare_patterns(text, known, unknown)
    if not patterns:
        return []
    found = re.finditer("|".join(patterns), text)
    return [Span(each.start(), each[0], each.lastgroup) for each in found]


def _rare_patterns(text, known, unknown):
    """Yields patterns of the words and symbols with characters that are not known.

    Other letters of known scripts than `unknown` are no such characters, nor is
    punctuation, because they may be translated.
    """
    letters = signs = ""
    for character in {*text} - known:
        kind = unicodedata.category(character)[0]
        is_rare = character in unknown
        is_sign = character in _SIGNS or (kind == "P" and is_rare)
        # Emoji and dingbats do not belong to the words and figures beside them.
        if is_sign or (kind == "S" and not _DINGBAT.match(character)):
            signs += re.escape(character)
        elif kind in "LMN" and (is_rare or script_of(character) not in _scripts(known)):
            letters += re.escape(character)
    if letters:
        # Without the assertions, each letter of a long word would be a start to try.
        yield rf"(?P<word>(?<!\w)\w*[{letters}]+(?:[^\w<>]{{0,2}}[{letters}]+)*\w*)"
    if signs:
        number = r"\d(?:[\d.,]*\d)?"
        sign = rf"[{signs}]+(?: ?{number}|\w+)?"
        yield rf"(?P<sign>(?:(?<!\w)(?:{number}[ \u00a0]?|\w+))?{sign}(?: ?{sign})*)"


@functools.cache
def _scripts(characters):
    """Returns the scripts of the letters and digits among characters."""
    kinds = ((unicodedata.category(each)[0], each) for each in characters)
    return {script_of(each) for kind, each in kinds if kind in "LN"} | _NO_SCRIPTS


def pattern_at(source, start, end):
    """Returns a pattern of a part of a text, which its parts of words do not match.

    Nor does a longer run of a sign, such as a bracket.
    """
    part = source[start:end]
    first, last = (
        re.sub(r"^\w$", r"\\w", re.escape(each)) for each in (part[:1], part[-1:])
    )
    # A pattern that begins with its text is fast.
    part = re.escape(part)
    before, after = f"(?<!{first}{part})", f"(?!{last})"
    # A part that is itself within a word or run matches such parts.
    before = before if re.compile(before).match(source, end) else ""
    after = after if re.compile(after).match(source, end) else ""
    return f"{part}{before}{after}"


def lost_spans(text, source, spans):
    """Returns the spans that a translation lacks, or has more often than its source."""
    lost = []
    for span in spans:
        most = _count(span, source, source)
        least = most
        if span.kind != "numbers":  # other words of the source may look like a span
            least = sum(each.text == span.text for each in spans)
        if not least <= _count(span, text, source) <= most:
            lost.append(span)
    return lost


def _count(span, text, source):
    if span.kind != "numbers":
        return len(re.findall(pattern_at(source, span.start, span.end), text))
    # Figures may have the notation of another language.
    found = [_value(each.text) for each in find_spans(text, (span.kind,))]
    return found.count(_value(span.text))


def _needs_standins(text, spans):
    """Returns whether a text is to be translated with stand-ins in any case.

    Other words may look like a span, or only the spans of a text in capitals, which is
    translated like other text, have none.
    """
    numbers = collections.Counter(span.text for span in spans)
    is_ambiguous = any(
        _count(span, text, text) > numbers[span.text]
        for span in spans
        if span.kind != "numbers"
    )
    return is_ambiguous or (_has_capitals(text, spans) and not text.isupper())


def _has_capitals(text, spans):
    """Returns whether a text, but for its spans, is in capitals and no abbreviation."""
    text = _between(text, spans)
    return text.isupper() and sum(map(str.isupper, text)) > 4


def _value(figure):
    """Removes what separates the thousands of a number, and writes a decimal point."""
    figure = re.sub(r"(?<=\d)[.,'’ \u00a0\u202f](?=\d{3}(?!\d))", "", figure)
    return re.sub(r"(?<=\d),(?=\d)", ".", figure)


def translate_spans(translator, texts, spans, n=1, languages=None):
    """Returns the `n` best translations of texts that contain their spans.

    Args:
        translator: `Translator`, or another object with `n_best`. Only a `Translator`
            can require stand-ins. `warn` is not called.
        texts: List of str.
        spans: For each text, a list of its `Span`s.
        n: Number of translations.
        languages: For each text, the prefix that names its languages, or "". If `None`,
            no text has one.

    Returns:
        For each text, a list of 1 to `n` `Translation`s. Texts without spans have those
        of `translator.n_best`. If a span or a number is lost, or a message of ICU
        stays, it has a warning.
    """
    quiet = without_warnings(translator)
    is_bare = [
        bool(row) and not _LETTER.search(_between(text, row))
        for text, row in zip(texts, spans, strict=True)
    ]
    languages = [""] * len(texts) if languages is None else languages
    options = {}
    if getattr(translator, "glossary", ()):
        options["protected"] = [[each.text for each in row] for row in spans]
    lines = []
    for text, row, bare, language in zip(texts, spans, is_bare, languages, strict=True):
        # `n_best` warns that words in other scripts are not translated.
        text = " ".join(x.text for x in row if x.kind == "word") if bare else text
        lines.append(text and language + text)
    found = quiet.n_best(lines, n, **options)
    untranslated = [
        [each for each in best.warnings if UNTRANSLATED in each] for best, *_ in found
    ]
    for index in itertools.compress(range(len(texts)), is_bare):
        changed = {"text": texts[index], "score": 0.0, "warnings": ()}
        found[index] = [found[index][0]._replace(**changed)]
    left = [
        index
        for index, text in enumerate(texts)
        if spans[index]
        and text.strip()
        and (
            not _keep(index, found, texts, spans, n)
            or _needs_standins(text, spans[index])
        )
    ]
    # A stand-in for a span of one cell or sentence must not change the others.
    pieces = _divide(translator, [texts[i] for i in left], [spans[i] for i in left])
    divided = {
        index: each
        for index, each in zip(left, pieces, strict=True)
        if each != [("", texts[index], spans[index])]
    }
    if divided:
        rows = [(i, *piece) for i, each in divided.items() for piece in each]
        of_text = [languages[index] for index, *_ in rows]
        of_piece = [line for *_, line, _ in rows], [row for *_, row in rows]
        translated = iter(translate_spans(quiet, *of_piece, n, of_text))
        for index, each in divided.items():
            candidates = [next(translated) for _ in each]
            gaps = [gap for gap, *_ in each]
            found[index] = _join_pieces(found[index][0], gaps, candidates)
        left = [index for index in left if index not in divided]
    for attempt in range(3):
        if not left:
            break
        swapped = [_swap(texts[index], spans[index], attempt) for index in left]
        lines, standins = zip(*swapped, strict=True)
        lines = [languages[i] + line for i, line in zip(left, lines, strict=True)]
        # A search that is free places a stand-in best, but may lose it.
        required = list(map(list, standins)) if attempt else None
        options = {"required": required} if hasattr(translator, "search") else {"n": 1}
        try:
            again = quiet.n_best(lines, **options)
        except ModelError:  # the vocabulary cannot spell a stand-in
            break
        for index, candidates, names in zip(left, again, standins, strict=True):
            candidates = [_restore(each, names) for each in candidates]
            found[index] = [*filter(None, candidates), found[index][0]]
        left = [i for i in left if not _keep(i, found, texts, spans, n)]
    # The text between figures would lose its meaning.
    solid = [[each for each in row if each.kind != "numbers"] for row in spans]
    parts = [i for i in left if lost_spans(found[i][0].text, texts[i], solid[i])]
    _translate_between(quiet, parts, found, texts, solid, languages)
    for index, text in enumerate(texts):
        best = found[index][0].text
        lost = [span.text for span in lost_spans(best, text, spans[index])]
        lost += [
            figure
            for figure in _lost_figures(text, best)
            if not any(figure in each for each in lost)
        ]
        messages = [f"the translation changes {each!r}" for each in lost]
        for span in spans[index]:
            if span.kind != "keep" and re.fullmatch(PLURAL, span.text):
                name = ",".join(" ".join(span.text.split()).split(",")[:2])
                messages.append(
                    f"{name}, ...}} is not translated: translate its forms one by one"
                )
        # Stand-ins hide words of other scripts.
        for each in dict.fromkeys(messages + untranslated[index]):
            if each not in found[index][0].warnings:
                found[index] = add_warning(found[index], each)
    return found


def _divide(translator, texts, spans):
    """Returns the pieces of each text that are translated separately.

    A piece is what stands before it, its text, and its spans, which are not divided.
    """
    options = getattr(translator, "text_options", None)
    if options is None or not texts:
        return [[("", *each)] for each in zip(texts, spans, strict=True)]
    # Imported here because it loads TensorFlow.
    from keras_transformer.decoding.text import divide

    encoded = [text.encode("utf-8", "replace") for text in texts]
    lines, _, indices = (each.numpy() for each in divide(encoded, options))
    places = [[] for _ in texts]
    for line, index in zip(lines, indices, strict=True):
        if line:
            at = places[index][-1][1] if places[index] else 0
            line, text = line.decode(), encoded[index].decode()
            start = max(text.find(line, at), at)
            places[index].append((start, start + len(line)))
    return [*map(_pieces, texts, spans, places)]


def _pieces(text, spans, places):
    """Returns the pieces of a text at (start, end) places, and around its spans."""
    for span in spans:
        touched = [
            each for each in places if each[0] < span.end and span.start < each[1]
        ]
        if touched:
            first = places.index(touched[0])
            start, end = min(touched[0][0], span.start), max(touched[-1][1], span.end)
            places[first : first + len(touched)] = [(start, end)]
    pieces, done = [], 0
    for start, end in places:
        # Sentences of Chinese have no space between them.
        gap = text[done:start] or " " * (done > 0)
        inner = [x for x in spans if start <= x.start < end]
        inner = [each._replace(start=each.start - start) for each in inner]
        pieces.append((gap, text[start:end], inner))
        done = end
    return pieces if done == len(text) else [*pieces, (text[done:], "", [])]


def _join_pieces(best, gaps, ranked):
    """Joins the translations of pieces, of which `best` is one without the spans."""
    joined = []
    for rank in range(max(map(len, ranked))):
        chosen = [each[min(rank, len(each) - 1)] for each in ranked]
        texts = [gap + each.text for gap, each in zip(gaps, chosen, strict=True)]
        warnings = dict.fromkeys(x for each in chosen for x in each.warnings)
        changed = {"text": "".join(texts), "score": sum(x.score for x in chosen)}
        joined.append(best._replace(**changed, warnings=(*warnings,)))
    return joined


def _lost_figures(text, translation):
    """Returns the numbers of a text that its translation lacks in any notation.

    Times may have another one: "2:00 PM" is "14 Uhr".
    """
    figures = {_value(each).lstrip("0"): each for each in _FIGURE.findall(text)}
    counts, other = (
        collections.Counter(_value(each).lstrip("0") for each in _FIGURE.findall(x))
        for x in (text, translation)
    )
    return [
        figures[value]
        for value in counts - other
        if value and not (value.isdigit() and str(int(value) + 12) in other - counts)
    ]


def _between(text, spans):
    """Returns a text without its spans."""
    for span in reversed(spans):
        text = text[: span.start] + text[span.end :]
    return text


def without_warnings(translator):
    """Returns a copy that does not warn, for what has been reported already."""
    quiet = copy.copy(translator)
    # A `Translator` would not copy its compiled functions.
    vars(quiet).update(vars(translator), warn=lambda *_: None)
    return quiet


def _keep(index, found, texts, spans, n):
    """Drops the translations without their spans, unless there is no other one.

    Returns whether there is one.
    """
    kept = [
        each
        for each in found[index]
        if not lost_spans(each.text, texts[index], spans[index])
    ]
    found[index] = kept[:n] or found[index][-1:]
    return bool(kept)


def _swap(text, spans, attempt):
    """Replaces the spans of a text by stand-ins.

    Returns the new text, and the span's text of each stand-in as a dict.
    """
    parts, standins, end = [], {}, 0
    names = [*map(str.upper, _NAMES)] if _has_capitals(text, spans) else _NAMES
    pools = [[each for each in pool if each not in text] for pool in (names, _FIGURES)]
    pools = [pool[attempt:] for pool in pools]
    for span in spans:
        is_count = span.kind == "placeholders" and _COUNTS.fullmatch(span.text)
        is_count = is_count or (span.kind == "sign" and re.search(r"\d", span.text))
        pool = pools[bool(is_count) or span.kind == "numbers"]
        standin = pool.pop(0) if pool else f"X{len(standins)}"
        standins[standin] = span.text
        parts += [text[end : span.start], standin]
        end = span.end
    return "".join([*parts, text[end:]]), standins


def _restore(candidate, standins):
    """Puts the spans back into a translation, or returns `None` if it is impossible."""
    text, pattern = candidate.text, "|".join(map(re.escape, standins))
    words = re.findall(rf"(?<!\w)(?:{pattern})(?!\w)", text)
    found = re.findall(pattern, text)
    if sorted(words) != sorted(standins) or len(found) != len(words):
        return None
    text = re.sub(pattern, lambda match: standins[match[0]], text)
    return candidate._replace(text=text)


def _translate_between(translator, indices, found, texts, spans, languages):
    """Replaces translations by those of the parts between the spans."""
    rows = []
    for index in indices:
        ends = [0, *(span.end for span in spans[index])]
        starts = [*(span.start for span in spans[index]), len(texts[index])]
        rows.append([texts[index][i:j] for i, j in zip(ends, starts, strict=True)])
    gaps = [
        (languages[index], gap)
        for index, row in zip(indices, rows, strict=True)
        for gap in row
        if _LETTER.search(gap)
    ]
    lines = [language + gap.strip() for language, gap in gaps]
    of_gap = dict(zip(gaps, translator.n_best(lines, 1) if gaps else [], strict=True))
    for index, row in zip(indices, rows, strict=True):
        score, joined, warnings = 0.0, "", {}
        for gap, span in itertools.zip_longest(row, spans[index]):
            if (languages[index], gap) in of_gap:
                (best, *_) = of_gap[languages[index], gap]
                new = best.text.strip()
                if gap.rstrip()[-1] not in ENDS:
                    new = new.rstrip(ENDS)
                # What the model adds might look like a span.
                if all(
                    _count(each, new, texts[index]) <= _count(each, gap, texts[index])
                    for each in spans[index]
                ):
                    score += best.score
                    warnings |= dict.fromkeys(best.warnings)
                    lead = gap[: len(gap) - len(gap.lstrip())]
                    gap = lead + new + gap[len(gap.rstrip()) :]
            joined += gap + (span.text if span else "")
        changed = {"text": joined, "score": score, "warnings": (*warnings,)}
        found[index] = [found[index][0]._replace(**changed)]
