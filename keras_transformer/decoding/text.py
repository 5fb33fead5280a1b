"""Text to text, in TensorFlow operations: segments, translations, units of alignments.

`Translator` runs these functions, and exported graphs contain them, so that a text has
the same segments, translations and alignments in both.
"""

import re
from collections import Counter
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.decoding.batches import WHITESPACE
from keras_transformer.decoding.warnings import UNTRANSLATED

# Score of an empty place in an n-best list, since JSON has no infinity.
EMPTY_SCORE = float(tf.float32.min)

# The patterns use the syntax of RE2.
_SPACE = f"[{WHITESPACE}]"
_LINE_BREAK = f"{_SPACE}*[\\n-\\r\\x{{85}}\\x{{2028}}\\x{{2029}}]{_SPACE}*"
_OUTER_SPACE = f"^{_SPACE}+|{_SPACE}+$"
# What stands before and after a text, or between its columns: white space, bullets and
# other signs such as emoji, numbering, notes, statements, tabs, the bars of tables.
_SIGNS = (
    r"[-*•‣–—\p{So}\p{Sm}\p{Sk}\x{200d}\x{fe0f}\x{1f000}-\x{1faff}"
    r"\x{e0020}-\x{e007f}]+"
)
_NOTE = r"\[\p{N}{1,3}\]"
_STATEMENT = r"\{%[^{}]*%\}"  # of a template
_BULLET = rf"(?:{_SIGNS}|#{{1,6}}|\[[ xX]\]|{_NOTE}|\(?\p{{N}}{{1,3}}[.)]|\(?\p{{L}}\))"
_LAYOUT = (
    f"^{_SPACE}*(?:{_BULLET}{_SPACE}+|{_STATEMENT}{_SPACE}*)+|^{_SPACE}+"
    rf"|(?:{_SPACE}+{_SIGNS}|{_SPACE}*(?:\B{_NOTE}|{_STATEMENT}))+{_SPACE}*$"
    f"|{_SPACE}+$"
    rf"|{_SPACE}*[\t|][|{WHITESPACE}]*"
)
# The end of a sentence, with its closing brackets, quotation marks and notes. No space
# is required after the periods of Chinese and Japanese.
_END = (
    r"""([.!?…।॥؟۔።]+["'”’“‘»›)\]]*(?:[ \x{a0}\x{202f}][»›])?"""
    f"(?:{_NOTE})*)"
)
_WIDE_END = f"([。！？｡]+[\"'”’」』）]*)({_SPACE}*)"
# Initials, ordinal numbers such as German "3.", titles, and abbreviations that precede
# other words. Their periods do not end a sentence.
_ABBREVIATION = (
    r"(^|[^\p{L}\p{M}\p{N}])((?:\p{L}\.)*\p{L}|\p{N}{1,2}"
    "|(?i:Mr|Mrs|Ms|Dr|Prof|St|Nr|vs|Mme|Mlle|bzw|ca|sog|geb|cf|vgl|approx|Mio|Mrd)"
    r"|Capt|Col|Gen|Gov|Hon|Lt|Maj|MM|Rep|Rev|Sen|Sgt"
    # Spanish and Portuguese, Italian, Dutch, Polish, Russian.
    r"|(?i:Sra?|Srta|Dra|Sig|Dott|dhr|mevr|drs|ul|inż|tzw|ул|гг|тов))\."
)
# Periods of these do not end a sentence before a number.
_BEFORE_NUMBER = (
    r"(^|[^\p{L}\p{M}\p{N}])((?i:Jan|janv|Feb|févr|Apr|avr|juil|Aug|Sept?|Oct|Okt|Nov"
    r"|Dec|Dez|déc|No|Nos|pp|Fig|Vol|Art|Abs|Kap|Sec|Ch|est))\.(\s+\p{N})"
)
# Placeholder for a period that does not end a sentence. Unicode reserves this code
# point for internal use.
_STOP = "\ufdd0"
# A segment may end after whitespace, and after any character of scripts that do not
# separate words by spaces.
_WORD_END = (
    rf"({_SPACE}+|[\p{{Han}}\p{{Hiragana}}\p{{Katakana}}\p{{Thai}}\p{{Lao}}\p{{Khmer}}"
    r"\p{Myanmar}][、，；：]*|[、，；：])"
)
# Inserted where `_split` divides a text. This byte is invalid in UTF-8, so no text
# contains it.
_MARK = b"\xff"
_BETWEEN_MARKS = _MARK + b"\\0" + _MARK
_GAP = _MARK + b"\\2" + _MARK  # of the white space between sentences

# How the case of a segment's translation follows its source.
_AS_TRANSLATED, _CAPITALIZED, CAPITALS = range(3)
# Shorter words in capitals, such as NATO, are translated as they are.
_MIN_CAPITALS = 5
_BEGINS_UPPER = r"(?s)\P{L}*\p{Lu}.*"
# Words within sentences, whose first word always has a capital.
_INNER_WORD = re.compile(r"(?<=[^\W\d_] )[^\W\d_]+")
_MAX_WORDS = 2000  # with capitals
# How often, and in which share of its places, a word must have them. Words that mean
# something else without capitals, such as "May", have fewer.
_MIN_PLACES, _MIN_PLACES_SHARE = 3, 0.9
# Scripts whose letters are counted in training text. All others are rare.
SCRIPTS = (
    *("Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Han", "Hiragana", "Katakana"),
    *("Hangul", "Thai", "Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Oriya"),
    *("Tamil", "Telugu", "Kannada", "Malayalam", "Sinhala", "Lao", "Tibetan"),
    *("Myanmar", "Khmer", "Mongolian", "Georgian", "Armenian", "Ethiopic", "Thaana"),
    *("Syriac", "Cherokee", "Canadian_Aboriginal", "Tifinagh", "Nko", "Yi"),
)
# Maximum number of sentences that begin inside of a line, per line of a training text
# with one sentence per line.
_MAX_INNER = 0.2
# Share of the letters from which on a script belongs to the training text.
_MIN_SHARE = 0.001
# Maximum number of scripts of a vocabulary that are taken for all of its model. Models
# of many languages have few subwords in some of their scripts.
_MAX_SCRIPTS = 4
# Minimum share of the subwords with capitals among those with letters that have case.
_MIN_CASED = 0.03
# A line of digits without letters, and the share of a training text's lines from which
# on a model learns how to write them.
_NUMBERS = r"\P{L}*\p{Nd}\P{L}*"
_MIN_NUMBERS = 0.01


class TextOptions(NamedTuple):
    """What is done to texts before and after translation. By default, nothing."""

    layout: bool = False  # keep bullets, columns and outer white space
    sentences: bool = False  # divide lines into sentences
    case: bool = False  # translate capitals as lowercase letters
    scripts: tuple = ()  # if not empty, text in other scripts is kept
    words: tuple = ()  # with `case`, words that usually have capitals
    numbers: bool = False  # with `layout`, translate lines of digits without letters

    @classmethod
    def of(cls, tokenizer, search):
        """Returns the options for a source tokenizer and a `BeamSearch`."""
        settings = getattr(tokenizer, "text", None)
        is_known = settings is not None
        sentences = search.segmentation == "sentence"
        if search.segmentation == "auto":
            sentences = is_known and settings.sentences
        case = is_known and settings.capitals and search.case == "auto"
        scripts = tuple(settings.scripts) if is_known else ()
        words = tuple(settings.words) if case else ()
        numbers = is_known and settings.numbers
        return cls(is_known, sentences, case, scripts, words, numbers)


# Texts are only divided at line breaks, as for models without `TextSettings`.
PLAIN = TextOptions()


class Segments(NamedTuple):
    """Segments of texts, in order. A blank text has one segment, without ids."""

    ids: tf.RaggedTensor  # int32 [segments, (length)], without end ids
    text_index: tf.Tensor  # int64 [segments], the index of each segment's text
    gaps: tf.Tensor  # string [segments], text before each segment's translation
    truncated: tf.Tensor  # bool [texts], whether part of the text was cut
    lengths: tf.Tensor  # int64 [texts], number of subwords of the longest line
    # int32 [segments], such as `CAPITALS`, or `None` if cases are not followed
    cases: tf.Tensor | None = None
    # string [segments], text of other scripts at the end of the gap, or `None`
    kept: tf.Tensor | None = None
    # int32 [segments], forced first tokens of translations, or `None`
    first_ids: tf.Tensor | None = None


def segment(
    tokenize, texts, max_length, split_prefix=None, options=PLAIN, first_ids=None
):
    """Divides texts into `Segments` of at most `max_length` subwords, without end ids.

    A text is divided at its line breaks, which become gaps. A line that is too long is
    divided into sentences, and a sentence that is too long is divided between words. A
    word that is too long is truncated. If a text begins with a language prefix, such as
    `>>fra<<`, so does each of its segments: `split_prefix` returns the prefixes of
    texts and the texts without them (see `MarianTokenizer.split_language_prefix`).
    `first_ids` returns the first tokens of their translations, if a model needs them
    (see `FairseqTokenizer.first_ids`).

    `options` divides lines further, at their layout and between sentences. What is not
    to be translated becomes part of the gaps.
    """
    if first_ids is not None:
        first_ids = first_ids(texts)
    languages, texts = (
        split_prefix(texts) if split_prefix else (tf.zeros_like(texts), texts)
    )
    lines, gaps, text_index = divide(texts, options)
    cases = kept = None
    if options.layout:
        lines, gaps, kept = _keep_foreign(lines, gaps, options)
    if options.case:
        lines, cases = _usual_case(lines, options.words)
    languages = tf.gather(languages, text_index)
    ids = _tokenize_texts(tokenize, languages, lines)
    line_lengths = ids.row_lengths()
    is_long = line_lengths > max_length

    def divide_long():
        marked = tf.where(is_long, _mark_sentences(lines), lines)
        rows = tf.range(tf.size(lines, tf.int64))
        sentences, _, line_of = _split_lines(marked, tf.zeros_like(lines), rows)
        language_of = tf.gather(languages, line_of)
        lengths = _tokenize_texts(tokenize, language_of, sentences).row_lengths()
        # The language prefix leaves less room for words.
        room = tf.maximum(max_length - tokenize(language_of).row_lengths(), 1)
        parts, sentence_of = _split_words(
            tokenize, sentences, lengths > max_length, room
        )
        ids = _tokenize_texts(tokenize, tf.gather(language_of, sentence_of), parts)
        return ids, tf.gather(line_of, sentence_of)

    ids, line_of = tf.cond(
        tf.reduce_any(is_long),
        divide_long,
        lambda: (ids, tf.range(tf.size(lines, tf.int64))),
    )
    # A sentence mark at the end of a line leaves an empty segment.
    is_first = _is_first(line_of)
    used = tf.where(is_first | (ids.row_lengths() > 0))[:, 0]
    ids, line_of, is_first = (
        tf.gather(each, used) for each in (ids, line_of, is_first)
    )
    # The segments of a line are joined by spaces.
    gaps = tf.where(is_first, tf.gather(gaps, line_of), " ")
    if cases is not None:
        cases = tf.gather(cases, line_of)
        cases = tf.where(is_first | (cases == CAPITALS), cases, _AS_TRANSLATED)
    if kept is not None:
        kept = tf.where(is_first, tf.gather(kept, line_of), "")
    num_texts = tf.size(texts, tf.int64)
    lengths = tf.math.unsorted_segment_max(line_lengths, text_index, num_texts)
    text_index = tf.gather(text_index, line_of)
    if first_ids is not None:
        first_ids = tf.gather(first_ids, text_index)
    is_cut = ids.row_lengths() > max_length
    truncated = tf.math.unsorted_segment_max(
        tf.cast(is_cut, tf.int32), text_index, num_texts
    )
    return Segments(
        ids[:, :max_length],
        text_index,
        gaps,
        truncated > 0,
        lengths,
        cases,
        kept,
        first_ids,
    )


def divide(texts, options=PLAIN):
    """Divides texts, string `[texts]`, at their line breaks and as in `options`.

    Returns the lines, the gap before each, and the index of its text.
    """
    texts = tf.where(_replace(texts, f"{_SPACE}+", "") == "", "", texts)
    marked = _replace(texts, _LINE_BREAK, _BETWEEN_MARKS)
    rows = tf.range(tf.size(texts, tf.int64))
    lines, gaps, text_index = _split_lines(marked, tf.zeros_like(texts), rows)
    for step in ("layout", "sentences", "layout"):  # sentences have layout, too
        if not getattr(options, step):
            continue
        if step == "layout":
            marked, default = _replace(lines, _LAYOUT, _BETWEEN_MARKS), ""
        else:
            marked, default = _mark_sentences(lines), " "
        lines, gaps, text_index = _split_lines(marked, gaps, text_index, default)
    return lines, gaps, text_index


def _tokenize_texts(tokenize, languages, texts):
    """Tokenizes texts with their language prefixes. Empty texts have no ids."""
    ids = tokenize(tf.strings.join([languages, texts]))
    is_text = texts != ""
    return tf.RaggedTensor.from_row_lengths(
        tf.gather(ids, tf.where(is_text)[:, 0]).flat_values,
        tf.where(is_text, ids.row_lengths(), 0),
        validate=False,
    )


def _split_lines(marked, gaps, text_index, default=""):
    """Splits lines at gaps, each of which is between two marks.

    `gaps` are those before each line, and `text_index` is the index of its text.
    Returns the new lines, their gaps, and the indices of their texts. An empty gap
    between two lines is replaced by the default.
    """
    pieces, row_of = _split(marked)
    num_rows = tf.size(marked, tf.int64)
    position = tf.range(tf.size(pieces)) - _first_of_row(row_of, num_rows)
    before = tf.concat([[""], pieces], axis=0)[:-1]
    before = tf.where((before == "") & (pieces != ""), default, before)
    before = tf.where(position == 0, tf.gather(gaps, row_of), before)
    # Lines and gaps alternate.
    is_line = tf.where(position % 2 == 0)[:, 0]
    text_index = tf.gather(text_index, row_of)
    return tuple(tf.gather(each, is_line) for each in (pieces, before, text_index))


def _keep_foreign(lines, gaps, options):
    """Moves lines that the model cannot translate into their gaps.

    These are lines without letters (with `options.numbers`, also without digits), and
    lines that consist mostly of letters of other scripts. Returns lines, gaps, and the
    latter lines, or "" for other lines.
    """
    known = _pattern(options.scripts)
    num_known = _length(_replace(lines, f"[^{known}]+", ""))
    num_foreign = _length(_other_letters(lines, known))
    is_foreign = num_foreign > num_known
    is_kept = is_foreign | (num_known == 0)
    if options.numbers:
        is_kept &= is_foreign | (_replace(lines, r"\p{Nd}", "") == lines)
    kept = tf.where(is_foreign, lines, "")
    gaps = tf.where(is_kept, tf.strings.join([gaps, lines]), gaps)
    return tf.where(is_kept, "", lines), gaps, kept


def _pattern(scripts):
    """Returns what matches the letters of scripts, or without any, all letters."""
    return "".join(rf"\p{{{name}}}" for name in scripts) or r"\p{L}"


def _other_letters(lines, known):
    return _replace(lines, rf"[\P{{L}}\p{{Common}}\p{{Inherited}}{known}]+", "")


def _usual_case(lines, words):
    """Writes lines in capitals, and sentences without capitals, as usual.

    Their first letter becomes a capital, and their other letters lowercase, but in
    words that usually have capitals. Returns the lines and the case of their
    translations. A translation of a line that begins with a capital is to begin with
    one, too.
    """
    num_capitals = _length(_replace(lines, r"\P{Lu}+", ""))
    is_upper = num_capitals >= _MIN_CAPITALS
    # Chinese text with an English name is not in capitals.
    is_upper &= 2 * num_capitals > _length(_replace(lines, r"\P{L}+", ""))
    is_upper &= _replace(lines, r"\p{Ll}", "") == lines
    begins_upper = tf.strings.regex_full_match(lines, _BEGINS_UPPER)
    cases = tf.where(begins_upper, _CAPITALIZED, _AS_TRANSLATED)
    lowered = tf.strings.lower(lines, "utf-8")
    is_sentence = tf.strings.regex_full_match(lowered, f"(?s).*{_END}")
    is_begun = is_upper | ((num_capitals == 0) & is_sentence)
    begun = tf.where(is_begun)
    written = _usual_words(tf.gather_nd(lowered, begun), words)
    lines = tf.tensor_scatter_nd_update(lines, begun, _capitalize(written))
    return lines, tf.where(is_upper, CAPITALS, cases)


def _usual_words(lines, words):
    """Replaces words of lowercase lines by those of `words` with the same letters."""
    if not words:
        return lines
    marked = _replace(lines, r"([\p{L}\p{M}]+)", _MARK + b"\\1" + _MARK)
    pieces, row_of = _split(marked)
    number, lowered = len(words), tf.strings.lower(words, "utf-8")
    forms, index_of = tf.unique(tf.concat([lowered, pieces], axis=0))
    forms = tf.tensor_scatter_nd_update(forms, index_of[:number, None], words)
    pieces = tf.gather(forms, index_of[number:])
    return tf.strings.unsorted_segment_join(pieces, row_of, tf.size(lines))


def _capitalize(texts):
    """Converts the first letter of each text to a capital.

    In Georgian, which has capitals, too, no sentence begins with one.
    """
    first = _replace(texts, r"(?s)^(\P{L}*[^\P{L}\p{Georgian}])?.*", r"\1")
    rest = tf.strings.substr(texts, tf.strings.length(first), tf.strings.length(texts))
    return tf.strings.join([tf.strings.upper(first, "utf-8"), rest])


def _follow_case(texts, cases):
    """Converts translations, string `[segments, places]`, to their sources' case."""
    is_capitalized = cases[:, None] == _CAPITALIZED
    texts = tf.where(is_capitalized, _capitalize(texts), texts)
    upper = tf.strings.upper(texts, "utf-8")
    return tf.where(cases[:, None] == CAPITALS, upper, texts)


def untranslated_warnings(segments, known):
    """Yields the index of a text, and a warning, for each line of other scripts."""
    kept = [] if segments.kept is None else segments.kept.numpy()
    for place in np.flatnonzero(kept):
        line = kept[place].decode("utf-8", "replace")
        yield int(segments.text_index[place]), untranslated_warning(line, known)


def report_untranslated(texts, options):
    """Returns a list of warnings about each text, bytes, of an export.

    The graph, which has these `TextOptions`, does not output what it keeps.
    """
    found = [[] for _ in texts]
    if not options.scripts:
        return found
    # Most texts have no such letters, and dividing a text takes milliseconds.
    texts = tf.constant(texts, tf.string)
    places = np.flatnonzero(_other_letters(texts, _pattern(options.scripts)) != "")
    if len(places):
        texts = tf.gather(texts, places)
        segments = segment(split_characters, texts, 2**30, split_languages, options)
        for index, message in untranslated_warnings(segments, options.scripts):
            found[places[index]].append(message)
    return found


def split_characters(texts):
    """Tokenizes texts where only their segments count."""
    return tf.strings.unicode_decode(texts, "UTF-8")


def split_languages(texts):
    """Returns the languages that texts name (see `decoding.markup`), and the rest."""
    names = _replace(texts, r"(?s)^((?:>>[\w -]+<< *)?).*", r"\1")
    size = tf.strings.length(texts)
    return names, tf.strings.substr(texts, tf.strings.length(names), size)


def untranslated_warning(text, known):
    """Returns the warning about text that is mostly in scripts other than `known`."""
    counts = _count_scripts(text)
    found = {name: counts[name] for name in SCRIPTS if name not in known}
    script = max(found, key=found.get) if any(found.values()) else "unknown"
    shown = text if len(text) <= 40 else f"{text[:37]}..."
    return f"{shown!r} {UNTRANSLATED} ({script})."


def _count_scripts(text):
    """Returns the number of letters of each of the `SCRIPTS`, in their order."""
    counts = Counter(filter(str.isalpha, text))
    letters = tf.constant([*map(str.encode, counts)], tf.string)
    numbers = np.array([*counts.values()], int)
    return {
        name: numbers[tf.strings.regex_full_match(letters, rf"\p{{{name}}}")].sum()
        for name in SCRIPTS
    }


def _length(strings):
    return tf.strings.length(strings, "UTF8_CHAR")


def measure_text(sources, targets):
    """Measures training text, two lists of str, for `TextSettings`.

    Returns a dict of all settings but `normalization`.
    """
    forms = Counter(word for text in sources for word in _INNER_WORD.findall(text))
    places = Counter()
    for word, count in forms.items():
        places[word.lower()] += count
    words = [
        word
        for word, count in forms.most_common()
        if word != word.lower()
        and count >= max(_MIN_PLACES, _MIN_PLACES_SHARE * places[word.lower()])
    ]
    scripts = _find_scripts("".join(sources))
    sources, targets = (
        tf.constant([text.encode("utf-8", "replace") for text in texts])
        for texts in (sources, targets)
    )
    begins_upper = [
        np.mean(tf.strings.regex_full_match(texts, _BEGINS_UPPER)) > 0.5
        for texts in (sources, targets)
    ]
    sentences = _split(_mark_sentences(sources))[0]
    num_sentences = np.sum(_replace(sentences, _SPACE, "") != "")
    has_numbers = tf.strings.regex_full_match(sources, _NUMBERS)
    return {
        "sentences": bool(num_sentences <= (1 + _MAX_INNER) * len(sources)),
        "capitals": all(begins_upper),
        "scripts": scripts,
        "words": sorted(words[:_MAX_WORDS]),
        "numbers": bool(np.mean(has_numbers) > _MIN_NUMBERS),
    }


def measure_pieces(sources, targets):
    """Measures the subwords of a model without training text, two lists of str.

    Returns a dict of `capitals` and `scripts` for `TextSettings`.
    """
    is_cased = []
    for pieces in (sources, targets):
        cased = [piece for piece in pieces if piece.lower() != piece.upper()]
        num_upper = sum(piece != piece.lower() for piece in cased)
        is_cased.append(num_upper > _MIN_CASED * len(cased))
    scripts = _find_scripts("".join(sources))
    scripts = scripts if len(scripts) <= _MAX_SCRIPTS else []
    return {"capitals": all(is_cased), "scripts": scripts}


def _find_scripts(text):
    """Returns the `SCRIPTS` of a text of which it has more than a few letters."""
    counts = _count_scripts(text)
    return [s for s in SCRIPTS if counts[s] > _MIN_SHARE * sum(counts.values())]


def _mark_sentences(lines):
    """Puts marks around the whitespace between the sentences of each line.

    Outer whitespace is removed.
    """
    lines = _replace(lines, _OUTER_SPACE, "")
    marked = _replace(lines, _ABBREVIATION, rf"\1\2{_STOP}")
    marked = _replace(marked, _BEFORE_NUMBER, rf"\1\2{_STOP}\3")
    # In text with capitals, no sentence begins with a lowercase letter.
    begin = rf"([^\p{{Ll}}{WHITESPACE}])"
    cased = _replace(marked, f"{_END}({_SPACE}+){begin}", b"\\1" + _GAP + b"\\3")
    uncased = _replace(marked, f"{_END}({_SPACE}+)", b"\\1" + _GAP)
    has_capitals = _replace(lines, r"\p{Lu}", "") != lines
    marked = tf.where(has_capitals, cased, uncased)
    marked = _replace(marked, _WIDE_END, b"\\1" + _GAP)
    return _replace(marked, _STOP, ".")


def _split_words(tokenize, sentences, is_long, max_lengths):
    """Divides the long sentences between words into parts of at most `max_lengths`.

    Returns the parts, string `[parts]`, and the index of each part's sentence. A
    sentence that is not long is one part.
    """
    marked = _replace(sentences, _WORD_END, b"\\1" + _MARK)
    words, sentence_of = _split(tf.where(is_long, marked, sentences))
    # A tokenizer with a target language puts its language prefix before each word here.
    # The prefix is not part of the word's length.
    lengths = tokenize(words).row_lengths() - tokenize(tf.constant([""])).row_lengths()
    before = tf.cumsum(lengths, exclusive=True)
    first = _first_of_row(sentence_of, tf.size(sentences, tf.int64))
    before -= tf.gather(before, first)
    # A word of more than `half` subwords is a separate part. Other words share a part
    # if they begin in the same window of `max_length + 1 - half` subwords. The last of
    # them exceeds the window by at most `half - 1` subwords, so the part has at most
    # `max_length`.
    max_length = tf.gather(max_lengths, sentence_of)
    half = (max_length + 1) // 2
    window_of = before // (max_length + 1 - half)
    is_alone = lengths > half
    follows_alone = tf.concat([[False], is_alone], axis=0)[:-1]
    begins = _is_first(sentence_of) | _is_first(window_of) | is_alone | follows_alone
    part_of = tf.cumsum(tf.cast(begins, tf.int32)) - 1
    num_parts = tf.reduce_sum(tf.cast(begins, tf.int32))
    parts = tf.strings.unsorted_segment_join(words, part_of, num_parts)
    sentence_of = tf.gather(sentence_of, tf.where(begins)[:, 0])
    stripped = _replace(parts, f"{_SPACE}+$", "")
    return tf.where(tf.gather(is_long, sentence_of), stripped, parts), sentence_of


def _replace(strings, pattern, rewrite):
    return tf.strings.regex_replace(strings, pattern, rewrite)


def _split(strings):
    """Splits strings at the marks. Returns pieces, and the string index of each."""
    # `tf.strings.split` would also compute where each row begins.
    indices, pieces, _ = tf.raw_ops.StringSplitV2(input=strings, sep=_MARK)
    return pieces, indices[:, 0]


def _is_first(row_of):
    """Returns bool `[items]`, true where the row differs from the previous item's."""
    return row_of != tf.concat([[-1], row_of], axis=0)[:-1]


def _first_of_row(row_of, num_rows):
    """Returns int32 `[items]`, for each item the index of the first one in its row."""
    places = tf.range(tf.size(row_of))
    return tf.gather(tf.math.unsorted_segment_min(places, row_of, num_rows), row_of)


def join_segments(segments, texts, scores, counts):
    """Joins the n-best lists of segments into n-best lists of texts.

    The i-th best translation of a text consists of the i-th best translations of its
    segments. A segment with fewer translations contributes its last one. The score is
    the sum of the segments' scores. Sampled translations are joined in the same way, by
    their position in the list.

    `texts` and `scores` are `[segments, places]`, and `counts`, int32 `[segments]`, are
    the numbers of translations, at least 1. Returns the same three for the texts.
    Unused places have `EMPTY_SCORE`.
    """
    ranks = tf.range(tf.shape(texts)[1])[None]
    last = tf.minimum(ranks, counts[:, None] - 1)
    texts, scores = (tf.gather(each, last, batch_dims=1) for each in (texts, scores))
    if segments.cases is not None:
        texts = _follow_case(texts, segments.cases)
    gaps = segments.gaps[:, None]
    # Before an empty translation, line breaks are kept, but no space.
    is_dropped = (gaps == " ") & (segments.ids.row_lengths() > 0)[:, None]
    texts = tf.where(is_dropped & (texts == ""), "", gaps + texts)
    text_index, num_texts = segments.text_index, tf.size(segments.truncated)
    texts = tf.strings.unsorted_segment_join(texts, text_index, num_texts)
    scores = tf.math.unsorted_segment_sum(scores, text_index, num_texts)
    counts = tf.math.unsorted_segment_max(counts, text_index, num_texts)
    return texts, tf.where(ranks < counts[:, None], scores, EMPTY_SCORE), counts


def merge_equal_texts(texts, scores, n):
    """Returns the `n` best translations with different texts.

    Different sequences of subwords may have the same text. The best score is kept.
    `texts` and `scores` are `[texts, places]`, best first. Unused places come last and
    have `EMPTY_SCORE` or less. Returns texts and scores `[texts, n]`, with empty texts
    and `EMPTY_SCORE` at unused places, and the number of used places, int32 `[texts]`.
    """
    places = tf.range(tf.shape(texts)[1])
    is_equal = tf.equal(texts[:, :, None], texts[:, None, :])
    has_better = tf.reduce_any(is_equal & (places[None] < places[:, None]), axis=2)
    # The first translation is kept even if nothing was found.
    is_used = (places == 0) | ((scores > EMPTY_SCORE) & ~has_better)
    # Used places come first. Used and unused places each keep their order.
    order = tf.where(is_used, -places, -places - tf.size(places))
    order = tf.math.top_k(order, n).indices
    texts, scores, is_used = (
        tf.gather(each, order, batch_dims=1) for each in (texts, scores, is_used)
    )
    return (
        tf.where(is_used, texts, ""),
        tf.where(is_used, scores, EMPTY_SCORE),
        tf.reduce_sum(tf.cast(is_used, tf.int32), axis=1),
    )


def join_characters(surfaces, continues, lengths):
    """Joins subwords into units of whole characters, because one may be a single byte.

    `surfaces`, string `[batch, length]`, are the texts of the subwords, including the
    space before each. Only the first `lengths` of a row are used. `continues` says
    whether a subword begins within a character.

    Returns the text of the units, string `[batch, units]`, and their membership,
    float32 `[batch, length, units]`: 1 where a subword belongs to a unit, else 0.
    """
    surfaces = tf.convert_to_tensor(surfaces, tf.string)
    batch, length = tf.unstack(tf.shape(surfaces))
    is_text = tf.sequence_mask(lengths, length)
    first = tf.range(length)[None] == 0
    # Encoding adds a space before the text, possibly as a separate subword.
    is_lone_space = first & (surfaces == " ")
    after_lone = tf.pad(is_lone_space, [[0, 0], [1, 0]])[:, :length]
    begins = is_text & (first | ~(after_lone | continues))
    unit = tf.cumsum(tf.cast(begins, tf.int32), axis=1) - 1
    num_units = tf.reduce_max(tf.concat([tf.reshape(unit, [-1]), [-1]], 0)) + 1
    without_space = tf.strings.regex_replace(surfaces, "^ ", "", replace_global=False)
    surfaces = tf.where(first, without_space, surfaces)
    places = tf.range(batch)[:, None] * num_units + unit
    joined = tf.strings.unsorted_segment_join(
        tf.boolean_mask(surfaces, is_text),
        tf.boolean_mask(places, is_text),
        batch * num_units,
    )
    membership = tf.one_hot(tf.where(is_text, unit, -1), num_units)
    # A truncated text may end within a character.
    joined = tf.strings.unicode_transcode(joined, "UTF-8", "UTF-8", "replace")
    return tf.reshape(joined, [batch, num_units]), membership


def compute_unit_attention(scores, target_membership, source_membership):
    """Computes the attention between units from the attention between subwords.

    Attention to a unit is summed over its subwords. Attention from a unit is averaged
    over them. From scores `[..., target_length, source_length]` and the memberships of
    `join_characters` to `[..., target_units, source_units]`.
    """
    count = tf.reduce_sum(target_membership, axis=-2, keepdims=True)
    mean = target_membership / tf.maximum(count, 1.0)
    attention = tf.matmul(mean, scores, transpose_a=True)
    return tf.matmul(attention, source_membership)
