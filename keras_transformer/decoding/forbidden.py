"""Forbidden phrases as a finite automaton over token ids."""

import itertools
import unicodedata
from typing import Any, NamedTuple

import numpy as np
from keras import ops

# The first states: within a word, after a boundary, and after a phrase that must not be
# followed by a boundary.
ROOT, AFTER_BOUNDARY, BEFORE_BOUNDARY = range(3)
# Next states of a token that completes a phrase, and of one that spells nothing.
FORBIDDEN, UNCHANGED = -1, -2
# Maximum number of edges of a state. A state with more has a row of its own.
MAX_EDGES = 32
# Suffix of a phrase that allows its last word to continue.
_CONTINUES = "*"


class Phrase(NamedTuple):
    """A sequence of symbols, matched anywhere or only next to word boundaries."""

    symbols: tuple
    at_start: bool = False  # only after a boundary
    at_end: bool = False  # only before a boundary


class Automaton(NamedTuple):
    """A finite automaton over token ids. A search begins in state 0.

    The next state is the target of a state's edge for the token. Without such an edge,
    it is in the state's row, which many states share.
    """

    rows: Any  # int32 [num_rows, num_ids], next states, `FORBIDDEN` or `UNCHANGED`
    row_of: Any  # int32 [num_states], the row of each state
    first_edge: Any  # int32 [num_states + 1], where each state's edges begin
    tokens: Any  # int32 [num_edges + MAX_EDGES], the tokens of edges, then padding
    targets: Any  # int32 [num_edges + MAX_EDGES], their next states, or `FORBIDDEN`

    def edges(self, states):
        """Returns tokens and targets of the edges of states, int32 `[n, MAX_EDGES]`.

        Unused places have token -1 and target 0.
        """
        first, end = (ops.take(self.first_edge, states + i)[:, None] for i in (0, 1))
        places = first + ops.arange(MAX_EDGES, dtype="int32")
        return (
            ops.where(places < end, ops.take(self.tokens, places), -1),
            ops.where(places < end, ops.take(self.targets, places), 0),
        )

    def next_states(self, states, tokens):
        """Returns the states after tokens, or `FORBIDDEN`. All are int32 `[n]`."""
        places = ops.take(self.row_of, states) * self.rows.shape[1] + tokens
        following = ops.take(ops.reshape(self.rows, (-1,)), places)
        edge_tokens, targets = self.edges(states)
        is_edge = edge_tokens == tokens[:, None]  # true at most once
        target = ops.sum(ops.where(is_edge, targets, 0), axis=1)
        following = ops.where(ops.any(is_edge, axis=1), target, following)
        return ops.where(following == UNCHANGED, states, following)

    def forbidden_before(self, token):
        """Returns whether each state forbids a token, bool array `[num_states]`."""
        found = (self.rows[:, token] == FORBIDDEN)[self.row_of]
        states = np.repeat(np.arange(len(found)), np.diff(self.first_edge))
        edges = slice(len(states))
        is_hit = (self.tokens[edges] == token) & (self.targets[edges] == FORBIDDEN)
        found[states[is_hit]] = True
        return found


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
        `Automaton` of NumPy arrays.

    Raises:
        ValueError: If a phrase has no symbols.
    """
    if any(not phrase.symbols for phrase in phrases):
        raise ValueError(
            f"Each phrase must have at least one symbol. Received: {phrases}."
        )
    symbols = _phrase_trie(phrases, boundaries)
    children, spelled = [{}], {}
    for token, spelling in enumerate(spellings):
        spelled.setdefault(_add_path(children, 0, spelling), []).append(token)
    rows, known_rows = [_root_row(symbols, children, spelled, len(spellings))], {}
    num_states = len(symbols.trie)
    row_of, edges = [0] * num_states, [{}] * num_states

    for state, fallback in symbols.fails.items():
        base = row_of[fallback]
        found = edges[fallback] | _own_edges(state, symbols, children, spelled)
        for other in {*symbols.before.get(state, ())} - {fallback}:
            old, base = base, known_rows.setdefault((base, row_of[other]), len(rows))
            if base == len(rows):
                banned = rows[row_of[other]] == FORBIDDEN
                rows.append(np.where(banned, np.int32(FORBIDDEN), rows[old]))
            found |= {k: v for k, v in edges[other].items() if v == FORBIDDEN}
            found = {k: v for k, v in found.items() if rows[base][k] != FORBIDDEN}
        is_first = state in (AFTER_BOUNDARY, BEFORE_BOUNDARY)
        if is_first or len(found) > MAX_EDGES:
            # Many states forbid the same tokens, such as all that begin with a letter.
            kept = {k: v for k, v in found.items() if v != FORBIDDEN}
            kept = {} if is_first or len(kept) > MAX_EDGES else kept
            changes = frozenset(found.items() - kept.items())
            old, base = base, known_rows.setdefault((base, changes), len(rows))
            if base == len(rows):
                tokens, targets = zip(*changes, strict=True) if changes else ((), ())
                rows.append(rows[old].copy())
                rows[base][[*tokens]] = targets
            found = kept
        row_of[state], edges[state] = base, found
    first_edge = [0, *itertools.accumulate(map(len, edges))]
    padding = [0] * MAX_EDGES
    columns = (
        row_of,
        first_edge,
        [*itertools.chain(*edges), *padding],
        [*itertools.chain(*(each.values() for each in edges)), *padding],
    )
    return Automaton(np.stack(rows), *(np.array(each, "int32") for each in columns))


class _Symbols(NamedTuple):
    """The automaton over symbols."""

    # For each state, the next states within phrases and boundaries, or `FORBIDDEN` for
    # a symbol that completes a phrase.
    trie: list
    # Failure links: for each state but `ROOT`, the state of its longest suffix in the
    # trie, which reads all other symbols. A link comes before its state.
    fails: dict
    # For states after a phrase that must not be followed by a boundary:
    # `BEFORE_BOUNDARY` or a state that has read a part of the boundary. Whatever is
    # forbidden there is forbidden here.
    before: dict

    def next_state(self, state, symbol):
        while True:
            if self.is_end(state, symbol):
                return FORBIDDEN
            if symbol in self.trie[state] or state == ROOT:
                return self.trie[state].get(symbol, ROOT)
            state = self.fails[state]

    def is_end(self, state, symbol):
        """Returns whether a symbol is the last one of a boundary after a phrase."""
        others = self.before.get(state, ())
        return any(self.trie[each].get(symbol) == FORBIDDEN for each in others)


def _phrase_trie(phrases, boundaries):
    """Returns the `_Symbols` of phrases."""
    symbols = trie, fails, before = _Symbols([{}, {}, {}], {}, {})
    # Phrases that need no boundary at their end come first. A later phrase that begins
    # with one of these is redundant and adds no states.
    for phrase in sorted(phrases, key=lambda phrase: phrase.at_end):
        start = AFTER_BOUNDARY if phrase.at_start else ROOT
        if not phrase.at_end:
            _add_path(trie, start, phrase.symbols, FORBIDDEN)
        elif (state := _add_path(trie, start, phrase.symbols)) != FORBIDDEN:
            before[state] = [BEFORE_BOUNDARY]
    # A boundary leads to `AFTER_BOUNDARY`. But a boundary that begins a phrase leads to
    # a state of the phrase. Such states are in `shared` and fail to `AFTER_BOUNDARY`.
    shared = set()
    for boundary in boundaries:
        shared.add(_add_path(trie, ROOT, boundary, AFTER_BOUNDARY))
        _add_path(trie, BEFORE_BOUNDARY, boundary, FORBIDDEN)
    fails |= {AFTER_BOUNDARY: ROOT, BEFORE_BOUNDARY: ROOT}
    for target in trie[ROOT].values():
        if target > BEFORE_BOUNDARY:
            fails[target] = AFTER_BOUNDARY if target in shared else ROOT
    queue = list(fails)
    for state in queue:  # grows in the loop, breadth first
        suffixes = [fails[state]]
        while suffixes[-1] != ROOT:
            suffixes.append(fails[suffixes[-1]])
        others = [each for each in before.pop(state, ()) if each not in suffixes]
        for other in others:
            before.setdefault(state, []).append(other)
            if fails[state] == fails[other]:
                fails[state] = other
                continue
            # The state reads a part of a boundary in a state of its own.
            for symbol, target in trie[other].items():
                if target != FORBIDDEN:
                    child = _add_path(trie, state, [symbol])
                    before.setdefault(child, []).append(target)
        for symbol, target in list(trie[state].items()):
            fallback = symbols.next_state(fails[state], symbol)
            if fallback == FORBIDDEN or symbols.is_end(state, symbol):
                del trie[state][symbol]
            elif target > BEFORE_BOUNDARY:
                fails[target] = AFTER_BOUNDARY if target in shared else fallback
                queue.append(target)
    return symbols


def _add_path(trie, state, symbols, last=None):
    """Returns the state at the end of a path of symbols, and adds what is missing.

    A path ends early where `FORBIDDEN` is reached. If `last` is given, the last symbol
    leads to this state, unless it leads to a state already and `last` is not
    `FORBIDDEN`.
    """
    for count, symbol in enumerate(symbols, 1):
        if count == len(symbols) and last is not None:
            if last == FORBIDDEN:
                trie[state][symbol] = last
            return trie[state].setdefault(symbol, last)
        if symbol not in trie[state]:
            trie[state][symbol] = len(trie)
            trie.append({})
        state = trie[state][symbol]
        if state == FORBIDDEN:
            break
    return state


def _root_row(symbols, children, spelled, num_ids):
    """Returns the states after each token in `ROOT`, int32 `[num_ids]`."""
    after = [ROOT] * len(children)
    for node, following in enumerate(children):  # a node comes before its children
        for symbol, child in following.items():
            state = after[node]
            if state != FORBIDDEN:
                state = symbols.next_state(state, symbol)
            after[child] = state
    row = np.empty(num_ids, "int32")
    for node, tokens in spelled.items():
        row[tokens] = after[node] if node else UNCHANGED
    return row


def _own_edges(state, symbols, children, spelled):
    """Returns the next states of tokens that follow the trie from `state`, as a dict.

    After all other tokens, the next state is the same as after its failure link.
    """
    found, stack = {}, [(state, 0)]
    while stack:
        source, node = stack.pop()
        for symbol, target in symbols.trie[source].items():
            child = children[node].get(symbol)
            if child is None:
                continue
            if target == FORBIDDEN:
                below = [child]
                for each in below:  # grows in the loop
                    below += children[each].values()
                    found |= dict.fromkeys(spelled.get(each, ()), FORBIDDEN)
                continue
            for token in spelled.get(child, ()):
                found.setdefault(token, target)
            stack += [(other, child) for other in symbols.before.get(target, ())]
            stack.append((target, child))  # taken first
    return found


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
    # Other spaces, such as the no-break space before French punctuation, are kept.
    words = text.rstrip().removesuffix(_CONTINUES).replace("\t", " ").split(" ")
    words = " ".join(filter(None, words)).strip()
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
    is_mark = unicodedata.category(character).startswith("M")  # as in Hindi and Thai
    is_wide = unicodedata.east_asian_width(character) in "WF"
    return (character.isalnum() or is_mark) and not is_wide


def _text_boundaries():
    """Yields the UTF-8 bytes of each character that separates words."""
    for code in (*range(0x80), *range(0xA0, 0xC0), *range(0x2000, 0x2070)):
        if not chr(code).isalnum():
            yield tuple(chr(code).encode())


# Word separators of ASCII, Latin-1, and General Punctuation, in UTF-8.
TEXT_BOUNDARIES = tuple(_text_boundaries())


def build_text_automaton(tokenizer, texts):
    """Builds the automaton of `forbidden_transitions` for the ids of a tokenizer.

    Args:
        tokenizer: Tokenizer with `piece_bytes`.
        texts: List of str, the phrases (see `parse_phrase`).

    Raises:
        ValueError: If a text is not a phrase.
    """
    spellings = tokenizer.piece_bytes()
    # A text begins and ends at a word boundary.
    spellings[tokenizer.start_id] = spellings[tokenizer.end_id] = b" "
    return forbidden_transitions(
        spellings, list(map(parse_phrase, texts)), TEXT_BOUNDARIES
    )
