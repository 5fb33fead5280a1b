"""Forbidden phrases as a finite automaton over token ids."""

import functools
import itertools
import unicodedata
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding.options import SpecialIds
from keras_transformer.numerics.indexing import gather

# The first states: within a word, after a boundary, and after a phrase that must not be
# followed by a boundary.
ROOT, AFTER_BOUNDARY, BEFORE_BOUNDARY = range(3)
# Next states of a token that completes a phrase, and of one that spells nothing.
FORBIDDEN, UNCHANGED = -1, -2
# Maximum number of edges of a state. A state with more has a row of its own.
MAX_EDGES = 32
# Scripts without spaces between words (see `script_of`).
_UNSPACED = {"THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"}
# Suffix of a phrase that allows its last word to continue.
_CONTINUES = "*"


class Phrase(NamedTuple):
    """A forbidden phrase, matched anywhere or only next to word boundaries.

    Attributes:
        symbols: Tuple of int, such as the bytes of a text.
        at_start: Whether the phrase is matched only after a boundary.
        at_end: Whether the phrase is matched only before a boundary.
    """

    symbols: tuple
    at_start: bool = False
    at_end: bool = False


class Automaton(NamedTuple):
    """A finite automaton over token ids. A search begins in state 0.

    A token is forbidden if the state's mask or its edge for the token says so. Else,
    the next state is the target of this edge or, without one, is in the state's row.
    Many states share a row or a mask.
    """

    rows: Any  # int32 [num_rows, num_ids], next states, or `UNCHANGED`
    row_of: Any  # int32 [num_states], the row of each state
    # bool [2 * num_masks, num_ids + 1], the ids that each mask allows. The second half
    # is for the last position, where a token is also forbidden if the end id is
    # forbidden after it, or if it spells nothing. The added column is for unused edges.
    allowed: Any
    mask_of: Any  # int32 [num_states], the mask of each state
    may_end: Any  # bool [num_states], whether the end id is allowed
    first_edge: Any  # int32 [num_states + 1], where each state's edges begin
    tokens: Any  # int32 [num_edges + MAX_EDGES], the tokens of edges, then padding
    targets: Any  # int32 [num_edges + MAX_EDGES], their next states, or `FORBIDDEN`

    def edges(self, states):
        """Returns tokens and targets of the edges of states, int32 `[n, MAX_EDGES]`.

        Unused places have token -1 and target 0.
        """
        first, end = (gather(self.first_edge, states + i)[:, None] for i in (0, 1))
        places = first + ops.arange(MAX_EDGES, dtype="int32")
        return (
            ops.where(places < end, gather(self.tokens, places), -1),
            ops.where(places < end, gather(self.targets, places), 0),
        )

    def next_states(self, states, tokens):
        """Returns the states after tokens, or `FORBIDDEN`. All are int32 `[n]`."""
        places = gather(self.row_of, states) * self.rows.shape[1] + tokens
        following = gather(ops.reshape(self.rows, (-1,)), places)
        edge_tokens, targets = self.edges(states)
        is_edge = edge_tokens == tokens[:, None]  # true at most once
        target = ops.sum(ops.where(is_edge, targets, 0), axis=1)
        following = ops.where(ops.any(is_edge, axis=1), target, following)
        following = ops.where(following == UNCHANGED, states, following)
        places = gather(self.mask_of, states) * self.allowed.shape[1] + tokens
        is_allowed = gather(ops.reshape(self.allowed, (-1,)), places)
        return ops.where(is_allowed, following, FORBIDDEN)

    def accepts(self, rows):
        """Returns which rows of ids, int32 `[n, length]`, are allowed, bool `[n]`."""
        states, accepted = np.zeros(len(rows), "int32"), np.ones(len(rows), bool)
        for tokens in rows.T:
            states = np.asarray(self.next_states(states, tokens))
            accepted &= states != FORBIDDEN
            states = np.maximum(states, 0)
        return accepted


def forbidden_transitions(spellings, phrases, boundaries=(), end_id=SpecialIds().end):
    """Builds an automaton that rejects tokens completing a forbidden phrase.

    Phrases are matched symbol by symbol, with the algorithm of Aho and Corasick (1975).
    So a phrase is found regardless of how it is split into tokens.

    Args:
        spellings: For each id, the sequence of int symbols that it spells, such as its
            bytes. An id that spells nothing is never forbidden.
        phrases: List of `Phrase`.
        boundaries: Sequences of symbols that separate words.
        end_id: The end id.

    Returns:
        `Automaton` of NumPy arrays.

    Raises:
        ValueError: If a phrase has no symbols.
    """
    if any(not phrase.symbols for phrase in phrases):
        raise ValueError(
            f"Each phrase must have at least one symbol. Received: {phrases}."
        )
    builder = _Builder(_phrase_trie(phrases, boundaries), _TokenTrie(spellings))
    for state in builder.symbols.fails:
        builder.add(state)
    return builder.automaton(end_id)


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
            if state in self.before and self.is_end(state, symbol):
                return FORBIDDEN
            target = self.trie[state].get(symbol)
            if target is not None:
                return target
            if state == ROOT:
                return ROOT
            state = self.fails[state]

    def is_end(self, state, symbol):
        """Returns whether a symbol is the last one of a boundary after a phrase."""
        return any(
            self.trie[each].get(symbol) == FORBIDDEN for each in self.before[state]
        )


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
        if state in before:
            _read_boundaries(symbols, state)
        for symbol, target in list(trie[state].items()):
            fallback = symbols.next_state(fails[state], symbol)
            is_end = state in before and symbols.is_end(state, symbol)
            if is_end or fallback == FORBIDDEN:
                del trie[state][symbol]
            elif target > BEFORE_BOUNDARY:
                fails[target] = AFTER_BOUNDARY if target in shared else fallback
                queue.append(target)
    return symbols


def _read_boundaries(symbols, state):
    """Lets a state after a phrase read the boundaries that must not follow it."""
    trie, fails, before = symbols
    suffixes = [fails[state]]
    while suffixes[-1] != ROOT:
        suffixes.append(fails[suffixes[-1]])
    # What is forbidden in a suffix is forbidden by the failure links already.
    others = [each for each in before.pop(state) if each not in suffixes]
    for other in others:
        before.setdefault(state, []).append(other)
        # `other` can take the place of the failure link if it reads all other symbols
        # like the link. The state then shares the row and the partly read boundaries of
        # `other`, and needs none of its own.
        if fails[state] == fails[other]:
            fails[state] = other
            continue
        for symbol, target in trie[other].items():
            if target != FORBIDDEN:
                child = _add_path(trie, state, [symbol])
                before.setdefault(child, []).append(target)


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


class _TokenTrie:
    """The tokens by their spellings. Node 0 has those that spell nothing.

    Attributes:
        children: For each node, the node of each next symbol. A node comes before its
            children.
        tokens: For each node that is the end of a spelling, the tokens.
        order: int32 `[num_ids]`, the tokens sorted by spelling.
        places: For each token, its index in `order`.
        below: For each node, the tokens whose spelling begins with it, as a slice of
            `order`.
    """

    def __init__(self, spellings):
        order = sorted(range(len(spellings)), key=spellings.__getitem__)
        self.children, self.tokens = [{}], {}
        begins, ends = [0], [len(order)]
        path, before = [0], ()
        for place, token in enumerate(order):
            spelling = spellings[token]
            depth = 0
            for one, other in zip(before, spelling, strict=False):
                if one != other:
                    break
                depth += 1
            for node in path[depth + 1 :]:
                ends[node] = place
            del path[depth + 1 :]
            for symbol in spelling[depth:]:
                self.children[path[-1]][symbol] = len(self.children)
                path.append(len(self.children))
                self.children.append({})
                begins.append(place)
                ends.append(len(order))
            self.tokens.setdefault(path[-1], []).append(token)
            before = spelling
        self.order = np.array(order, "int32")
        self.places = np.argsort(self.order).tolist()
        self.below = list(map(slice, begins, ends))


class _Builder:
    """Builds an `Automaton` state by state. States come after their failure links."""

    def __init__(self, symbols, tokens):
        self.symbols = symbols
        self._tokens = tokens
        row = self._root_row()
        # Next states and allowed tokens, without repetitions, and the index of each.
        self._rows, self._masks = (
            [np.where(row == FORBIDDEN, ROOT, row)],
            [row != FORBIDDEN],
        )
        self._known = {}
        num_states = len(symbols.trie)
        self._row_of, self._mask_of = [0] * num_states, [0] * num_states
        self._edges = [{}] * num_states

    def _root_row(self):
        """Returns the states after each token in `ROOT`, int32 `[num_ids]`."""
        after = [ROOT] * len(self._tokens.children)
        for node, following in enumerate(self._tokens.children):
            state = after[node]
            for symbol, child in following.items():
                if state != FORBIDDEN:
                    after[child] = self.symbols.next_state(state, symbol)
                else:
                    after[child] = FORBIDDEN
        row = np.empty(len(self._tokens.order), "int32")
        for node, tokens in self._tokens.tokens.items():
            row[tokens] = after[node] if node else UNCHANGED
        return row

    def add(self, state):
        """Finds the row and the edges of a state."""
        fallback = self.symbols.fails[state]
        # All tokens but the state's own ones lead to the same state as after its link.
        row, mask = self._row_of[fallback], self._mask_of[fallback]
        own, banned = self._own_edges(state)
        edges = self._edges[fallback]
        edges = edges | own if own else edges
        for other in dict.fromkeys(self.symbols.before.get(state, ())):
            if other != fallback:
                mask, edges = self._merge_boundary(mask, edges, other)
        if banned or len(edges) > MAX_EDGES or state <= BEFORE_BOUNDARY:
            row, mask, edges = self._move_to_row(state, row, mask, edges, banned)
        self._row_of[state], self._mask_of[state] = row, mask
        self._edges[state] = edges

    def _own_edges(self, state):
        """Returns the next states of tokens that follow the trie of phrases, as a dict.

        If more than `MAX_EDGES` of them complete a phrase, they are not in the dict.
        Then, they are also returned, as slices of the order of tokens.
        """
        trie, before = self.symbols.trie, self.symbols.before
        children, tokens = self._tokens.children, self._tokens.tokens
        found, banned, stack = {}, set(), [(state, 0)]
        while stack:
            source, node = stack.pop()
            following, targets = children[node], trie[source]
            for symbol in targets.keys() & following.keys():
                target, child = targets[symbol], following[symbol]
                if target == FORBIDDEN:
                    banned.add(child)
                    continue
                if child in tokens:
                    for token in tokens[child]:
                        found.setdefault(token, target)
                if children[child]:
                    if target in before:
                        stack += [(other, child) for other in before[target]]
                    stack.append((target, child))  # taken first
        if not banned:
            return found, ()
        banned = [self._tokens.below[node] for node in sorted(banned)]
        if sum(each.stop - each.start for each in banned) > MAX_EDGES:
            return found, banned
        for each in banned:
            found |= dict.fromkeys(self._tokens.order[each].tolist(), FORBIDDEN)
        return found, ()

    def _merge_boundary(self, mask, edges, other):
        """Forbids what is forbidden in the state `other`."""
        masks, other_mask = self._masks, self._mask_of[other]
        mask = self._shared(
            masks, (mask, other_mask), lambda: masks[mask] & masks[other_mask]
        )
        forbidden = {k: v for k, v in self._edges[other].items() if v == FORBIDDEN}
        edges = edges | forbidden
        is_allowed = masks[mask][[*edges]].tolist()
        return mask, dict(itertools.compress(edges.items(), is_allowed))

    def _move_to_row(self, state, row, mask, edges, banned):
        """Moves edges to a mask, and to a row if they are many.

        Many states forbid the same tokens, such as all that begin with a letter. The
        tokens in `banned` (see `_own_edges`) are forbidden, too.
        """
        rows, masks = self._rows, self._masks
        kept = {k: v for k, v in edges.items() if v != FORBIDDEN}
        forbidden = frozenset(edges.keys() - kept.keys())

        def new_mask():
            new = masks[mask].copy()
            new[[*forbidden]] = False
            for each in banned:
                new[self._tokens.order[each]] = False
            return new

        slices = tuple((each.start, each.stop) for each in banned)
        new_index = self._shared(masks, (mask, forbidden, slices), new_mask)
        if banned:
            is_allowed = masks[new_index][[*kept]].tolist()
            kept = dict(itertools.compress(kept.items(), is_allowed))
        if state <= BEFORE_BOUNDARY or len(kept) > MAX_EDGES:

            def new_row():
                new = rows[row].copy()
                new[[*kept]] = [*kept.values()]
                return new

            row = self._shared(rows, (row, frozenset(kept.items())), new_row)
            kept = {}
        return row, new_index, kept

    def _shared(self, arrays, key, create):
        """Returns the index of the array of a key, which is created if it is new."""
        known = self._known.setdefault(arrays is self._rows, {})
        if key not in known:
            known[key] = len(arrays)
            arrays.append(create())
        return known[key]

    def automaton(self, end_id):
        pairs = list(zip(self._row_of, self._mask_of, strict=True))
        numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
        mask_of = np.array([numbers[pair] for pair in pairs], "int32")
        may_end = np.array([mask[end_id] for mask in self._masks])[self._mask_of]
        for state, edges in enumerate(self._edges):
            if edges.get(end_id) == FORBIDDEN:
                may_end[state] = False
        num_ids = len(self._rows[0])
        allowed = np.zeros((2 * len(numbers), num_ids + 1), bool)
        # `UNCHANGED` is the index of the value before the last.
        may_be_last = np.append(may_end, [False, False])
        for (row, mask), number in numbers.items():
            allowed[number, :-1] = self._masks[mask]
            last = allowed[len(numbers) + number, :-1]
            np.logical_and(self._masks[mask], may_be_last[self._rows[row]], out=last)
        padding = [0] * MAX_EDGES
        columns = (
            [0, *itertools.accumulate(map(len, self._edges))],
            [*itertools.chain(*self._edges), *padding],
            [*itertools.chain(*(each.values() for each in self._edges)), *padding],
        )
        columns = (np.array(each, "int32") for each in columns)
        rows, row_of = np.stack(self._rows), np.array(self._row_of, "int32")
        return Automaton(rows, row_of, allowed, mask_of, may_end, *columns)


def parse_phrase(text):
    """Parses a `Phrase` of bytes. With a final `*`, its last word may continue.

    If a phrase begins with a letter or digit, it matches only at the beginning of a
    word. If it ends with a letter or digit, it matches only at the end of a word.
    Characters of scripts without spaces between words are exempt (see `is_in_word`).
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
        at_start=is_in_word(words[0]),
        at_end=not open_end and is_in_word(words[-1]),
    )


def is_in_word(character):
    """Returns whether a character may continue a word, as a part of one may.

    Wide characters (Chinese, Japanese, Korean) and those of other scripts without
    spaces between words are words by themselves.
    """
    if character in ("", "\ufffd"):
        return bool(character)
    is_mark = unicodedata.category(character).startswith("M")  # as in Hindi
    is_word = unicodedata.east_asian_width(character) in "WF"
    is_word |= script_of(character) in _UNSPACED
    return (character.isalnum() or is_mark) and not is_word


@functools.cache
def script_of(character):
    """Returns the word with which the name of a letter begins, such as LATIN."""
    return unicodedata.name(character, "").partition(" ")[0]


def _text_boundaries():
    """Yields the UTF-8 bytes of each character that separates words."""
    for code in (*range(0x80), *range(0xA0, 0xC0), *range(0x2000, 0x2070)):
        if not chr(code).isalnum():
            yield tuple(chr(code).encode())


# Word separators of ASCII, Latin-1, and General Punctuation, in UTF-8.
TEXT_BOUNDARIES = tuple(_text_boundaries())


def build_text_automaton(tokenizer, texts):
    """Builds the automaton of `forbidden_transitions` for the ids of a tokenizer.

    `texts` are the phrases (see `parse_phrase`). The tokenizer has `piece_bytes`.
    """
    spellings = tokenizer.piece_bytes()
    # A text begins and ends at a word boundary.
    spellings[tokenizer.start_id] = spellings[tokenizer.end_id] = b" "
    return forbidden_transitions(
        spellings, list(map(parse_phrase, texts)), TEXT_BOUNDARIES, tokenizer.end_id
    )
