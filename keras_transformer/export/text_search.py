"""Translation of texts of any length in an export, segment by segment."""

import tensorflow as tf

from keras_transformer.decoding.text import (
    EMPTY_SCORE,
    join_segments,
    merge_equal_texts,
    segment,
)

# Maximum size of a text, as a multiple of the maximum size of a segment.
_MAX_TEXT_FACTOR = 16


class TextSearch:
    """Search that translates texts like `Translator`, but limits their sizes.

    Args:
        tokenizer: Source tokenizer.
        detokenize: Method `detokenize` of the target tokenizer.
        search: Search from `dispatch_search`.
        max_source_length: Maximum length of a source row, including its end id.
        max_bytes: Maximum size of a segment in bytes.
        max_rows: Maximum number of segments per call of `search`.
    """

    def __init__(
        self, tokenizer, detokenize, search, max_source_length, max_bytes, max_rows
    ):
        self._tokenizer = tokenizer
        self._detokenize = detokenize
        self._search = search
        self._max_source_length = max_source_length
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._tokenize = tf.function(
            lambda texts: tokenizer.tokenize(cut_texts(texts, max_bytes)),
            input_signature=[tf.TensorSpec([None], tf.string)],
            autograph=False,
        )
        # All signatures share this graph, because it is large and takes time to load.
        number = tf.TensorSpec([], tf.int32)
        self.translate = tf.function(
            self._translate,
            input_signature=[tf.TensorSpec([None], tf.string), number, number],
            autograph=False,
        )

    def segments(self, texts):
        """Divides texts, string `[batch]`, into `Segments`."""
        limit = _MAX_TEXT_FACTOR * self._max_bytes
        found = segment(
            self._tokenize,
            cut_texts(texts, limit),
            self._max_source_length - 1,
            getattr(self._tokenizer, "split_language_prefix", None),
        )
        is_cut = tf.strings.length(texts) > limit
        return found._replace(truncated=found.truncated | is_cut)

    def _translate(self, texts, n_best, num_places):
        """Translates texts, string `[batch]`, segment by segment.

        `n_best` and `num_places` are int32 scalars, the number of translations per text
        and of hypotheses per segment. The latter may be greater, because hypotheses
        with the same text are merged. The outputs are those of the signature
        `translate_n_best`.
        """
        segments = self.segments(texts)
        found = self._translate_segments(segments.ids, n_best, num_places)
        found = join_segments(segments, *found)
        texts, scores, counts = merge_equal_texts(*found[:2], n_best)
        return {
            "translations": texts,
            "scores": scores,
            "counts": counts,
            "truncated": segments.truncated,
        }

    def _translate_segments(self, ids, n_best, num_places):
        """Translates segments. A blank segment has one empty translation.

        Takes RaggedTensor int32 `[segments, (length)]`. Returns translations and their
        scores, string and float32 `[segments, num_places]`, and the number found, int32
        `[segments]`.
        """
        places = tf.where(ids.row_lengths() > 0)
        ends = tf.fill([tf.size(places), 1], self._tokenizer.end_id)
        rows = tf.concat([tf.gather(ids, places[:, 0]), ends], axis=1)
        num_rows = tf.size(places)

        def search_some(start, texts, scores):
            chosen = rows[start : start + self._max_rows]
            sequences, new_scores = self._search(
                chosen.to_tensor(self._tokenizer.pad_id), n_best
            )
            sequences = sequences[:, :num_places]
            new_scores = new_scores[:, :num_places]
            length = tf.shape(sequences)[2]
            written = self._detokenize(tf.reshape(sequences, [-1, length]))
            written = tf.reshape(written, [-1, num_places])
            return (
                start + self._max_rows,
                tf.concat([texts, written], axis=0),
                tf.concat([scores, new_scores], axis=0),
            )

        lists = tf.TensorShape([None, None])
        _, texts, scores = tf.while_loop(
            lambda start, *_: start < num_rows,
            search_some,
            (0, tf.fill([0, num_places], ""), tf.zeros([0, num_places])),
            shape_invariants=(tf.TensorShape([]), lists, lists),
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
        )


def cut_texts(texts, max_bytes):
    """Truncates texts to `max_bytes`, and replaces invalid bytes as Python does."""
    texts = tf.strings.substr(texts, 0, max_bytes)
    return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
