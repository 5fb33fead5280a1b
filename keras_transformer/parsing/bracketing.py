"""Labeled bracketing F1 of constituency trees, as in EVALB with COLLINS.prm.

EVALB is the standard scoring program, and COLLINS.prm is its usual parameter file.
Words whose tag in the reference is punctuation are removed from both trees, together
with constituents of punctuation only. The label TOP is not counted, and PRT counts as
ADVP. Repeated constituents with the same label and span are counted separately.
"""

import dataclasses
import itertools
from collections import Counter

# DELETE_LABEL and EQ_LABEL in COLLINS.prm.
_PUNCTUATION_TAGS = {",", ":", "``", "''", ".", "-NONE-"}
_UNCOUNTED_LABELS = {"TOP"}
_EQUAL_LABELS = {"PRT": "ADVP"}
# Sentences of at most this many words are also scored separately, as in EVALB.
SHORT_LENGTH = 40


@dataclasses.dataclass(frozen=True)
class BracketingScore:
    """Counts of constituents over a test set, and the scores derived from them.

    Attributes:
        sentences: Number of sentences.
        matched: Number of constituents that reference and hypothesis share.
        reference: Number of constituents in the references.
        hypothesis: Number of constituents in the hypotheses.
        complete: Number of sentences whose constituents all match.
        words: Number of words, without punctuation.
        tagged: Number of words whose tags match.
    """

    sentences: int = 0
    matched: int = 0
    reference: int = 0
    hypothesis: int = 0
    complete: int = 0
    words: int = 0
    tagged: int = 0

    @property
    def recall(self):
        """Percentage of reference constituents that the hypotheses contain."""
        return _percentage(self.matched, self.reference)

    @property
    def precision(self):
        """Percentage of hypothesis constituents that are correct."""
        return _percentage(self.matched, self.hypothesis)

    @property
    def f1(self):
        """Harmonic mean of precision and recall, in percent."""
        return _percentage(2 * self.matched, self.reference + self.hypothesis)

    @property
    def complete_match(self):
        """Percentage of sentences whose constituents all match."""
        return _percentage(self.complete, self.sentences)

    @property
    def tagging_accuracy(self):
        """Percentage of words with the correct tag, without punctuation."""
        return _percentage(self.tagged, self.words)

    def __add__(self, other):
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return BracketingScore(*map(sum, pairs))


def bracketing_score(references, hypotheses, max_length=None):
    """Scores trees against reference trees.

    Args:
        references: List of `Tree`.
        hypotheses: List of `Tree` with the same words.
        max_length: Maximum number of words of a sentence, including punctuation. Longer
            sentences are skipped. If `None`, there is no maximum.

    Returns:
        `BracketingScore`.

    Raises:
        ValueError: If the lists differ in length, or the words of a sentence differ.

    Examples:
        >>> gold = kt.parsing.parse_tree("(S (NP (DT The) (NN dog)) (VP (VBZ barks)))")
        >>> found = kt.parsing.parse_tree("(S (DT The) (NN dog) (VP (VBZ barks)))")
        >>> score = kt.parsing.bracketing_score([gold], [found])
        >>> f"{score.precision:.1f} {score.recall:.1f} {score.f1:.1f}"
        '100.0 66.7 80.0'
    """
    references, hypotheses = list(references), list(hypotheses)
    if len(references) != len(hypotheses):
        raise ValueError(
            "Each hypothesis must have one reference. Received: "
            f"{len(references)} references and {len(hypotheses)} hypotheses."
        )
    total = BracketingScore()
    pairs = zip(references, hypotheses, strict=True)
    for number, (reference, hypothesis) in enumerate(pairs, start=1):
        if reference.words != hypothesis.words:
            raise ValueError(
                f"Sentence {number}: the hypothesis must have the reference's words."
            )
        if max_length is None or len(reference.words) <= max_length:
            total += _score_sentence(reference, hypothesis)
    return total


def _score_sentence(reference, hypothesis):
    is_counted = [tag not in _PUNCTUATION_TAGS for tag in reference.tags]
    # before[i] is the number of counted words among the first i words.
    before = [0, *itertools.accumulate(is_counted)]
    expected, found = (
        Counter(
            (_EQUAL_LABELS.get(label, label), before[start], before[end])
            for label, start, end in tree.constituents
            if label not in _UNCOUNTED_LABELS and before[start] < before[end]
        )
        for tree in (reference, hypothesis)
    )
    return BracketingScore(
        sentences=1,
        matched=(expected & found).total(),
        reference=expected.total(),
        hypothesis=found.total(),
        complete=int(expected == found),
        words=before[-1],
        tagged=sum(
            tag == found_tag and tag not in _PUNCTUATION_TAGS
            for tag, found_tag in zip(reference.tags, hypothesis.tags, strict=True)
        ),
    )


def _percentage(part, whole):
    return 100 * part / whole if whole else 0.0
