"""Filter for noisy parallel corpora, by rules and by a model's score."""

import math
from collections import Counter

import numpy as np

from keras_transformer.decoding.batches import encode_texts

# Reasons to drop a pair, in the order of the checks, and their descriptions.
FILTER_REASONS = {
    "invalid_utf8": "not UTF-8 on a side",
    "empty": "empty side",
    "copy": "same text on both sides",
    "too_long": "too many subwords on a side",
    "length_ratio": "very different lengths of the sides",
    "improbable": "low model score",
}


class PairFilter:
    """Scores sentence pairs, selects the good ones, and counts the others by reason.

    `max_ratio` is the maximum number of subwords on the longer side per subword on the
    shorter side, and `max_length` the maximum number on a side. A model with learned
    positions may have a lower limit.
    """

    def __init__(self, translator, max_ratio=3.0, max_length=256, keep_identical=False):
        self.translator = translator
        self.max_ratio = max_ratio
        self.max_length = max_length
        self.keep_identical = keep_identical
        self.dropped = Counter()  # number of pairs by reason (see `FILTER_REASONS`)
        self.num_kept = 0

    def score(self, pairs):
        """Computes the natural log-probability per target subword of each pair.

        A text that is not UTF-8 is `None`. The end of a sentence counts as a subword,
        so that the score of a one-subword target does not depend on that subword alone.
        The result is float32 `[len(pairs)]`, with NaN for pairs that break a rule, and
        minus infinity for pairs for which the model computes NaN.
        """
        reasons = [self._reason_of_texts(*pair) for pair in pairs]
        remaining = [i for i, reason in enumerate(reasons) if reason is None]
        tokenizers = self.translator.tokenizer, self.translator.target_tokenizer
        # For each side, the number of subwords of each text.
        lengths = (
            map(len, encode_texts(tokenizer, [pairs[i][side] for i in remaining]))
            for side, tokenizer in enumerate(tokenizers)
        )
        model, max_length = self.translator.model, self.max_length
        if model.position_limit is not None:
            max_length = min(max_length, model.position_limit - 1)  # for the end id
        for i, *sizes in zip(remaining, *lengths, strict=True):
            reasons[i] = self._reason_of_lengths(max_length, *sizes)
        self.dropped.update(reason for reason in reasons if reason is not None)
        scored = [i for i in remaining if reasons[i] is None]
        log_probs = np.full(len(pairs), np.nan, "float32")
        sources, targets = ([pairs[i][side] for i in scored] for side in (0, 1))
        scores = self.translator.score(sources, targets)
        for i, score in zip(scored, scores, strict=True):
            mean = score.log_prob / score.num_tokens
            log_probs[i] = -math.inf if math.isnan(mean) else mean
        return log_probs

    def select_above(self, scores, threshold):
        """Returns whether each pair's score is finite and at least `threshold`."""
        passed = (scores >= threshold) & np.isfinite(scores)
        self._count(scores, passed)
        return passed

    def select_best(self, scores, fraction):
        """Selects a fraction, in (0, 1], of the pairs with a score: the highest scores.

        `scores` are those of all pairs. Of ties, earlier pairs come first. Minus
        infinity is never selected. Returns whether each pair is selected, bool
        `[len(scores)]`, and the lowest selected score, or `None` if there is none.
        """
        if not 0 < fraction <= 1:
            raise ValueError(f"`fraction` must be in (0, 1]. Received: {fraction}.")
        order = np.argsort(-scores, kind="stable")  # NaN comes last
        count = round(fraction * np.count_nonzero(~np.isnan(scores)))
        count = min(count, np.count_nonzero(np.isfinite(scores)))
        passed = np.zeros(len(scores), bool)
        passed[order[:count]] = True
        self._count(scores, passed)
        return passed, float(scores[order[count - 1]]) if count else None

    def _count(self, scores, passed):
        """Updates the counts of kept pairs and of pairs whose score is too low."""
        self.num_kept += int(np.count_nonzero(passed))
        improbable = np.count_nonzero(~np.isnan(scores) & ~passed)
        self.dropped["improbable"] += int(improbable)

    def _reason_of_texts(self, source, target):
        if source is None or target is None:
            return "invalid_utf8"
        if not source.strip() or not target.strip():
            return "empty"
        if not self.keep_identical and source.split() == target.split():
            return "copy"
        return None

    def _reason_of_lengths(self, max_length, *lengths):
        if max(lengths) > max_length:
            return "too_long"
        if max(lengths) > self.max_ratio * max(1, min(lengths)):
            return "length_ratio"
        return None
