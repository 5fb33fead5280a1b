"""Forbidden phrases as a finite automaton over token ids."""

import unicodedata
from typing import NamedTuple

import numpy as np

# Maximum size of the transition table, states times ids (512 MiB of int32).
MAX_ENTRIES = 2**27
ROOT = 0
_FORBIDDEN = -1
# Suffix of a phrase that allows its last word to continue.
_CONTINUES = "*"


class Phrase(NamedTuple):
    """A sequence of symbols, matched anywhere or only next to word boundaries."""

    symbols: tuple
    at_start: bool = False  # only after a boundary
    at_end: bool = False  # only before a boundary


def forbidden_transitions(spellings, phrases, boundaries=()):
    """Builds an automaton that rejects tokens completing a forbidden phrase.

    Phrases are matched symbol by symbol, with the algorithm of Aho and Corasick (1975).
    So a phrase is found regardless of how it is split into tokens.

    Args:
        spellings: For each id, the sequence of int symbols that it spells, such as its
            bytes. An id that spells nothing is never forbidden.
        phrases: List of `Phrase`.
        boundaries: Sequences of symbols that separate words.

    Returns:
        int32 `[num_states, num_ids]`, the state after each token, or -1 if the token
        completes a phrase. A search begins in state 0.

    Raises:
        ValueError: If a phrase has no symbols, or the phrases are too many or too long.
    """
    if any(not phrase.symbols for phrase in phrases):
        raise ValueError(
            f"Each phrase must have at least one symbol. Received: {phrases}."
        )
    delta = _transitions(phrases, boundaries)
    columns = {symbol: column for column, symbol in enumerate(sorted(delta[ROOT]))}
    # The last column is for the symbols that occur in no phrase and no boundary.
    table = np.full((len(delta), len(columns) + 1), ROOT, "int32")
    for state, row in enumerate(delta):
        for symbol, target in row.items():
            table[state, columns[symbol]] = target
    if len(delta) * len(spellings) > MAX_ENTRIES:
        raise ValueError(
            "The forbidden phrases are too many or too long. States times ids must be "
            f"at most {MAX_ENTRIES}. Received: {len(delta)} states, "
            f"{len(spellings)} ids."
        )
    states = np.arange(len(delta), dtype="int32")
    state_after_token = np.empty((len(spellings), len(delta)), "int32")
    for token, spelling in enumerate(spellings):
        current = states
        for symbol in spelling:
            following = table[current, columns.get(symbol, len(columns))]
            current = np.where(current == _FORBIDDEN, _FORBIDDEN, following)
        state_after_token[token] = current
    return np.ascontiguousarray(state_after_token.T)


def _transitions(phrases, boundaries):
    """Builds the automaton over symbols.

    Returns:
        For each state, a dict from each symbol to the next state, or to -1 if the
        symbol completes a phrase. State 0 is the root, and state 1 follows a boundary.
    """
    boundaries = [tuple(boundary) for boundary in boundaries]
    trie = [{}, {}]  # for each state, the next states within phrases and boundaries
    root, after_boundary = ROOT, 1
    # Phrases that need no boundary at their end come first. A later phrase that begins
    # with one of these is redundant and adds no states.
    for phrase in sorted(phrases, key=lambda phrase: phrase.at_end):
        ends = boundaries if phrase.at_end else [()]
        for end in ends:
            start = after_boundary if phrase.at_start else root
            _insert(trie, start, (*phrase.symbols, *end), _FORBIDDEN)
    # A boundary leads to state 1. But a boundary that begins a phrase leads to a state
    # of the phrase. Such states are in `shared` and fall back to state 1.
    shared = {_insert(trie, root, boundary, after_boundary) for boundary in boundaries}
    symbols = {symbol for row in trie for symbol in row}
    delta = [None] * len(trie)
    # Failure links: from a state to the state of its longest suffix in the trie.
    fails = {after_boundary: root}
    delta[root] = {symbol: trie[root].get(symbol, root) for symbol in symbols}
    queue = [after_boundary]
    for target in trie[root].values():
        if target > after_boundary:
            fails[target] = after_boundary if target in shared else root
            queue.append(target)
    for state in queue:  # grows in the loop, breadth first
        fallback = delta[fails[state]]
        delta[state] = row = dict(fallback)
        for symbol, target in trie[state].items():
            if fallback[symbol] == _FORBIDDEN or target == _FORBIDDEN:
                row[symbol] = _FORBIDDEN
                continue
            row[symbol] = target
            if target > after_boundary:
                is_shared = target in shared
                fails[target] = after_boundary if is_shared else fallback[symbol]
                queue.append(target)
    # States that can be reached only through -1 are never entered. Any row will do.
    return [row if row is not None else delta[root] for row in delta]


def _insert(trie, state, symbols, last):
    """Adds a path of symbols from `state` to `last`, and returns `last`.

    If the path already exists and `last` is not -1, the path is kept, and the state
    that it leads to is returned.
    """
    for symbol in symbols[:-1]:
        target = trie[state].get(symbol)
        if target is None:
            trie.append({})
            target = trie[state][symbol] = len(trie) - 1
        if target == _FORBIDDEN:
            return last
        state = target
    if last == _FORBIDDEN:
        trie[state][symbols[-1]] = last
        return last
    return trie[state].setdefault(symbols[-1], last)


def parse_phrase(text):
    """Parses a phrase of whole words. With a final `*`, the last word may continue.

    If a phrase begins with a letter or digit, it matches only at the beginning of a
    word. If it ends with a letter or digit, it matches only at the end of a word. Wide
    characters (Chinese, Japanese, Korean) are exempt, so phrases in these languages are
    found anywhere.

    Returns:
        `Phrase` of bytes.

    Raises:
        ValueError: If the text is blank, or contains only `*`.
    """
    open_end = text.rstrip().endswith(_CONTINUES)
    words = " ".join(text.rstrip().removesuffix(_CONTINUES).split())
    if not words:
        raise ValueError(
            f"{text!r} is not a phrase that can be forbidden. It must contain more "
            "than whitespace and `*`."
        )
    return Phrase(
        tuple(words.encode("utf-8", "replace")),
        at_start=_needs_boundary(words[0]),
        at_end=not open_end and _needs_boundary(words[-1]),
    )


def _needs_boundary(character):
    """Returns whether a phrase with this first or last character needs a boundary."""
    return character.isalnum() and unicodedata.east_asian_width(character) not in "WF"


def _text_boundaries():
    """Yields the UTF-8 bytes of each character that separates words."""
    for code in (*range(0x80), *range(0xA0, 0xC0), *range(0x2000, 0x2070)):
        if not chr(code).isalnum():
            yield tuple(chr(code).encode())


# Word separators of ASCII, Latin-1, and General Punctuation, in UTF-8.
TEXT_BOUNDARIES = tuple(_text_boundaries())


def build_text_table(tokenizer, texts):
    """Builds the automaton of `forbidden_transitions` for the ids of a tokenizer.

    Args:
        tokenizer: Tokenizer with `piece_bytes`.
        texts: List of str, the phrases (see `parse_phrase`).

    Raises:
        ValueError: If a text is not a phrase, or the phrases are too many or too long.
    """
    spellings = tokenizer.piece_bytes()
    # A text begins and ends at a word boundary.
    spellings[tokenizer.start_id] = spellings[tokenizer.end_id] = b" "
    return forbidden_transitions(
        spellings, list(map(parse_phrase, texts)), TEXT_BOUNDARIES
    )
