"""Trees as sequences of symbols, depth-first, and back (section 6.3).

As in Vinyals et al. (2015), which the paper follows, a sentence's target holds no word:
``(S``, ``)S`` open and close a constituent, and one symbol stands for each word. There
it is always ``XX``; here it is ``(XX)``, or the word's tag, ``(NN)``: the bracketed
word with the word left out. Symbols are separated by spaces, so that no two sequences
of them spell one text.

Joined, a word has two symbols whatever the tree: its number, and its tag with the
brackets that open before it and close after it, ``(S(NP(DT)`` and ``(NN))NP``, as in
the parse column of the CoNLL-2012 shared task. Of what closes after one word, those of
the outermost's label are written, ``)NP)NP``; what is inside of them closes with them,
and after the last word everything does.
"""

import re
from collections import Counter
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from keras_transformer.parsing.trees import ROOT_LABEL
from keras_transformer.parsing.trees import Tree
from keras_transformer.parsing.trees import events
from keras_transformer.parsing.trees import label_counts

ANY_TAG = "XX"
WORD_SYMBOLS = ("joined", "numbers", "tags", ANY_TAG)
# Spellings whose source has each word's number before it.
_NUMBERED = ("joined", "numbers")
# Numbers begin again after so many words: few sentences are longer.
NUMBERS = 128
# Groups: what opens, a word's, what closes.
_SYMBOL = re.compile(r"\(([^()]+)|\(([^()]+)\)|\)([^()]+)")
# Groups: what opens before a word, its tag, what closes after it.
_JOINED_SYMBOL = re.compile(r"((?:\([^()]+)*)\(([^()]+)\)((?:\)[^()]+)*)")
# What `delinearize` mends, in the order of reports.
REPAIRS = (
    "unknown symbols",
    "missing words",
    "superfluous words",
    "missing closing brackets",
    "superfluous closing brackets",
    "empty constituents",
    "missing roots",
)


def source_text(
    words: Sequence[str], symbols: str = "tags", first_number: int = 0
) -> str:
    """A sentence as the model reads it: words, before each its number if asked for.

    Args:
        words: the words.
        symbols: what stands for a word among the symbols, see `linearize`.
        first_number: the first word's number.
    """
    if symbols in _NUMBERED:
        numbered = enumerate(words, start=first_number)
        words = [f"{_number(place)} {word}" for place, word in numbered]
    return " ".join(words)


def linearize(tree: Tree, words: str = "tags", first_number: int = 0) -> str:
    """Spell a tree's brackets as symbols.

    Args:
        tree: the tree.
        words: what stands for a word: "tags", its part of speech; "numbers", its
            place from `first_number`, modulo `NUMBERS`; "XX"; or "joined", its number
            and then its tag with the brackets around it.
        first_number: the first word's number; `delinearize` takes it to be 0.
    """
    if words == "joined":
        joined = enumerate(_joined_symbols(tree), start=first_number)
        return " ".join(f"{_number(place)} {symbol}" for place, symbol in joined)
    symbols = []
    for kind, value in events(tree):
        if kind == "word":
            symbols.append(_word_symbol(tree, value, words, first_number))
        else:
            symbols.append(("(" if kind == "open" else ")") + value)
    return " ".join(symbols)


def _joined_symbols(tree) -> list[str]:
    symbols, opened, closed = [], "", []
    for kind, value in events(tree):
        if kind == "close":
            closed.append(value)
            continue
        if closed:
            symbols[-1] += f"){closed[-1]}" * closed.count(closed[-1])
            closed = []
        if kind == "open":
            opened += f"({value}"
        else:
            symbols.append(f"{opened}({tree.tags[value]})")
            opened = ""
    return symbols


def _word_symbol(tree, place, words, first_number) -> str:
    if words == "numbers":
        return _number(place + first_number)
    return f"({tree.tags[place] if words == 'tags' else ANY_TAG})"


def _number(place) -> str:
    return f"({place % NUMBERS})"


def symbols_of(trees: Iterable[Tree], words: str = "tags") -> list[str]:
    """All symbols that trees need, on both sides, as `linearize` spells them; sorted.

    Args:
        trees: the trees.
        words: what stands for a word, see `linearize`.
    """
    numbers = [_number(place) for place in range(NUMBERS)]
    if words == "joined":
        used = {symbol for tree in trees for symbol in _joined_symbols(tree)}
        return sorted(used.union(numbers))
    labels, tags = label_counts(trees)
    symbols = [f"({tag})" for tag in (tags if words == "tags" else [ANY_TAG])]
    if words == "numbers":
        symbols = numbers
    brackets = [side + label for label in labels for side in "()"]
    return sorted({*brackets, *symbols})


def word_marks(pieces: Sequence[bytes], words: str = "tags") -> tuple[list, list]:
    """Tell words from the rest in sequences of ids.

    Args:
        pieces: what each id of a vocabulary of byte pairs spells, with the space
            before it (`BytePairTokenizer.piece_bytes`).
        words: what stands for a word, see `linearize`.

    Returns:
        Two lists of bool, one for each id: whether it begins a word of the source
        (where words are numbered, the number does), and whether it stands for one in
        the target.
    """
    begins = [piece.startswith(b" ") for piece in pieces]
    texts = [piece.decode("utf-8", "replace")[1:] for piece in pieces]
    matches = [
        _JOINED_SYMBOL.fullmatch(text) if begin else None
        for begin, text in zip(begins, texts, strict=True)
    ]
    symbols = [match is not None for match in matches]
    if words not in _NUMBERED:
        return begins, symbols
    numbers = [match is not None and _is_number(match[2]) for match in matches]
    if words == "numbers":
        return numbers, symbols
    # What its number says is said of a word before it has been spelt.
    spelt = [
        symbol and not number for symbol, number in zip(symbols, numbers, strict=True)
    ]
    return numbers, spelt


def delinearize(text: str, words: Sequence[str]) -> tuple[Tree, Counter]:
    """Build the tree that symbols spell; it has exactly the given words.

    Whatever the text is, the result is a tree. What is wrong is mended:

    - A symbol that is none is skipped.
    - Numbers tell which words have no symbol: they come before the next one. Without
      numbers, and at the end, they come last in the innermost constituent that is
      open there, or else in the outermost one. Symbols without a word are skipped.
    - A closing bracket closes the innermost constituent of its label, and all inside
      it; if there is none, it is skipped. What is open at the end is closed. (Both
      are as it should be where brackets are joined to words.)
    - A constituent without a word is left out.
    - More than one root, or none, becomes one with the label ``TOP``. A single word
      needs no root.

    Args:
        text: symbols, separated by spaces.
        words: the sentence's words, at least one.

    Returns:
        The tree, and for each kind of `REPAIRS` that there was the number of them.
    """
    repairs = Counter()
    spans, stack, tags = [], [], []
    joined = superfluous = False
    for kind, value in _events_of(text):
        if kind == "number":
            skipped = _skipped(value, len(tags))
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
            stack.append(len(spans))
            spans.append([value, len(tags), None])
        elif kind == "joined":
            joined = True
        elif kind == "close":
            depth = _innermost(value, stack, spans)
            if depth is None:
                repairs["superfluous closing brackets"] += 1
                continue
            if not joined:
                repairs["missing closing brackets"] += len(stack) - depth - 1
            _close(spans, stack, depth, len(tags))
        else:
            repairs["unknown symbols"] += 1
    repairs["missing words"] += len(words) - len(tags)
    if not joined:
        repairs["missing closing brackets"] += len(stack)
    if not stack and spans and spans[0][1:] == [0, len(tags)]:
        spans[0][2] = len(words)
    tags += [ANY_TAG] * (len(words) - len(tags))
    _close(spans, stack, 0, len(words))
    kept = [tuple(span) for span in spans if span[1] < span[2]]
    repairs["empty constituents"] = len(spans) - len(kept)
    whole = (0, len(words))
    if len(words) > 1 and (not kept or kept[0][1:] != whole):
        kept.insert(0, (ROOT_LABEL, *whole))
        repairs["missing roots"] = 1
    return Tree(tuple(words), tuple(tags), tuple(kept)), +repairs


def _events_of(text) -> Iterator[tuple[str | None, str | None]]:
    """What symbols say, as `trees.events` does, None for what says nothing.

    ("number", number) comes before a word that has one, and ("joined", None) before
    what a symbol of several brackets says.
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
            after = _JOINED_SYMBOL.fullmatch(following)
            if not after or _is_number(after[2]):
                yield "word", ANY_TAG
        for label in closed.split(")")[1:]:
            yield "close", label


def _skipped(number, place) -> int:
    """How many words were left out before a word's number; negative if it goes back."""
    ahead = (int(number[-9:]) - place) % NUMBERS
    return ahead if ahead < NUMBERS // 2 else ahead - NUMBERS


def _is_number(symbol) -> bool:
    return symbol.isdecimal() and symbol.isascii()


def _innermost(label, stack, spans) -> int | None:
    """Where in the stack the innermost open constituent of a label is."""
    for depth in range(len(stack) - 1, -1, -1):
        if spans[stack[depth]][0] == label:
            return depth
    return None


def _close(spans, stack, depth, end):
    while len(stack) > depth:
        spans[stack.pop()][2] = end
