"""Forbidden phrases as a finite automaton over token ids."""

import functools
import itertools
import unicodedata
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding.options import SpecialIds
from keras_transformer.numerics.indexing import gather

# The first nodes of the trie of phrases and boundaries: where phrases and boundaries
# begin, where phrases begin that need a boundary before them, and where the boundaries
# begin that must not follow a phrase.
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
        # Empty places of a beam may have ids that the automaton lacks.
        tokens = ops.minimum(tokens, self.rows.shape[1] - 1)
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

    Phrases are matched symbol by symbol. So a phrase is found regardless of how it is
    split into tokens.

    Args:
        spellings: For each id, the sequence of int symbols that it spells, such as its
            bytes. An id that spells nothing is never forbidden.
        phrases: List of `Phrase`.
        boundaries: Sequences of symbols that separate words.
        end_id: The end id.

    Returns:
        Named tuple of NumPy arrays, the argument `automaton` of `translate_ids`.

    Raises:
        ValueError: If a phrase has no symbols.

    Examples:
        >>> translator = kt.open_model("phrases")
        >>> tokenizer = translator.tokenizer
        >>> spellings = [tuple(each) for each in tokenizer.piece_bytes()]
        >>> phrases = [kt.decoding.Phrase(tuple(b"Euro"))]
        >>> automaton = kt.decoding.forbidden_transitions(spellings, phrases)
        >>> ids = [*tokenizer.tokenize(["12 euros"])[0].numpy(), tokenizer.end_id]
        >>> source_ids = keras.ops.convert_to_tensor([ids])
        >>> sequences, scores = kt.decoding.translate_ids(
        ...     translator.model, source_ids, automaton=automaton
        ... )
        >>> "Euro" in tokenizer.detokenize(sequences[:, 0]).numpy()[0].decode()
        False
    """
    if any(not phrase.symbols for phrase in phrases):
        raise ValueError(
            f"Each phrase must have at least one symbol. Received: {phrases}."
        )
    return _Builder(_Symbols(phrases, boundaries), _TokenTrie(spellings)).build(end_id)


class _Symbols:
    """The automaton over symbols, whose states are sets of nodes of a trie.

    The trie has all phrases and boundaries. A state is the frozenset of the nodes in
    which one of them may go on, but for `ROOT`, which belongs to every state.
    """

    def __init__(self, phrases, boundaries):
        self.trie = [{}, {}, {}]  # for each node, the next node of each symbol
        self.depths = [0, 0, 0]
        self._ends = {}  # the nodes that the end of a phrase or boundary adds
        self.next_state = functools.cache(self._next_state)
        for phrase in phrases:
            start = AFTER_BOUNDARY if phrase.at_start else ROOT
            end = BEFORE_BOUNDARY if phrase.at_end else FORBIDDEN
            self._add_path(start, phrase.symbols, end)
        for boundary in boundaries:
            self._add_path(ROOT, boundary, AFTER_BOUNDARY)
            self._add_path(BEFORE_BOUNDARY, boundary, FORBIDDEN)

    def _add_path(self, node, symbols, end):
        for symbol in symbols:
            if symbol not in self.trie[node]:
                self.trie[node][symbol] = len(self.trie)
                self.trie.append({})
                self.depths.append(self.depths[node] + 1)
            node = self.trie[node][symbol]
        self._ends.setdefault(node, set()).add(end)

    def _next_state(self, state, symbol):
        """Returns the state after a symbol, or `FORBIDDEN`."""
        if state == FORBIDDEN:
            return FORBIDDEN
        found = set()
        for node in (ROOT, *state):
            target = self.trie[node].get(symbol)
            if target is not None:
                found.add(target)
                found |= self._ends.get(target, set())
        if FORBIDDEN in found:
            return FORBIDDEN
        return frozenset(node for node in found if self.trie[node])


class _TokenTrie:
    """The tokens by their spellings. Node 0 has those that spell nothing.

    Attributes:
        children: For each node, the node of each next symbol. A node comes before its
            children.
        tokens: For each node that is the end of a spelling, the tokens.
        order: int32 `[num_ids]`, the tokens sorted by spelling.
        below: For each node, the tokens whose spelling begins with it, as a slice of
            `order`.
    """

    def __init__(self, spellings):
        order = sorted(range(len(spellings)), key=spellings.__getitem__)
        self.children, self.tokens = [{}], {}
        begins, ends = [0], [len(order)]
        for place, token in enumerate(order):
            node = 0
            for symbol in spellings[token]:
                if symbol not in self.children[node]:
                    self.children[node][symbol] = len(self.children)
                    self.children.append({})
                    begins.append(place)
                    ends.append(place)
                node = self.children[node][symbol]
                ends[node] = place + 1
            self.tokens.setdefault(node, []).append(token)
        self.order = np.array(order, "int32")
        self.below = list(map(slice, begins, ends))


class _Builder:
    """Builds an `Automaton` of the states that tokens lead to.

    From a state, all tokens but a few lead to the same state as from its base, which is
    the state without the longest phrase in progress. So a state has the row, the mask
    and the edges of its base, and edges of its own. If these are too many, it gets
    another row or mask. States without a phrase in progress have their own ones.
    """

    def __init__(self, symbols, tokens):
        self._symbols, self._tokens = symbols, tokens
        self._numbers, self._queue = {}, []
        self._parts = {}  # of each state: the indices of its row and mask, its edges
        # Next states and allowed tokens, without repetitions, and the index of each.
        self._rows, self._masks, self._known = [], [], {}

    def build(self, end_id):
        """Returns the `Automaton`."""
        self._number(frozenset())
        # The queue grows while it is read.
        row_of, mask_of, edges = zip(*map(self._parts_of, self._queue), strict=True)
        pairs = list(zip(row_of, mask_of, strict=True))
        numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
        may_end = np.array([mask[end_id] for mask in self._masks])[[*mask_of]]
        may_end &= [each.get(end_id) != FORBIDDEN for each in edges]
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
            row_of,
            [numbers[pair] for pair in pairs],
            [0, *itertools.accumulate(map(len, edges))],
            [*itertools.chain(*edges), *padding],
            [*itertools.chain(*(each.values() for each in edges)), *padding],
        )
        row_of, mask_of, *columns = (np.array(each, "int32") for each in columns)
        rows = np.stack(self._rows)
        return Automaton(rows, row_of, allowed, mask_of, may_end, *columns)

    def _number(self, state):
        """Returns the number of a state, which is queued if it is new."""
        if state == FORBIDDEN:
            return FORBIDDEN
        if state not in self._numbers:
            self._numbers[state] = len(self._queue)
            self._queue.append(state)
        return self._numbers[state]

    def _parts_of(self, state):
        """Returns the indices of a state's row and mask, and its edges."""
        if state not in self._parts:
            if state <= {AFTER_BOUNDARY, BEFORE_BOUNDARY}:
                self._parts[state] = self._all_next_states(state)
            else:
                longest = max(state, key=self._symbols.depths.__getitem__)
                self._parts[state] = self._change_base(state, state - {longest})
        return self._parts[state]

    def _all_next_states(self, state):
        """Adds a row and a mask with the states after all tokens."""
        after = [state] * len(self._tokens.children)
        row = np.full(len(self._tokens.order), UNCHANGED, "int32")
        for node, following in enumerate(self._tokens.children):
            for symbol, child in following.items():
                after[child] = self._symbols.next_state(after[node], symbol)
            if node and node in self._tokens.tokens:
                row[self._tokens.tokens[node]] = self._number(after[node])
        self._rows.append(np.where(row == FORBIDDEN, ROOT, row))
        self._masks.append(row != FORBIDDEN)
        return len(self._rows) - 1, len(self._masks) - 1, {}

    def _change_base(self, state, base):
        """Changes the parts of the base to those of the state."""
        row, mask, edges = self._parts_of(base)
        own, banned = self._own_edges(state, base)
        edges = edges | own
        slices = [self._tokens.below[node] for node in banned]
        if len(edges) + sum(each.stop - each.start for each in slices) <= MAX_EDGES:
            for each in slices:
                edges |= dict.fromkeys(self._tokens.order[each].tolist(), FORBIDDEN)
            return row, mask, edges
        forbidden = frozenset(k for k, target in edges.items() if target == FORBIDDEN)
        edges = {k: target for k, target in edges.items() if target != FORBIDDEN}

        def new_mask():
            new = self._masks[mask].copy()
            new[[*forbidden]] = False
            for each in slices:
                new[self._tokens.order[each]] = False
            return new

        def new_row():
            new = self._rows[row].copy()
            new[[*edges]] = [*edges.values()]
            return new

        # Many states forbid the same tokens, such as all that begin with a letter.
        mask = self._shared(self._masks, (mask, forbidden, *banned), new_mask)
        if len(edges) > MAX_EDGES:
            key = row, frozenset(edges.items())
            row, edges = self._shared(self._rows, key, new_row), {}
        return row, mask, edges

    def _shared(self, arrays, key, create):
        """Returns the index of the array of a key, which is created if it is new."""
        if key not in self._known:
            self._known[key] = len(arrays)
            arrays.append(create())
        return self._known[key]

    def _own_edges(self, state, base):
        """Returns the next states of tokens that differ from those of the base.

        Also returns the nodes of tokens that only the state forbids, in order.
        """
        next_state, trie = self._symbols.next_state, self._symbols.trie
        found, banned, stack = {}, [], [(state, base, 0)]
        while stack:
            one, other, node = stack.pop()
            following = self._tokens.children[node]
            for symbol in set().union(*(trie[each] for each in one - other)):
                if (child := following.get(symbol)) is None:
                    continue
                target, usual = next_state(one, symbol), next_state(other, symbol)
                if target == usual or usual == FORBIDDEN:
                    continue
                if target == FORBIDDEN:
                    banned.append(child)
                    continue
                if child in self._tokens.tokens:
                    tokens = self._tokens.tokens[child]
                    found |= dict.fromkeys(tokens, self._number(target))
                stack.append((target, usual, child))
        return found, sorted(banned)


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


# Word separators of ASCII, Latin-1, and General Punctuation, in UTF-8.
TEXT_BOUNDARIES = tuple(
    tuple(chr(code).encode())
    for code in (*range(0x80), *range(0xA0, 0xC0), *range(0x2000, 0x2070))
    if not chr(code).isalnum()
)


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
