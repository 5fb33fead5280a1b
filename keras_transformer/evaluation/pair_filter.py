"""Filter for noisy parallel corpora, by rules and by a model's score."""

import hashlib
import math
import re
import unicodedata
from collections import Counter

import numpy as np

from keras_transformer.decoding.batches import encode_texts
from keras_transformer.decoding.forbidden import script_of

# Reasons to drop a pair, in the order of the checks, and their descriptions.
FILTER_REASONS = {
    "invalid_utf8": "not UTF-8 on a side",
    "empty": "empty side",
    "copy": "same text on both sides",
    "mojibake": "wrongly decoded characters",
    "numbers": "different numbers on the sides",
    "markup": "different tags on the sides",
    "script": "letters of another script",
    "language": "words of the other side's language",
    "too_long": "too many subwords on a side",
    "length_ratio": "very different lengths of the sides",
    "repeated": "repeated pair",
    "improbable": "low model score",
}
# UTF-8 that was decoded as Windows-1252 or Latin-1, and U+FFFD.
# In capitals, a word may end in Ã, before a quotation mark or no-break space.
_MOJIBAKE = re.compile(
    "(?<![A-ZÀ-Þ])Ã[\xa0«»]|Â[\xa0«»]|[ÃÂ](?![\xa0«»])[\x80-¿€‚„†‡ˆ‰‹-›˜™ŒœšŸ]"
    "|â[€\x80][\x80-¿“”˜™¦œ]|\ufffd"
)
# Not those of Sphinx (`text <target>`), nor spaces, which depend on the language.
_TAG = re.compile(r"</?[A-Za-z][\w:.-]*(?=[\s/>])(?![^<>]*>`)|&(?!nbsp;)#?\w{2,8};")
# Minimum share of a script's letters on a side of the sample, and of the letters of a
# text that are of such scripts.
_MIN_SHARE, _MIN_KNOWN = 0.05, 0.5
# Words are as likely in both languages up to this logarithm of a ratio.
_MIN_RATIO = math.log(1e4)


class PairFilter:
    """Scores sentence pairs, selects the good ones, and counts the others by reason.

    `max_ratio` is the maximum number of subwords on the longer side per subword on the
    shorter side, and `max_length` the maximum number on a side, including the end id. A
    model with learned positions may have a lower limit. The rules for scripts and
    languages apply after `learn`.
    """

    def __init__(self, translator, max_ratio=3.0, max_length=256, keep_identical=False):
        self.translator = translator
        self.max_ratio = max_ratio
        self.max_length = max_length
        self.keep_identical = keep_identical
        self.dropped = Counter()  # number of pairs by reason (see `FILTER_REASONS`)
        self.num_kept = 0
        self._scripts, self._words = None, None

    def learn(self, pairs):
        """Learns which scripts and words each side has, from a sample of the pairs."""
        self._scripts, counts = [], []
        for texts in zip(*pairs, strict=True):
            scripts = Counter(map(script_of, filter(str.isalpha, "".join(texts))))
            total = sum(scripts.values())
            self._scripts.append(
                {s for s in scripts if scripts[s] >= _MIN_SHARE * total}
            )
            counts.append(Counter(word for text in texts for word in _words(text)))
        totals = [sum(each.values()) + 1 for each in counts]
        # Logarithm of how much more frequent each word is in sources than in targets.
        self._words = {
            word: math.log((counts[0][word] + 0.1) / totals[0])
            - math.log((counts[1][word] + 0.1) / totals[1])
            for word in counts[0] | counts[1]
        }

    def check(self, pairs):
        """Returns why each pair breaks a rule, a key of `FILTER_REASONS`, or `None`.

        A text that is not UTF-8 is `None`. Repeated pairs are not noticed.
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
            max_length = min(max_length, model.position_limit)
        for i, *sizes in zip(remaining, *lengths, strict=True):
            if max(sizes) + 1 > max_length:  # The end id counts.
                reasons[i] = "too_long"
            elif max(sizes) > self.max_ratio * max(1, min(sizes)):
                reasons[i] = "length_ratio"
        self.dropped.update(reason for reason in reasons if reason is not None)
        return reasons

    def find_repeated(self, hashes, is_good):
        """Returns which good pairs are the first with their `pair_hash`, bool arrays.

        The result is a part of `is_good`, and the others are counted.
        """
        places = np.flatnonzero(is_good)
        first = np.unique(hashes[places], return_index=True)[1]
        is_first = np.zeros(len(is_good), bool)
        is_first[places[first]] = True
        self.dropped["repeated"] += len(places) - len(first)
        return is_first

    def score(self, pairs, is_good):
        """Computes the natural log-probability per target subword of each good pair.

        The end of a sentence counts as a subword, so that the score of a one-subword
        target does not depend on that subword alone. The result is float32
        `[len(pairs)]`, with NaN for other pairs, and minus infinity for pairs for which
        the model computes NaN.
        """
        scored = np.flatnonzero(is_good)
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
        if source.split() == target.split():
            return None if self.keep_identical else "copy"
        if _MOJIBAKE.search(source) or _MOJIBAKE.search(target):
            return "mojibake"
        digits = _digits(source), _digits(target)
        # Some numbers may be words on one side, such as 2 million.
        if not (digits[0] <= digits[1] or digits[1] <= digits[0]):
            return "numbers"
        if sorted(_TAG.findall(source)) != sorted(_TAG.findall(target)):
            return "markup"
        if self._words is None:
            return None
        for text, scripts in zip((source, target), self._scripts, strict=True):
            if max(text) < "\u0250" and "LATIN" in scripts:  # most texts
                continue
            letters = [*map(script_of, filter(str.isalpha, text))]
            if sum(map(scripts.__contains__, letters)) < _MIN_KNOWN * len(letters):
                return "script"
        ratios = [
            sum(self._words.get(word, 0.0) for word in {*_words(text)})
            for text in (source, target)
        ]
        if ratios[0] < -_MIN_RATIO or ratios[1] > _MIN_RATIO:
            return "language"
        return None


def pair_hash(pair):
    """Returns a hash of the words of a pair, 64 bits, equal in all processes."""
    text = "\n".join(" ".join((side or "").split()) for side in pair)
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())


def _words(text):
    return re.findall(r"[^\W\d_]+", text.lower())


def _digits(text):
    return Counter(unicodedata.digit(each) for each in re.findall(r"\d", text))
