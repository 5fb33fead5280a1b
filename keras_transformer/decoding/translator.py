"""Text in, translations out: tokenizers, batches and the compiled search together."""

import logging
import random

import keras
import numpy as np

from keras_transformer.decoding.alignment import alignable
from keras_transformer.decoding.alignment import aligned_words
from keras_transformer.decoding.alignment import alignment_scores
from keras_transformer.decoding.alignment import surfaces
from keras_transformer.decoding.alignment import words_of
from keras_transformer.decoding.batches import batches
from keras_transformer.decoding.batches import check_fits
from keras_transformer.decoding.batches import check_pairs
from keras_transformer.decoding.batches import prefix_rows
from keras_transformer.decoding.batches import rectangle
from keras_transformer.decoding.batches import tokenized
from keras_transformer.decoding.compiled import compiled
from keras_transformer.decoding.compiled import side_by_side
from keras_transformer.decoding.forbidden import forbidden_texts
from keras_transformer.decoding.scoring import score_ids
from keras_transformer.decoding.search import sample_ids
from keras_transformer.decoding.search import translate_ids
from keras_transformer.decoding.segments import Translation
from keras_transformer.decoding.segments import join_pieces
from keras_transformer.decoding.segments import split_text

# So many logits (128 MiB of float32) are scored at once at most.
MAX_LOGITS = 2**25


class Translator:
    """Translates text with a `Transformer` (paper section 6.1).

    Lines are sorted by length and searched in batches of about `batch_tokens` source
    tokens; results come back in the order of the input. A blank line gives an empty
    translation. A line of more than `max_source_length` sub-words is translated in
    pieces, split at a sentence's end or white space and joined by a space, with a
    warning that names the line.

    Args:
        model: `Transformer`, or `Ensemble`.
        tokenizer: of the source.
        target_tokenizer: None where both sides share one.
        beam_size: int, 1 for greedy search.
        length_penalty, length_penalty_kind, patience: as `beam_search` has them.
        extra_length: int, tokens that a translation may have more than its source.
        max_source_length: int, the longest source row, its end id counted.
        batch_tokens: int, source positions of a batch, padding included.
        warn: function that is called with each warning (str). None: they go to the
            logger "keras_transformer".
        forbidden: list of str, phrases that no translation holds; whole words, or
            with `*` at a phrase's end what it begins.
        parallel_batches: int, batches that are searched or scored at a time, each in a
            thread; for CPUs, see `training.use_threads`. On TensorFlow alone.

    Raises:
        ValueError: a tokenizer with more ids than the model or an end id that it never
            puts out, sizes out of range, or a forbidden phrase without a word.
    """

    def __init__(
        self,
        model,
        tokenizer,
        target_tokenizer=None,
        beam_size=4,
        length_penalty=0.6,
        length_penalty_kind="gnmt",
        extra_length=50,
        max_source_length=256,
        batch_tokens=4096,
        warn=None,
        forbidden=(),
        parallel_batches=1,
        patience=None,
    ):
        if max_source_length < 2:
            raise ValueError(
                "`max_source_length` must be at least 2, a sub-word and the end id. "
                f"Received: max_source_length={max_source_length}."
            )
        if parallel_batches < 1:
            raise ValueError(
                "`parallel_batches` must be at least 1. "
                f"Received: parallel_batches={parallel_batches}."
            )
        self.model = model
        self.tokenizer = tokenizer
        self.target_tokenizer = target_tokenizer or tokenizer
        for each in (self.tokenizer, self.target_tokenizer):
            check_fits(model, each)
        self.beam_size = beam_size
        self._beam_options = {
            "length_penalty": length_penalty,
            "length_penalty_kind": length_penalty_kind,
            "patience": patience,
        }
        self.extra_length = extra_length
        if model.positions == "learned":
            max_source_length = min(max_source_length, model.max_length)
        self.max_source_length = max_source_length
        self.batch_tokens = batch_tokens
        self.parallel_batches = parallel_batches
        self.warn = warn or logging.getLogger("keras_transformer").warning
        self._next_states = None
        if forbidden:
            self._next_states = forbidden_texts(self.target_tokenizer, forbidden)
        # Compiled functions by their options: each compiles once, for all shapes.
        self._compiled = {}

    def translate(self, lines, first_line=1):
        """The best translation of each line.

        Args:
            lines: list of str.
            first_line: the number of the first of them, for warnings.

        Returns:
            List of str, one for each line, in order.
        """
        return [best.text for best, *_ in self.translate_n_best(lines, 1, first_line)]

    def translate_n_best(self, lines, n_best=None, first_line=1, prefixes=None):
        """The best translations of each line, with scores.

        Args:
            lines: list of str.
            n_best: int, at most `beam_size` (the default).
            first_line: the number of the first line, for warnings.
            prefixes: list of str, what the translation of each line begins with,
                white space at its ends apart. None: nothing is given.

        Returns:
            For each line a list of 1 to `n_best` `Translation`s, best first (fewer
            than `n_best` where the search found no more). The i-th best of a line
            in pieces joins their i-th best, and its score is the sum of theirs.
        """
        n_best = self.beam_size if n_best is None else n_best
        search = self._compile(
            ("translate", n_best, prefixes is not None),
            lambda source_ids, prefix_ids=None: translate_ids(
                self.model,
                source_ids,
                prefix_ids=prefix_ids,
                beam_size=self.beam_size,
                n_best=n_best,
                **self._beam_options,
                **self._search_options(),
            ),
            num_inputs=1 if prefixes is None else 2,
        )
        return self._run(search, lines, first_line, prefixes, self.parallel_batches)

    def sample(
        self,
        lines,
        num_samples=1,
        temperature=1.0,
        top_k=None,
        top_p=None,
        seed=None,
        first_line=1,
        prefixes=None,
    ):
        """Translations drawn at random.

        Args:
            lines: list of str.
            num_samples: int, for each line.
            temperature: float above 0.
            top_k: int or None, draw from the k most probable tokens only.
            top_p: float in (0, 1] or None, draw from the nucleus only.
            seed: int; the same lines and seed give the same samples. None: a new one.
            first_line, prefixes: as `translate_n_best`.

        Returns:
            For each line a list of `num_samples` `Translation`s in the order drawn;
            scores are log-probabilities.
        """
        options = {
            "num_samples": num_samples,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
        }
        key = ("sample", *options.values(), prefixes is not None)
        generator = keras.random.SeedGenerator(0)
        search = self._compile(
            key,
            lambda source_ids, prefix_ids=None: sample_ids(
                self.model,
                source_ids,
                prefix_ids=prefix_ids,
                seed=generator,
                **options,
                **self._search_options(),
            ),
            num_inputs=1 if prefixes is None else 2,
        )
        # The function that was compiled first keeps the generator it came with.
        generator = self._compiled.setdefault((*key, "generator"), generator)
        seed = random.getrandbits(31) if seed is None else seed
        generator.state.assign(np.array([seed % 2**31, 0], generator.state.dtype))
        return self._run(search, lines, first_line, prefixes)

    def score(self, sources, targets):
        """Log-probabilities of given translations, their end ids included.

        Args:
            sources: list of str.
            targets: list of str, as many.

        Returns:
            float32 array, one natural logarithm for each pair, in order.

        Raises:
            ValueError: the lists' lengths differ.
        """
        check_pairs(sources, targets)
        tokenizer = self.target_tokenizer
        source_rows = [
            [*ids, self.tokenizer.end_id] for ids in tokenized(self.tokenizer, sources)
        ]
        label_rows = [[*ids, tokenizer.end_id] for ids in tokenized(tokenizer, targets)]
        score = self._compile(
            ("score",), lambda *ids: score_ids(self.model, *ids), num_inputs=3
        )
        lengths = list(map(max, map(len, source_rows), map(len, label_rows)))
        limit = min(self.batch_tokens, MAX_LOGITS // self.model.num_outputs)
        scores = np.zeros(len(sources), "float32")

        def score_batch(batch):
            labels = [label_rows[i] for i in batch]
            return score(
                rectangle([source_rows[i] for i in batch]),
                rectangle([[tokenizer.start_id, *row[:-1]] for row in labels]),
                rectangle(labels),
            )

        for batch, found in self._each(score_batch, lengths, limit):
            scores[batch] = found
        return scores

    def align(self, sources, targets, line_numbers=None):
        """Which word of the source each word of a translation comes from.

        Read from the decoder's attention over the source; see `decoding.alignment`.
        Words are what ASCII white space separates.

        Args:
            sources: list of str.
            targets: list of str, their translations.
            line_numbers: list of int, the number of each pair, for warnings; those of
                an n-best list share one. None: they count from 1.

        Returns:
            For each pair a list of (source word, target word), both from 0, one for
            each word of the target, in its order. It is empty if either side has no
            word, or, with a warning, if the source is longer than the model reads at
            once (`max_source_length`), or the target than any translation of such.

        Raises:
            ValueError: the lists' lengths differ.
        """
        check_pairs(sources, targets)
        source_ids = tokenized(self.tokenizer, sources)
        target_ids = tokenized(self.target_tokenizer, targets)
        source_words = map(words_of, surfaces(self.tokenizer, source_ids))
        target_words = map(words_of, surfaces(self.target_tokenizer, target_ids))
        words = list(zip(source_words, target_words, strict=True))
        numbers = line_numbers or range(1, len(sources) + 1)
        pairs = list(zip(source_ids, target_ids, numbers, strict=True))
        rows = alignable(pairs, self._alignable_lengths(), self.warn)
        lengths = [max(len(source_ids[i]), len(target_ids[i])) + 1 for i in rows]
        align = self._compile(
            ("align",), lambda *ids: alignment_scores(self.model, *ids), num_inputs=2
        )
        aligned = [[] for _ in sources]

        def align_batch(batch):
            batch = [rows[i] for i in batch]
            return align(
                rectangle([[*source_ids[i], self.tokenizer.end_id] for i in batch]),
                rectangle(
                    [[self.target_tokenizer.start_id, *target_ids[i]] for i in batch]
                ),
            )

        for batch, scores in self._each(align_batch, lengths, self.batch_tokens):
            for i, row in zip([rows[i] for i in batch], scores, strict=True):
                # What predicts or looks at the end of the sentence is in no word.
                row = row[: len(target_ids[i]), : len(source_ids[i])]
                aligned[i] = aligned_words(row, *words[i])
        return aligned

    def _each(self, function, lengths, limit):
        """What a function makes of each batch of rows of such lengths."""
        return side_by_side(function, batches(lengths, limit), self.parallel_batches)

    def _alignable_lengths(self):
        """The most ids of a source and of a target that are aligned."""
        # A stray byte that the search made is three in the text (U+FFFD).
        longest_target = 3 * (self.max_source_length + self.extra_length)
        if self.model.positions == "learned":
            longest_target = min(longest_target, self.model.max_length)
        return self.max_source_length, longest_target

    def _search_options(self):
        tokenizer = self.target_tokenizer
        return {
            "extra_length": self.extra_length,
            "vocabulary_size": tokenizer.vocabulary_size,
            "start_id": tokenizer.start_id,
            "end_id": tokenizer.end_id,
            "pad_id": tokenizer.pad_id,
            "forbidden_ids": (tokenizer.unknown_id,),
            "next_states": self._next_states,
        }

    def _compile(self, key, function, num_inputs=1):
        if key not in self._compiled:
            self._compiled[key] = compiled(function, num_inputs)
        return self._compiled[key]

    def _run(self, search, lines, first_line, prefixes=None, at_once=1):
        """Translations [line][rank] out of a compiled search."""
        pieces = self._pieces(lines, first_line)
        if prefixes is not None:
            check_pairs(lines, prefixes, "prefixes")
            texts = [prefix.strip() for prefix in prefixes]
            begins = prefix_rows(self.target_tokenizer, texts, self.model)
            # Of a line in pieces, the first piece begins with the line's prefix.
            begins = [
                begin if place == 0 else []
                for begin, line in zip(begins, pieces, strict=True)
                for place in range(len(line))
            ]
        rows = [(i, row) for i, line in enumerate(pieces) for row in line]
        found = [None] * len(rows)

        def search_batch(batch):
            inputs = [rectangle([rows[i][1] for i in batch])]
            if prefixes is not None:
                inputs.append(rectangle([begins[i] for i in batch]))
            return self._texts(*search(*inputs))

        found_batches = batches([len(row) for _, row in rows], self.batch_tokens)
        for batch, texts in side_by_side(search_batch, found_batches, at_once):
            for i, ranked in zip(batch, texts, strict=True):
                found[i] = ranked
        of_line = [[] for _ in lines]
        for (i, _), ranked in zip(rows, found, strict=True):
            of_line[i].append(ranked)
        return [
            join_pieces(ranked) if ranked else [Translation("", 0.0)]
            for ranked in of_line
        ]

    def _pieces(self, lines, first_line):
        """Rows of source ids for each line: none for a blank one, one as a rule."""
        end_id = self.tokenizer.end_id
        longest = self.max_source_length - 1
        pieces = []
        for line, ids in zip(lines, tokenized(self.tokenizer, lines), strict=True):
            number = first_line + len(pieces)
            # ASCII white space, as TensorFlow strips it in the export's graph.
            if not line.strip(" \t\n\v\f\r"):
                pieces.append([])
                continue
            parts = [ids]
            if len(ids) > longest:
                texts = split_text(line, longest, self._lengths)
                parts = tokenized(self.tokenizer, texts)
                self.warn(
                    f"line {number}: {len(ids)} sub-words are more than "
                    f"max_source_length={self.max_source_length} allows; translated "
                    f"in {len(texts)} pieces"
                )
            pieces.append([[*part[:longest], end_id] for part in parts])
        return pieces

    def _lengths(self, texts):
        return [len(ids) for ids in tokenized(self.tokenizer, texts)]

    def _texts(self, sequences, scores):
        """Translations [row][rank] of [batch, n, length] ids and [batch, n] scores."""
        rows = np.reshape(sequences, (-1, sequences.shape[2]))
        texts = self.target_tokenizer.detokenize(rows).numpy()
        texts = np.reshape(texts, sequences.shape[:2])
        for row, row_scores in zip(texts, scores, strict=True):
            ranked = [
                Translation(text.decode("utf-8", "replace"), float(score))
                for text, score in zip(row, row_scores, strict=True)
            ]
            # Empty slots come last; a model that gave NaN still gets a line.
            yield [each for each in ranked if each.score > -np.inf] or ranked[:1]
