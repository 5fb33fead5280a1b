"""Trees as sequences of symbols, depth-first, and back (section 6.3).

As in Vinyals et al. (2015), which the paper follows, a sentence's target holds no word:
``(S``, ``)S`` open and close a constituent, and one symbol stands for each word. There
it is always ``XX``; here it is ``(XX)``, or the word's tag, ``(NN)``: the bracketed
word with the word left out. Symbols are separated by spaces, so that no two sequences
of them spell one text.
"""

import re
from collections import Counter
from collections.abc import Sequence

from .trees import ROOT_LABEL
from .trees import Tree
from .trees import events

ANY_TAG = "XX"
WORD_SYMBOLS = ("numbers", "tags", ANY_TAG)
# Numbers begin again after so many words: few sentences are longer.
NUMBERS = 128
# Groups: what opens, a word's, what closes.
_SYMBOL = re.compile(r"\(([^()]+)|\(([^()]+)\)|\)([^()]+)")
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
    if symbols == "numbers":
        numbered = enumerate(words, start=first_number)
        words = [f"{_number(place)} {word}" for place, word in numbered]
    return " ".join(words)


def linearize(tree: Tree, words: str = "tags", first_number: int = 0) -> str:
    """Spell a tree's brackets as symbols.

    Args:
        tree: the tree.
        words: what stands for a word: "tags", its part of speech; "numbers", its
            place from `first_number`, modulo `NUMBERS`; or "XX".
        first_number: the first word's number; `delinearize` takes it to be 0.
    """
    symbols = []
    for kind, value in events(tree):
        if kind == "word":
            symbols.append(_word_symbol(tree, value, words, first_number))
        else:
            symbols.append(("(" if kind == "open" else ")") + value)
    return " ".join(symbols)


def _word_symbol(tree, place, words, first_number) -> str:
    if words == "numbers":
        return _number(place + first_number)
    return f"({tree.tags[place] if words == 'tags' else ANY_TAG})"


def _number(place) -> str:
    return f"({place % NUMBERS})"


def symbols_of(labels: Sequence[str], tags: Sequence[str]) -> list[str]:
    """All symbols that trees of these labels and tags can need, sorted."""
    brackets = [side + label for label in labels for side in "()"]
    return sorted({*brackets, *(f"({tag})" for tag in tags)})


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
    matches = [
        _SYMBOL.fullmatch(piece.decode("utf-8", "replace")[1:]) for piece in pieces
    ]
    begins = [piece.startswith(b" ") for piece in pieces]
    symbols = [
        begin and bool(match and match[2])
        for begin, match in zip(begins, matches, strict=True)
    ]
    return list(symbols) if words == "numbers" else begins, symbols


def delinearize(text: str, words: Sequence[str]) -> tuple[Tree, Counter]:
    """Build the tree that symbols spell; it has exactly the given words.

    Whatever the text is, the result is a tree. What is wrong is mended:

    - A symbol that is none is skipped.
    - Numbers tell which words have no symbol: they come before the next one. Without
      numbers, and at the end, they come last in the innermost constituent that is
      open there, or else in the outermost one. Symbols without a word are skipped.
    - A closing bracket closes the innermost constituent of its label, and all inside
      it; if there is none, it is skipped. What is open at the end is closed.
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
    for symbol in text.split():
        match = _SYMBOL.fullmatch(symbol)
        opened, tag, closed = match.groups() if match else (None, None, None)
        if tag:
            skipped = _skipped(tag, len(tags))
            if 0 <= skipped < len(words) - len(tags):
                repairs["missing words"] += skipped
                tags += [ANY_TAG] * skipped
                tags.append(ANY_TAG if _is_number(tag) else tag)
            else:
                repairs["superfluous words"] += 1
        elif opened:
            stack.append(len(spans))
            spans.append([opened, len(tags), None])
        elif closed:
            depth = _innermost(closed, stack, spans)
            if depth is None:
                repairs["superfluous closing brackets"] += 1
                continue
            repairs["missing closing brackets"] += len(stack) - depth - 1
            _close(spans, stack, depth, len(tags))
        else:
            repairs["unknown symbols"] += 1
    repairs["missing words"] += len(words) - len(tags)
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


def _skipped(symbol, place) -> int:
    """How many words were left out before a word symbol; negative if it goes back."""
    if not _is_number(symbol):
        return 0
    ahead = (int(symbol[-9:]) - place) % NUMBERS
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
