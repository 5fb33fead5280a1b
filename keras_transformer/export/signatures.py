"""Functions of an export that translate, score, encode and return attention."""

import tensorflow as tf

from keras_transformer.decoding.alignment import (
    continues_character,
    mean_cross_attention,
)
from keras_transformer.decoding.batches import WHITESPACE, select_target, word_edges
from keras_transformer.decoding.incremental import IncrementalDecoder, arrange_weights
from keras_transformer.decoding.options import SpecialIds
from keras_transformer.decoding.required import ALTERNATIVE, PHRASE, THEN
from keras_transformer.decoding.scoring import sequence_log_probs
from keras_transformer.decoding.search import cut_at_end, translate_ids
from keras_transformer.decoding.text import (
    EMPTY_SCORE,
    TextOptions,
    compute_unit_attention,
    join_characters,
    join_segments,
    merge_equal_texts,
    segment,
)
from keras_transformer.decoding.translator import MAX_LOGITS
from keras_transformer.decoding.warnings import mean_log_probs
from keras_transformer.export.packed_weights import PackedWeights
from keras_transformer.export.searches import (
    ROWS,
    SEARCH_INPUTS,
    dispatch_search,
    graph_function,
    shared_encoder,
)

# A row of ids can spell at most N bytes. Before tokenization, texts are cut after
# `_MARGIN` x N bytes.
_MARGIN = 4
# Maximum size of a text, as a multiple of the maximum size of a segment.
_MAX_TEXT_FACTOR = 16
# Maximum length of a row of required phrases. The memory of a search grows with its
# square.
_MAX_PLACES = 64


class Signatures:
    """The signatures of an export (see docs/reference/signatures.md).

    The arguments are those of `export_saved_model`. N-best lists have `beam_size`
    entries.
    """

    def __init__(
        self,
        model,
        tokenizer,
        search,
        max_source_length=256,
        max_batch_size=1024,
        parallel_parts=1,
        jit_compile=False,
        constraints=False,
    ):
        self._model = model
        self._search = search
        self._has_constraints = constraints
        self._tokenizer = tokenizer
        self._target_tokenizer = select_target(tokenizer)
        self._first_ids = getattr(tokenizer, "first_ids", None)
        self._max_batch_size = max_batch_size
        self._beam_size = search.beam_size
        self.text_options = TextOptions.of(tokenizer, search)
        # Different ids can spell the same text. Such results are merged, so the search
        # returns twice as many as needed.
        self._num_results = 1 if search.beam_size == 1 else 2 * search.beam_size
        self.max_source_length = max_source_length
        self.max_target_length = max_source_length + search.extra_length
        if (limit := model.position_limit) is not None:
            self.max_source_length = min(self.max_source_length, limit)
            self.max_target_length = min(self.max_target_length, limit)
        self._surfaces = _Surfaces(tokenizer)
        self._target_surfaces = self._surfaces
        if self._target_tokenizer is not tokenizer:
            self._target_surfaces = _Surfaces(self._target_tokenizer)
        longest = max(self._surfaces.longest, self._target_surfaces.longest)
        self._max_bytes = _MARGIN * longest * self.max_target_length
        self.kernels = PackedWeights(model, jit_compile)
        self._encode = shared_encoder(model)
        # Signatures share these graphs, because large graphs take time to load.
        texts, number = tf.TensorSpec([None], tf.string), tf.TensorSpec([], tf.int32)
        self._pairs = graph_function(self._tokenize_pairs, texts, texts)
        self._decode = graph_function(self._decode_rows, ROWS, ROWS)
        self._search_ids = self._build_search(search, parallel_parts, jit_compile)
        self._tokenize = graph_function(
            lambda texts: tokenizer.tokenize(_cut_texts(texts, self._max_bytes)), texts
        )
        self._translate = graph_function(self._translate_texts, texts, number, number)

    def _build_search(self, search_settings, parallel_parts, jit_compile):
        """Builds one search that serves both the best translation and n-best lists.

        `n_best` is an input of the search, because a search for one translation can end
        sooner. A second search function would double the graph that a server keeps in
        memory.
        """
        kernels = self.kernels

        # `dispatch_search` passes the values of `shared_weights` after `n_best`.
        def run(source_ids, n_best, weights=None, drop_finished="auto"):
            weights = weights or arrange_weights(self._model)
            first_ids = None
            if self._first_ids is not None:
                # The first token of the translation comes before the source.
                first_ids, source_ids = source_ids[:, 0], source_ids[:, 1:]
            return translate_ids(
                self._model,
                source_ids,
                search_settings,
                SpecialIds.of(self._target_tokenizer, self._tokenizer),
                n_best,
                vocabulary_size=self._target_tokenizer.vocabulary_size,
                drop_finished=drop_finished,
                decoder=IncrementalDecoder(self._model, weights, self._encode),
                num_results=self._num_results,
                is_checked=True,
                first_ids=first_ids,
            )

        def run_row(source_ids, n_best):
            # XLA needs static shapes, so finished sentences stay in the batch.
            return run(
                source_ids, n_best, weights=kernels.packed(), drop_finished=False
            )

        def shared_weights():
            """Returns the weights to share between the parts of a batch, if packed."""
            return (kernels.unpacked(),) if kernels.replaces_layers else ()

        specs = tf.nest.map_structure(tf.type_spec_from_value, shared_weights())
        return dispatch_search(
            graph_function(
                run,
                *(*SEARCH_INPUTS, *specs),
                experimental_attributes={"_noinline": True},
            ),
            parallel_parts,
            shared_weights,
            run_row if jit_compile else None,
            search_settings.extra_length,
            self.max_source_length,
            self._tokenizer.pad_id,
        )

    def functions(self):
        """Yields the name, function and input specification of each signature."""
        texts = tf.TensorSpec([None], tf.string, name="inputs")
        targets = tf.TensorSpec([None], tf.string, name="targets")
        rows = tf.TensorSpec([None, None], tf.int32, name="source_ids")
        yield "serving_default", self.translate, [texts]
        yield "translate_n_best", self.translate_n_best, [texts]
        yield "translate_ids", self.translate_ids, [rows]
        yield "score", self.score, [texts, targets]
        yield "encode", self.encode, [rows]
        yield "attend", self.attend, [texts, targets]
        if self._has_constraints:
            names = "inputs", "prefixes", "required"
            specs = [tf.TensorSpec([None], tf.string, name=name) for name in names]
            yield "translate_constrained", self.translate_constrained, specs

    def translate(self, inputs):
        found = self._translate(self._check_batch_size(inputs), 1, 1)
        return {
            "translations": found["translations"][:, 0],
            "scores": found["scores"][:, 0],
            "truncated": found["truncated"],
            "mean_log_probs": found["mean_log_probs"],
        }

    def translate_constrained(self, inputs, prefixes, required):
        source_ids, prefix_ids, _, truncated = self._pairs(inputs, prefixes)
        with tf.control_dependencies([self._check_paired(inputs, required)]):
            required_ids, is_lost = self._required_rows(required)
        kernels = self.kernels
        weights = kernels.unpacked() if kernels.replaces_layers else None
        weights = weights or arrange_weights(self._model)
        sequences, scores = translate_ids(
            self._model,
            source_ids,
            self._search,
            SpecialIds.of(self._target_tokenizer, self._tokenizer),
            # The first column has the start id.
            prefix_ids=prefix_ids[:, 1:],
            vocabulary_size=self._target_tokenizer.vocabulary_size,
            decoder=IncrementalDecoder(self._model, weights, self._encode),
            is_checked=True,
            required_ids=required_ids,
            word_edges=word_edges(self._target_tokenizer),
            first_ids=None if self._first_ids is None else prefix_ids[:, 1],
        )
        is_end = sequences[:, 0] == self._target_tokenizer.end_id
        has_end = tf.reduce_any(is_end, 1) | (scores[:, 0] == 0)
        return {
            "translations": self._target_tokenizer.detokenize(sequences[:, 0]),
            "scores": scores[:, 0],
            "truncated": truncated | is_lost | ~has_end,
        }

    def _required_rows(self, required):
        """Returns the rows of `required_row` for texts of a phrase per line.

        A phrase is a list of alternatives between bars. Also returns whether a phrase
        of each text is left out, because the search cannot generate it or because the
        row is full, bool `[batch]`.
        """
        tokenizer, size = self._target_tokenizer, tf.size(required, tf.int64)
        lines = tf.strings.split(_cut_texts(required, self._max_bytes), "\n")
        phrases, text_of = lines.flat_values, lines.value_rowids()
        is_blank = tf.strings.regex_full_match(phrases, f"[{WHITESPACE}|]*")
        phrases, text_of = (
            tf.boolean_mask(each, ~is_blank) for each in (phrases, text_of)
        )
        num_phrases = tf.size(phrases, tf.int64)
        alternatives = tf.strings.split(phrases, "|")
        phrase_of = alternatives.value_rowids()
        outer = f"^[{WHITESPACE}]+|[{WHITESPACE}]+$"
        texts = tf.strings.regex_replace(alternatives.flat_values, outer, "")
        ids = tokenizer.tokenize(texts)[:, int(self._first_ids is not None) :]
        excluded = list(SpecialIds.of(tokenizer).excluded_ids())
        is_excluded = tf.reduce_any(ids.flat_values[:, None] == excluded, axis=1)
        is_excluded |= ids.flat_values >= self._model.num_outputs
        is_usable = ids.row_lengths() > 0
        is_usable &= ~tf.reduce_any(ids.with_flat_values(is_excluded), axis=1)
        sizes = tf.where(is_usable, ids.row_lengths() + 1, 0)
        sizes = tf.math.unsorted_segment_sum(sizes, phrase_of, num_phrases)
        ends = tf.cumsum(sizes)
        before = tf.math.unsorted_segment_min(ends - sizes, text_of, size)
        fits = ends - tf.gather(before, text_of) <= _MAX_PLACES
        is_lost = tf.cast((sizes == 0) | ~fits, tf.int32)
        is_lost = tf.math.unsorted_segment_max(is_lost, text_of, size) > 0
        # A phrase that is given twice must occur twice.
        repeats = (phrases[1:] == phrases[:-1]) & (text_of[1:] == text_of[:-1])
        marks = tf.where(tf.concat([repeats & fits[1:], [False]], 0), THEN, PHRASE)
        is_usable &= tf.gather(fits, phrase_of)
        ids = tf.ragged.boolean_mask(ids, is_usable)
        phrase_of = tf.boolean_mask(phrase_of, is_usable)
        is_last = phrase_of != tf.concat([phrase_of[1:], [-1]], 0)
        marks = tf.where(is_last, tf.gather(marks, phrase_of), ALTERNATIVE)
        rows = tf.concat([ids, marks[:, None]], axis=1)
        text_of = tf.gather(tf.gather(text_of, phrase_of), rows.value_rowids())
        rows = tf.RaggedTensor.from_value_rowids(
            rows.flat_values, text_of, size, validate=False
        )
        padding = tf.fill([tf.size(required), 1], tokenizer.pad_id)
        rows = tf.concat([rows.to_tensor(tokenizer.pad_id), padding], axis=1)
        return rows, is_lost | (tf.strings.length(required) > self._max_bytes)

    def translate_n_best(self, inputs):
        inputs = self._check_batch_size(inputs)
        found = self._translate(inputs, self._beam_size, self._num_results)
        for name in ("translations", "scores"):
            found[name].set_shape([None, self._beam_size])
        return found

    def _segments(self, texts):
        """Divides texts, string `[batch]`, into `Segments`."""
        limit = _MAX_TEXT_FACTOR * self._max_bytes
        found = segment(
            self._tokenize,
            _cut_texts(texts, limit),
            self.max_source_length - 1,
            getattr(self._tokenizer, "split_language_prefix", None),
            self.text_options,
            self._first_ids,
        )
        is_cut = tf.strings.length(texts) > limit
        return found._replace(truncated=found.truncated | is_cut)

    def _translate_texts(self, texts, n_best, num_places):
        """Translates texts, string `[batch]`, segment by segment.

        `n_best` and `num_places` are int32 scalars, the number of translations per text
        and of hypotheses per segment. The latter may be greater, because hypotheses
        with the same text are merged. The outputs are those of the signature
        `translate_n_best`.
        """
        segments = self._segments(texts)
        found = self._translate_segments(segments, n_best, num_places)
        *found, is_cut, means = found
        is_cut = tf.math.unsorted_segment_max(
            tf.cast(is_cut, tf.int32), segments.text_index, tf.size(texts)
        )
        found = join_segments(segments, *found)
        texts, scores, counts = merge_equal_texts(*found[:2], n_best)
        return {
            "translations": texts,
            "scores": scores,
            "counts": counts,
            "truncated": segments.truncated | (is_cut > 0),
            "mean_log_probs": tf.math.unsorted_segment_min(
                means, segments.text_index, tf.size(segments.truncated)
            ),
        }

    def _translate_segments(self, segments, n_best, num_places):
        """Translates segments. A blank segment has one empty translation.

        Returns translations and their scores, string and float32 `[segments,
        num_places]`, the number found, int32 `[segments]`, whether they have no end id,
        bool `[segments]`, and the mean log-probability per subword of the best one,
        float32 `[segments]`.
        """
        ids = segments.ids
        places = tf.where(ids.row_lengths() > 0)
        ends = tf.fill([tf.size(places), 1], self._tokenizer.end_id)
        rows = tf.concat([tf.gather(ids, places[:, 0]), ends], axis=1)
        if segments.first_ids is not None:
            first = tf.gather(segments.first_ids, places)
            rows = tf.concat([first, rows], axis=1)
        num_rows = tf.size(places)

        def search_some(start, texts, scores, is_cut, means):
            chosen = rows[start : start + self._max_batch_size]
            sequences, new_scores = self._search_ids(
                chosen.to_tensor(self._tokenizer.pad_id), n_best
            )
            sequences = sequences[:, :num_places]
            new_scores = new_scores[:, :num_places]
            length = tf.shape(sequences)[2]
            new_means = mean_log_probs(
                *(sequences, new_scores, self._search, self._target_tokenizer.pad_id),
                int(segments.first_ids is not None),  # a language
            )
            has_end = tf.reduce_any(
                sequences[:, 0] == self._target_tokenizer.end_id, axis=1
            )
            written = self._target_tokenizer.detokenize(
                tf.reshape(sequences, [-1, length])
            )
            written = tf.reshape(written, [-1, num_places])
            return (
                start + self._max_batch_size,
                tf.concat([texts, written], axis=0),
                tf.concat([scores, new_scores], axis=0),
                tf.concat([is_cut, ~has_end], axis=0),
                tf.concat([means, new_means], axis=0),
            )

        lists, row = tf.TensorShape([None, None]), tf.TensorShape([None])
        none = tf.zeros([0, num_places])
        _, texts, scores, is_cut, means = tf.while_loop(
            lambda start, *_: start < num_rows,
            search_some,
            (0, tf.fill([0, num_places], ""), none, tf.zeros([0], bool), tf.zeros([0])),
            shape_invariants=(tf.TensorShape([]), lists, lists, row, row),
            parallel_iterations=1,
        )
        # Unused places come last. The first place is used even if nothing was found.
        is_found = tf.concat(
            [tf.ones_like(scores[:, :1], bool), scores[:, 1:] > EMPTY_SCORE], axis=1
        )
        counts = tf.reduce_sum(tf.cast(is_found, tf.int32), axis=1)
        size = tf.cast(ids.nrows(), tf.int32)
        empty = tf.fill([size, num_places], "")
        return (
            tf.tensor_scatter_nd_update(empty, places, texts),
            tf.tensor_scatter_nd_update(tf.zeros([size, num_places]), places, scores),
            tf.tensor_scatter_nd_update(tf.ones([size], tf.int32), places, counts),
            tf.tensor_scatter_nd_update(tf.zeros([size], bool), places, is_cut),
            tf.tensor_scatter_nd_update(tf.zeros([size]), places, means),
        )

    def translate_ids(self, source_ids):
        source_ids = self._check_and_truncate(source_ids)
        if self._first_ids is not None:
            first = self._first_ids(tf.fill([tf.shape(source_ids)[0]], ""))
            source_ids = tf.concat([first[:, None], source_ids], axis=1)
        sequences, scores = self._search_ids(source_ids, 1)
        return {"target_ids": sequences[:, 0], "scores": scores[:, 0]}

    def encode(self, source_ids):
        output = self._encode(self._check_and_truncate(source_ids))
        return {"encoder_output": tf.cast(output, tf.float32)}

    def score(self, inputs, targets):
        source_ids, target_ids, labels, truncated = self._pairs(inputs, targets)
        ids = SpecialIds.of(self._target_tokenizer)
        if self._first_ids is not None:  # a first token is given
            labels = tf.concat(
                [tf.fill([tf.shape(labels)[0], 1], ids.pad), labels[:, 1:]], 1
            )
        batch, length = tf.unstack(tf.shape(labels))
        # Number of rows that are scored at a time, so that the logits fit in memory.
        num_rows = MAX_LOGITS // self._model.num_outputs // tf.maximum(length, 1)
        num_rows = tf.maximum(num_rows, 1)

        def score_rows(start, log_probs):
            rows = slice(start, start + num_rows)
            decoder_output, _ = self._decode(source_ids[rows], target_ids[rows])
            logits = self._model.token_embedding(decoder_output, reverse=True)
            found = sequence_log_probs(logits, labels[rows], ids.pad, ids.unknown)
            return start + num_rows, tf.concat([log_probs, found], axis=0)

        _, log_probs = tf.while_loop(
            lambda start, _: start < batch,
            score_rows,
            (0, tf.zeros([0])),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
            parallel_iterations=1,
        )
        is_token = tf.cast(labels != ids.pad, tf.int32)
        return {
            "log_probs": log_probs,
            "num_tokens": tf.reduce_sum(is_token, axis=1),
            "truncated": truncated,
        }

    def attend(self, inputs, targets):
        source_ids, target_ids, labels, truncated = self._pairs(inputs, targets)
        _, scores = self._decode(source_ids, target_ids)
        source_pieces, source_membership = self._surfaces.units(source_ids)
        target_pieces, target_membership = self._target_surfaces.units(labels)
        return {
            "source_pieces": source_pieces,
            "target_pieces": target_pieces,
            "attention": compute_unit_attention(
                scores, target_membership, source_membership
            ),
            "truncated": truncated,
        }

    def _decode_rows(self, source_ids, target_ids):
        """Decodes target prefixes, and averages the cross-attention.

        Takes int32 `[batch, source_length]` and `[batch, target_length]`. Returns the
        decoder's output `[batch, target_length, d_model]`, and the mean of the
        attention scores, float32 `[batch, target_length, source_length]`. A signature
        that uses only one of them does not compute the other, because TensorFlow
        removes unused operations.
        """
        with self.kernels.replace_kernels():
            output, scores = self._model.decoder(
                self._model.embed_target(target_ids, training=False),
                self._encode(source_ids),
                source_mask=source_ids != self._model.pad_id,
                return_attention_scores=True,
                training=False,
            )
        return output, mean_cross_attention(scores)

    def _tokenize_pairs(self, inputs, targets):
        """Tokenizes pairs of texts and truncates each side to its maximum length.

        Returns source ids, target ids that begin with the start id, and labels that end
        with the end id, all int32 `[batch, length]`. Also whether a side was truncated,
        bool `[batch]`.
        """
        paired = self._check_paired(inputs, targets)
        inputs, targets = map(self._check_batch_size, (inputs, targets))
        with tf.control_dependencies([paired]):
            # A tokenizer may collapse text, so the rest of a text that is cut here may
            # have few subwords.
            truncated = tf.strings.length(inputs) > self._max_bytes
            truncated |= tf.strings.length(targets) > self._max_bytes
            inputs, targets = (
                _cut_texts(texts, self._max_bytes) for texts in (inputs, targets)
            )
        source, target = self._tokenizer, self._target_tokenizer
        ids, label_ids = source.tokenize(inputs), target.tokenize(targets)
        if self._first_ids is not None:
            first = self._first_ids(inputs)[:, None]
            label_ids = tf.concat([first, label_ids[:, 1:]], axis=1)
        limit, label_limit = self.max_source_length - 1, self.max_target_length - 1
        truncated |= ids.row_lengths() > limit
        truncated |= label_ids.row_lengths() > label_limit
        ids, label_ids = ids[:, :limit], label_ids[:, :label_limit]
        ones = tf.ones([tf.size(inputs), 1], tf.int32)
        source_ids = tf.concat([ids, ones * source.end_id], axis=1)
        target_ids = tf.concat([ones * target.start_id, label_ids], axis=1)
        labels = tf.concat([label_ids, ones * target.end_id], axis=1)
        return (
            source_ids.to_tensor(source.pad_id),
            target_ids.to_tensor(target.pad_id),
            labels.to_tensor(target.pad_id),
            truncated,
        )

    def _check_paired(self, inputs, targets):
        return tf.debugging.assert_equal(
            tf.size(inputs),
            tf.size(targets),
            "inputs and targets must have the same length",
        )

    def _check_batch_size(self, rows):
        limit = self._max_batch_size
        is_small = tf.debugging.assert_less_equal(
            tf.shape(rows)[0], limit, f"a batch may have at most {limit} rows"
        )
        with tf.control_dependencies([is_small]):
            return tf.identity(rows)

    def _check_and_truncate(self, source_ids):
        """Checks ids, and truncates them after an end id and at the maximum length.

        A row of more than the maximum length then also ends with the end id.
        """
        size = self._tokenizer.vocabulary_size
        source_ids = self._check_batch_size(source_ids)
        valid = tf.debugging.assert_equal(
            tf.reduce_all((source_ids >= 0) & (source_ids < size)),
            True,
            f"source_ids must be from 0 to {size - 1}",
        )
        # Operations that could fail on invalid ids run after the checks.
        with tf.control_dependencies([valid]):
            source_ids, is_formed = cut_at_end(
                source_ids, SpecialIds.of(self._tokenizer)
            )
        formed = tf.debugging.assert_equal(
            tf.reduce_all(is_formed),
            True,
            f"a row of source_ids must have the end id {self._tokenizer.end_id}, and "
            "padding only after it",
        )
        with tf.control_dependencies([formed]):
            source_ids = tf.identity(source_ids)
        truncated_ids = source_ids[:, : self.max_source_length]
        rest = source_ids[:, self.max_source_length :]
        beyond = tf.reduce_any(rest != self._tokenizer.pad_id, axis=1)
        place = tf.range(tf.shape(truncated_ids)[1])[None] == self.max_source_length - 1
        return tf.where(beyond[:, None] & place, self._tokenizer.end_id, truncated_ids)


def _cut_texts(texts, max_bytes):
    """Truncates texts to `max_bytes`, and replaces invalid bytes as Python does."""
    texts = tf.strings.substr(texts, 0, max_bytes)
    return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")


class _Surfaces:
    """Surfaces of a tokenizer's subwords: their texts, including the space before."""

    def __init__(self, tokenizer):
        surfaces = tokenizer.piece_bytes()  # special ids have none
        self.longest = max(map(len, surfaces))
        self._pad_id = tokenizer.pad_id
        self._surfaces = tf.constant(surfaces)
        self._continues = tf.constant(list(map(continues_character, surfaces)))

    def units(self, rows):
        """Returns the units of ids and the end id, then padding (`join_characters`)."""
        # Only the ids before the end id are text.
        lengths = tf.reduce_sum(tf.cast(rows != self._pad_id, tf.int32), 1) - 1
        return join_characters(
            tf.gather(self._surfaces, rows), tf.gather(self._continues, rows), lengths
        )
