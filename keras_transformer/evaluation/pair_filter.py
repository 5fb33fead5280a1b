"""Which pairs of a noisy corpus are pairs, by rules and in the eyes of a model."""

from collections import Counter

import numpy as np

from keras_transformer.decoding.batches import tokenized

# Reasons to leave a pair out, in the order in which they are looked for.
REASONS = {
    "invalid_utf8": "not UTF-8",
    "empty": "with an empty side",
    "copy": "with the same text on both sides",
    "too_long": "with a side of too many sub-words",
    "unlike_lengths": "with sides of unlike lengths",
    "improbable": "that the model finds improbable",
}


class PairFilter:
    """Scores pairs; those that break a rule get none, and are counted.

    Args:
        model: from `open_model`, one that can `score`.
        max_ratio: float, of the longer side's sub-words to the shorter one's.
        max_length: int, sub-words of a side.
        copies: whether a pair may have the same text on both sides.

    Attributes:
        dropped: Counter of the keys of `REASONS`.
        num_kept: int, pairs that `kept` let pass.
    """

    def __init__(self, model, max_ratio=3.0, max_length=256, copies=False):
        self.model = model
        self.max_ratio = max_ratio
        self.max_length = max_length
        self.copies = copies
        self.dropped = Counter()
        self.num_kept = 0

    def scores(self, pairs):
        """The log-probability (natural) per target sub-word of each pair.

        The end of a sentence counts as a sub-word, so that a text of one is not judged
        by its first only.

        Args:
            pairs: list of (source, target), str, or None for what is not UTF-8.

        Returns:
            float32 array [len(pairs)]; not a number for what breaks a rule.
        """
        reasons = [self._reason_of_texts(*pair) for pair in pairs]
        texts = [i for i, reason in enumerate(reasons) if reason is None]
        lengths = [
            list(
                map(
                    len,
                    tokenized(self.model.tokenizer, [pairs[i][side] for i in texts]),
                )
            )
            for side in (0, 1)
        ]
        for i, *sides in zip(texts, *lengths, strict=True):
            reasons[i] = self._reason_of_lengths(*sides)
        self.dropped.update(reason for reason in reasons if reason is not None)
        scored = [i for i in texts if reasons[i] is None]
        found = np.full(len(pairs), np.nan, "float32")
        sources, targets = ([pairs[i][side] for i in scored] for side in (0, 1))
        for i, score in zip(scored, self.model.score(sources, targets), strict=True):
            found[i] = score.log_prob / score.num_tokens
        return found

    def kept(self, scores, threshold):
        """Which pairs have at least this score: bool array, as `scores`."""
        passed = scores >= threshold  # false for what is not a number
        self._count(scores, passed)
        return passed

    def best(self, scores, fraction):
        """Which pairs are the best of those with a score, the earlier of equals.

        Args:
            scores: float32 array, of all pairs.
            fraction: float in (0, 1]; so many of the pairs with a score, rounded.

        Returns:
            `(passed, threshold)`: bool array, as `scores`, and the least score in it,
            None where nothing passed.
        """
        order = np.argsort(-scores, kind="stable")  # what is not a number comes last
        count = round(fraction * np.count_nonzero(~np.isnan(scores)))
        passed = np.zeros(len(scores), bool)
        passed[order[:count]] = True
        self._count(scores, passed)
        return passed, float(scores[order[count - 1]]) if count else None

    def _count(self, scores, passed):
        num_kept = int(np.count_nonzero(passed))
        num_scored = int(np.count_nonzero(~np.isnan(scores)))
        self.num_kept += num_kept
        self.dropped["improbable"] += num_scored - num_kept

    def _reason_of_texts(self, source, target):
        if source is None or target is None:
            return "invalid_utf8"
        if not source.strip() or not target.strip():
            return "empty"
        if not self.copies and source.split() == target.split():
            return "copy"
        return None

    def _reason_of_lengths(self, *lengths):
        if max(lengths) > self.max_length:
            return "too_long"
        if max(lengths) > self.max_ratio * max(1, min(lengths)):
            return "unlike_lengths"
        return None
