"""Conversion of trees to depth-first sequences of symbols and back.

Section 6.3 of the paper follows Vinyals et al. (2015), where a target contains no
words: ``(S`` and ``)S`` open and close a constituent, and each word becomes ``XX``.
Here a word becomes one of three symbols: ``(XX)``; its tag, such as ``(NN)``; or its
number, such as ``(3)``. Symbols are separated by spaces, so a text can be split in only
one way.

In the joined form, each word has two symbols: its number, and its tag with the brackets
that open before it and close after it, such as ``(S(NP(DT)`` and ``(NN))NP``. The parse
column of the CoNLL-2012 shared task is similar. If several constituents end at a word,
only those with the outermost one's label get a closing bracket. Each bracket also
closes everything inside its constituent: ``)NP)NP`` closes an NP, the PP around it, and
the NP around both. After the last word, no closing brackets are written.
"""

import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from keras_transformer.parsing.trees import ROOT_LABEL, Tree, events, label_counts

ANY_TAG = "XX"
# Forms of a word in the target; `linearize` describes them.
LINEARIZATIONS = ("joined", "numbers", "tags", ANY_TAG)
# Those whose source has a number before each word.
_NUMBERED = ("joined", "numbers")
# Words are numbered modulo this value. Few sentences are longer.
NUMBERS = 128
# Groups: opening label, tag, closing label.
_SYMBOL = re.compile(r"\(([^()]+)|\(([^()]+)\)|\)([^()]+)")
# Groups: brackets that open before a word, its tag, and brackets that close after it.
_JOINED_SYMBOL = re.compile(r"((?:\([^()]+)*)\(([^()]+)\)((?:\)[^()]+)*)")
# Problems that `delinearize` repairs, in the order in which they are reported.
REPAIRS = (
    "unknown symbols",
    "missing words",
    "superfluous words",
    "missing closing brackets",
    "superfluous closing brackets",
    "empty constituents",
    "missing roots",
)


def _check_linearization(linearization):
    if linearization not in LINEARIZATIONS:
        raise ValueError(
            f"`linearization` must be one of {', '.join(LINEARIZATIONS)}. "
            f"Received: {linearization!r}."
        )


def check_tags(tree: Tree, linearization: str) -> None:
    """Raises `ValueError` if a tag of the tree would be read as a word's number."""
    if linearization in ("joined", "tags"):
        for word, tag in zip(tree.words, tree.tags, strict=True):
            if _is_number(tag):
                raise ValueError(
                    f"the tag {tag!r} of {word!r} is a number, and in the "
                    f"linearization {linearization!r}, numbers stand for words. Rename "
                    "the tag, or use the linearization 'numbers' or 'XX'"
                )


def source_text(
    words: Sequence[str], linearization: str = "tags", first_number: int = 0
) -> str:
    """Returns the model's source for a sentence: its words, with numbers if needed.

    Args:
        words: The words of the sentence.
        linearization: That of the target (see `parsing.linearize`).
        first_number: Number of the first word, for forms with numbers.

    Raises:
        ValueError: If `linearization` is unknown.

    Examples:
        >>> kt.parsing.source_text(("Dogs", "bark"), "numbers")
        '(0) Dogs (1) bark'
    """
    _check_linearization(linearization)
    if linearization in _NUMBERED:
        numbered = enumerate(words, start=first_number)
        words = [f"{_number(place)} {word}" for place, word in numbered]
    return " ".join(words)


def linearize(tree: Tree, linearization: str = "tags", first_number: int = 0) -> str:
    """Returns the symbols of a tree, separated by spaces.

    Args:
        tree: `Tree`.
        linearization: Form of a word: its part of speech ("tags"), its position
            ("numbers"), the same symbol for all words ("XX"), or the position, and then
            the part of speech with the brackets around it ("joined").
        first_number: Number of the first word. Numbers are modulo 128.
            `parsing.delinearize` assumes that the first one is 0.

    Raises:
        ValueError: If `linearization` is unknown, or a form with tags has a tag that is
            a number.

    Examples:
        >>> tree = kt.parsing.parse_tree("(S (NP (DT The) (NN dog)) (VP (VBZ barks)))")
        >>> kt.parsing.linearize(tree)
        '(S (NP (DT) (NN) )NP (VP (VBZ) )VP )S'
    """
    _check_linearization(linearization)
    check_tags(tree, linearization)
    if linearization == "joined":
        joined = enumerate(_join_symbols(tree), start=first_number)
        return " ".join(f"{_number(place)} {symbol}" for place, symbol in joined)
    symbols = []
    for kind, value in events(tree):
        if kind == "word" and linearization == "numbers":
            symbols.append(_number(value + first_number))
        elif kind == "word":
            tag = tree.tags[value] if linearization == "tags" else ANY_TAG
            symbols.append(f"({tag})")
        else:
            symbols.append(("(" if kind == "open" else ")") + value)
    return " ".join(symbols)


def _join_symbols(tree) -> list[str]:
    """Returns the symbol of each word in the joined form, without its number."""
    symbols, opened, closed = [], "", []
    for kind, value in events(tree):
        if kind == "close":
            closed.append(value)
            continue
        if closed:
            # The outermost constituent closes last.
            symbols[-1] += f"){closed[-1]}" * closed.count(closed[-1])
            closed = []
        if kind == "open":
            opened += f"({value}"
        else:
            symbols.append(f"{opened}({tree.tags[value]})")
            opened = ""
    return symbols


def _number(place) -> str:
    return f"({place % NUMBERS})"


def collect_symbols(trees: Iterable[Tree], linearization: str = "tags") -> list[str]:
    """Returns all symbols in the sources and targets of trees, sorted."""
    numbers = [_number(place) for place in range(NUMBERS)]
    if linearization == "joined":
        used = {symbol for tree in trees for symbol in _join_symbols(tree)}
        return sorted(used.union(numbers))
    labels, tags = label_counts(trees)
    symbols = [f"({tag})" for tag in (tags if linearization == "tags" else [ANY_TAG])]
    if linearization == "numbers":
        symbols = numbers
    brackets = [side + label for label in labels for side in "()"]
    return sorted({*brackets, *symbols})


def word_marks(
    pieces: Sequence[bytes], linearization: str = "tags"
) -> tuple[list, list]:
    """Returns which ids begin a source word, and which represent a word in the target.

    `pieces` are the bytes of each id, as `BytePairTokenizer.piece_bytes` returns them.
    The result is two lists of bool, one item per id. If words are numbered, the number
    begins the source word.
    """
    begins, numbers, tags = [], [], []
    for piece in pieces:
        begins.append(piece.startswith(b" "))
        text = piece.decode("utf-8", "replace")[1:]
        match = begins[-1] and _JOINED_SYMBOL.fullmatch(text)
        numbers.append(bool(match) and _is_number(match[2]))
        tags.append(bool(match) and not numbers[-1])
    # In the joined form, a number precedes each tag symbol in the target. Only the tag
    # symbol represents the word.
    symbols = tags if linearization == "joined" else [*map(operator.or_, numbers, tags)]
    return numbers if linearization in _NUMBERED else begins, symbols


def delinearize(text: str, words: Sequence[str]) -> tuple[Tree, Counter]:
    """Builds a tree with the given words from a sequence of symbols.

    The result is a tree for any text. Errors are repaired:

    - Unknown symbols are skipped.
    - If words are numbered, a gap in the numbers shows which words are missing. They
      are inserted at the gap. Other missing words are appended to the innermost open
      constituent or, if none is open, to the outermost one.
    - Symbols of superfluous words are skipped.
    - A closing bracket closes the innermost open constituent with its label and all
      constituents inside it. If there is none, the bracket is skipped. Constituents
      that are open at the end are closed. The joined form omits these closing brackets,
      so in that form, closing the constituents does not count as a repair.
    - Empty constituents are removed.
    - A tree without a single root gets a root with the label ``TOP``. A single word
      needs no root.

    Args:
        text: Symbols, separated by spaces.
        words: The words of the sentence, at least one.

    Returns:
        The `Tree`, and a `Counter` of its repairs by kind, such as "missing words".

    Examples:
        >>> words = "The", "dog", "barks"
        >>> tree, repairs = kt.parsing.delinearize("(S (NP (DT) (NN) )NP", words)
        >>> tree.constituents
        (('S', 0, 3), ('NP', 0, 2))
        >>> dict(repairs)
        {'missing closing brackets': 1, 'missing words': 1}
    """
    repairs = Counter()
    # Constituents [label, start, end], those of them that are open, and the tags.
    spans, stack, tags = [], [], []
    # Whether the joined form was found, and whether the next word is superfluous.
    joined = superfluous = False
    for kind, value in _events_of(text):
        if kind == "number":
            skipped = _num_skipped(value, len(tags))
            superfluous = not 0 <= skipped < len(words) - len(tags)
            if not superfluous:
                repairs["missing words"] += skipped
                tags += [ANY_TAG] * skipped
        elif kind == "word":
            if superfluous or len(tags) == len(words):
                repairs["superfluous words"] += 1
            else:
                tags.append(value)
            superfluous = False
        elif kind == "open":
            stack.append([value, len(tags), None])
            spans.append(stack[-1])
        elif kind == "joined":
            joined = True
        elif kind == "close":
            depths = reversed(range(len(stack)))
            depth = next((each for each in depths if stack[each][0] == value), None)
            if depth is None:
                repairs["superfluous closing brackets"] += 1
                continue
            if not joined:
                repairs["missing closing brackets"] += len(stack) - depth - 1
            _close(stack, depth, len(tags))
        else:
            repairs["unknown symbols"] += 1
    repairs["missing words"] += len(words) - len(tags)
    if not joined:
        repairs["missing closing brackets"] += len(stack)
    if not stack and spans and spans[0][1:] == [0, len(tags)]:
        # The outermost constituent also gets the words that are missing at the end.
        spans[0][2] = len(words)
    tags += [ANY_TAG] * (len(words) - len(tags))
    _close(stack, 0, len(words))
    kept = [tuple(span) for span in spans if span[1] < span[2]]
    repairs["empty constituents"] = len(spans) - len(kept)
    full_span = (0, len(words))
    if len(words) > 1 and (not kept or kept[0][1:] != full_span):
        kept.insert(0, (ROOT_LABEL, *full_span))
        repairs["missing roots"] = 1
    return Tree(tuple(words), tuple(tags), tuple(kept)), +repairs


def _events_of(text) -> Iterator[tuple[str | None, str | None]]:
    """Yields events like `trees.events`, with the kind `None` for unknown symbols.

    The event of a word is `("word", tag)`. If the word has a number, `("number",
    number)` precedes this event. `("joined", None)` precedes the events of a symbol
    that joins a tag and brackets.
    """
    symbols = text.split()
    for symbol, following in zip(symbols, [*symbols, ""][1:], strict=True):
        match = _JOINED_SYMBOL.fullmatch(symbol)
        if not match:
            match = _SYMBOL.fullmatch(symbol)
            opened, _, closed = match.groups() if match else (None, None, None)
            yield "open" if opened else "close" if closed else None, opened or closed
            continue
        opened, tag, closed = match.groups()
        if opened or closed:
            yield "joined", None
        for label in opened.split("(")[1:]:
            yield "open", label
        if not _is_number(tag):
            yield "word", tag
        else:
            yield "number", tag
            # Unless a tag symbol follows, the number itself represents the word.
            after = _JOINED_SYMBOL.fullmatch(following)
            if not after or _is_number(after[2]):
                yield "word", ANY_TAG
        for label in closed.split(")")[1:]:
            yield "close", label


def _num_skipped(number, place) -> int:
    """Returns how many words after `place` are missing, negative if `number` is low."""
    # 10^9 is a multiple of `NUMBERS`, so higher digits do not matter.
    ahead = (int(number[-9:]) - place) % NUMBERS
    return ahead if ahead < NUMBERS // 2 else ahead - NUMBERS


def _is_number(symbol) -> bool:
    return symbol.isdecimal() and symbol.isascii()


def _close(stack, depth, end):
    while len(stack) > depth:
        stack.pop()[2] = end
