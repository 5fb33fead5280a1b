"""What an export's signatures compute, as TensorFlow graphs from text to text."""

import contextlib

import tensorflow as tf

from keras_transformer.decoding import alignment_scores
from keras_transformer.decoding import score_ids
from keras_transformer.decoding import translate_ids
from keras_transformer.decoding.translator import MAX_LOGITS
from keras_transformer.export.lone_sentences import Kernels
from keras_transformer.export.searches import joined_search
from keras_transformer.export.searches import kept_apart

# The score of a place in an n-best list that no hypothesis fills; JSON has no infinity.
NOTHING = tf.float32.min
# So much longer than what can be read of it, a text is cut before it is tokenised.
_SPARE = 4


class Signatures:
    """The functions that an export serves; `export_saved_model` describes them.

    Args:
        model: `Transformer`.
        tokenizer: Of source and target.
        beam_size: Number of hypotheses, and the length of n-best lists.
        length_penalty: Exponent alpha of the length penalty.
        length_penalty_kind: `"gnmt"` or `"power"`.
        extra_length: What a translation may exceed its source by, in sub-words.
        max_source_length: Longest source row, its end id counted.
        max_batch_size: Rows of a batch; more are an invalid argument.
        parallel_parts: Parts of a batch that are searched side by side.
        jit_compile: Whether texts that come alone are searched by XLA's programs.
        patience: Float above 0 or None, see `beam_search`.
    """

    def __init__(
        self,
        model,
        tokenizer,
        beam_size,
        length_penalty,
        length_penalty_kind,
        extra_length,
        max_source_length,
        max_batch_size,
        parallel_parts=1,
        jit_compile=False,
        patience=None,
    ):
        self._model = model
        self._tokenizer = tokenizer
        self._max_batch_size = max_batch_size
        self._beam_size = beam_size
        self.max_source_length = max_source_length
        self.max_target_length = max_source_length + extra_length
        if model.positions == "learned":
            self.max_source_length = min(self.max_source_length, model.max_length)
            self.max_target_length = min(self.max_target_length, model.max_length)
        written = tokenizer.piece_bytes()
        self._written = tf.constant(written)
        longest = max(map(len, written))
        self._max_bytes = _SPARE * longest * self.max_target_length
        # A character that is spelt in bytes goes on with those of 10xxxxxx.
        self._goes_on = tf.constant(
            [0x80 <= (each or b"a")[0] < 0xC0 for each in written]
        )

        self.kernels = Kernels(model) if jit_compile else None

        def search(source_ids, n_best, kernels=None, compaction="auto"):
            return translate_ids(
                model,
                source_ids,
                beam_size=beam_size,
                n_best=n_best,
                length_penalty=length_penalty,
                length_penalty_kind=length_penalty_kind,
                patience=patience,
                extra_length=extra_length,
                vocabulary_size=tokenizer.vocabulary_size,
                compaction=compaction,
                kernels=kernels,
            )

        def search_row(source_ids, n_best):
            return search(source_ids, n_best, self.kernels.blocks(), compaction=False)

        def shared():
            kernels = self.kernels.whole() if jit_compile else None
            return () if kernels is None else (kernels,)

        # One search for the best, which ends sooner, and for all of the beam: whoever
        # loads an export holds each search's graph.
        self._search = joined_search(
            kept_apart(
                search, tf.nest.map_structure(tf.type_spec_from_value, shared())
            ),
            parallel_parts,
            shared,
            search_row if jit_compile else None,
            extra_length,
            self.max_source_length,
        )

    def _as_exported(self):
        """Within it, the decoder computes with the matrices that the export has."""
        return self.kernels.in_use() if self.kernels else contextlib.nullcontext()

    def endpoints(self):
        """Name, function and input signature of each."""
        texts = tf.TensorSpec([None], tf.string, name="inputs")
        targets = tf.TensorSpec([None], tf.string, name="targets")
        rows = tf.TensorSpec([None, None], tf.int32, name="source_ids")
        yield "serving_default", self.translate, [texts]
        yield "translate_n_best", self.translate_n_best, [texts]
        yield "translate_ids", self.translate_ids, [rows]
        yield "score", self.score, [texts, targets]
        yield "encode", self.encode, [rows]
        yield "attend", self.attend, [texts, targets]

    def translate(self, inputs):
        rows, truncated = self._source_rows(inputs)
        sequences, scores = self._search(rows, 1)
        texts = self._tokenizer.detokenize(sequences[:, 0])
        return {
            "translations": texts,
            "scores": scores[:, 0],
            "truncated": truncated,
        }

    def translate_n_best(self, inputs):
        rows, truncated = self._source_rows(inputs)
        sequences, scores = self._search(rows, self._beam_size)
        # Empty places come last; a model that gave NaN still gets its first.
        there = tf.concat(
            [tf.ones_like(scores[:, :1], bool), scores[:, 1:] > NOTHING], 1
        )
        length = tf.shape(sequences)[2]
        texts = self._tokenizer.detokenize(tf.reshape(sequences, [-1, length]))
        texts = tf.reshape(texts, [-1, self._beam_size])
        return {
            "translations": tf.where(there, texts, ""),
            "scores": tf.where(there, scores, NOTHING),
            "counts": tf.reduce_sum(tf.cast(there, tf.int32), axis=1),
            "truncated": truncated,
        }

    def translate_ids(self, source_ids):
        sequences, scores = self._search(self._checked(source_ids), 1)
        return {"target_ids": sequences[:, 0], "scores": scores[:, 0]}

    def encode(self, source_ids):
        output = self._model.encode(self._checked(source_ids), training=False)
        return {"encoder_output": tf.cast(output, tf.float32)}

    def score(self, inputs, targets):
        source_ids, target_ids, labels = self._pairs(inputs, targets)
        batch, length = tf.unstack(tf.shape(labels))
        at_once = MAX_LOGITS // self._model.num_outputs // tf.maximum(length, 1)
        at_once = tf.maximum(at_once, 1)

        def some(start, log_probs):
            rows = slice(start, start + at_once)
            found = score_ids(
                self._model, source_ids[rows], target_ids[rows], labels[rows]
            )
            return start + at_once, tf.concat([log_probs, found], axis=0)

        with self._as_exported():
            _, log_probs = tf.while_loop(
                lambda start, _: start < batch,
                some,
                (0, tf.zeros([0])),
                shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
                parallel_iterations=1,
            )
        real = tf.cast(labels != self._tokenizer.pad_id, tf.int32)
        return {"log_probs": log_probs, "num_tokens": tf.reduce_sum(real, axis=1)}

    def attend(self, inputs, targets):
        source_ids, target_ids, labels = self._pairs(inputs, targets)
        with self._as_exported():
            scores = alignment_scores(self._model, source_ids, target_ids)
        source_pieces, source_share = self._units(source_ids)
        target_pieces, target_share = self._units(labels)
        # What is looked at adds up; what looks is a mean.
        count = tf.maximum(tf.reduce_sum(target_share, axis=1, keepdims=True), 1.0)
        attention = tf.matmul(target_share / count, scores, transpose_a=True)
        return {
            "source_pieces": source_pieces,
            "target_pieces": target_pieces,
            "attention": tf.matmul(attention, source_share),
        }

    def _units(self, rows):
        """Whole characters out of sub-words.

        Args:
            rows: int32 [batch, length], ids and the end id, then padding.

        Returns:
            string [batch, units], what they write, and float32 [batch, length, units],
            1 where a sub-word is part of a unit.
        """
        batch, length = tf.unstack(tf.shape(rows))
        # The ids of text alone: what is before the end id.
        lengths = (
            tf.reduce_sum(tf.cast(rows != self._tokenizer.pad_id, tf.int32), 1) - 1
        )
        is_text = tf.sequence_mask(lengths, length)
        first = tf.range(length)[None] == 0
        written = tf.gather(self._written, rows)
        # Encoding adds a space in front of the text, maybe as a sub-word of its own.
        lone = first & (written == " ")
        after_lone = tf.pad(lone, [[0, 0], [1, 0]])[:, :length]
        goes_on = tf.gather(self._goes_on, rows) | after_lone
        begins = is_text & (first | ~goes_on)
        unit = tf.cumsum(tf.cast(begins, tf.int32), axis=1) - 1
        num_units = tf.reduce_max(tf.concat([tf.reshape(unit, [-1]), [-1]], 0)) + 1
        bare = tf.strings.regex_replace(written, "^ ", "", replace_global=False)
        written = tf.where(first, bare, written)
        places = tf.range(batch)[:, None] * num_units + unit
        joined = tf.strings.unsorted_segment_join(
            tf.boolean_mask(written, is_text),
            tf.boolean_mask(places, is_text),
            batch * num_units,
        )
        share = tf.one_hot(tf.where(is_text, unit, -1), num_units)
        # A text that was cut may end within a character.
        joined = tf.strings.unicode_transcode(joined, "UTF-8", "UTF-8", "replace")
        return tf.reshape(joined, [batch, num_units]), share

    def _pairs(self, inputs, targets):
        """Rows of source ids, of target ids behind the start id, and of labels."""
        paired = tf.debugging.assert_equal(
            tf.size(inputs), tf.size(targets), "inputs and targets must pair up"
        )
        with tf.control_dependencies([paired]):
            inputs, targets = self._readable(inputs), self._readable(targets)
        start, end = self._tokenizer.start_id, self._tokenizer.end_id
        ids = self._tokenizer.tokenize(inputs)[:, : self.max_source_length - 1]
        label_ids = self._tokenizer.tokenize(targets)[:, : self.max_target_length - 1]
        ones = tf.ones([tf.size(inputs), 1], tf.int32)
        rows = (
            tf.concat([ids, ones * end], axis=1),
            tf.concat([ones * start, label_ids], axis=1),
            tf.concat([label_ids, ones * end], axis=1),
        )
        return tuple(each.to_tensor(self._tokenizer.pad_id) for each in rows)

    def _source_rows(self, inputs):
        inputs = self._readable(inputs)
        return source_rows(self._tokenizer, inputs, self.max_source_length)

    def _readable(self, texts):
        """Texts of a batch that is not too large, without what is not read anyway."""
        with tf.control_dependencies([self._few(texts)]):
            texts = tf.strings.substr(texts, 0, self._max_bytes)
        # Of bytes that are no text, as many U+FFFD as Python makes.
        return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")

    def _few(self, rows):
        return tf.debugging.assert_less_equal(
            tf.shape(rows)[0],
            self._max_batch_size,
            f"a batch may have {self._max_batch_size} rows at most",
        )

    def _checked(self, source_ids):
        """Ids that the model has, cut to its length with an end id at the cut."""
        size = self._tokenizer.vocabulary_size
        valid = tf.debugging.assert_equal(
            tf.reduce_all((source_ids >= 0) & (source_ids < size)),
            True,
            f"source_ids must be from 0 to {size - 1}",
        )
        # Whatever else may fail of them waits for this.
        with tf.control_dependencies([valid, self._few(source_ids)]):
            source_ids = tf.identity(source_ids)
        cut = source_ids[:, : self.max_source_length]
        beyond = tf.reduce_any(source_ids[:, self.max_source_length :] != 0, axis=1)
        place = tf.range(tf.shape(cut)[1])[None] == self.max_source_length - 1
        return tf.where(beyond[:, None] & place, self._tokenizer.end_id, cut)


def source_rows(tokenizer, texts, max_source_length):
    """Ids of texts as the model reads them.

    Args:
        tokenizer: Of the source.
        texts: string [batch].
        max_source_length: Longest row, its end id counted; longer ones are cut.

    Returns:
        int32 [batch, source_length], ids and the end id, then padding (a blank text
        has its end id only), and bool [batch], whether the text was cut.
    """
    blank = tf.equal(tf.strings.strip(texts), "")
    ids = tokenizer.tokenize(tf.where(blank, "", texts))
    truncated = ids.row_lengths() > max_source_length - 1
    ids = ids[:, : max_source_length - 1]
    ends = tf.fill([tf.shape(texts)[0], 1], tokenizer.end_id)
    rows = tf.concat([ids, tf.RaggedTensor.from_tensor(ends)], axis=1)
    return rows.to_tensor(tokenizer.pad_id), truncated
