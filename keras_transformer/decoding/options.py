"""Settings of beam search and sampling, validated on construction."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from keras import ops

from keras_transformer.numerics.ranges import MAX_TEMPERATURE, MIN_TEMPERATURE


def gnmt(length, alpha):
    """Computes `((5 + length) / 6) ** alpha` in float32.

    The paper (section 6.1) takes this penalty from GNMT (Wu et al., 2016). A length
    counts the tokens of a hypothesis, including a forced prefix and the end id, but not
    the start id.
    """
    return ops.power((5.0 + ops.cast(length, "float32")) / 6.0, float(alpha))


def power(length, alpha):
    """Computes `length ** alpha` in float32, as fairseq, Marian, and CTranslate2 do.

    With `alpha=1`, scores are mean log-probabilities per token.
    """
    return ops.power(ops.cast(length, "float32"), float(alpha))


LENGTH_PENALTIES = {"gnmt": gnmt, "power": power}
SEGMENTATIONS = "auto", "sentence", "line"
CASES = "auto", "keep"
# Settings that `SteeredDecoder` applies. Their defaults switch them off.
STEERING = (
    "no_repeat_ngram_size",
    "repetition_penalty",
    "coverage_penalty",
    "min_length",
)


class SpecialIds(NamedTuple):
    """Ids that do not stand for subwords. Of these, a search generates only `end`.

    The defaults are those of this package's tokenizers. Pass the ids of an imported
    vocabulary, or of your own, to the searches over ids.

    Attributes:
        pad: Id of padding.
        unknown: Id of unknown subwords, or `None` if there is none.
        start: Id that begins the decoder's input.
        end: Id that ends a target.
        source_end: Id that ends a source. If `None`, it is `end`.
    """

    pad: int = 0
    unknown: int | None = 1
    start: int = 2
    end: int = 3
    source_end: int | None = None

    def excluded_ids(self):
        """Returns the ids that a search never generates.

        The end id may be the start id, as in fairseq.

        Raises:
            ValueError: If the end id is the padding or unknown id.
        """
        ids = dict.fromkeys((self.pad, self.start, self.unknown))
        if self.start == self.end and self.end not in (self.pad, self.unknown):
            del ids[self.start]
        ids = tuple(ids)
        if self.end in ids:
            raise ValueError(
                "`end` must differ from `pad` and `unknown`. Received: "
                f"end={self.end}, pad={self.pad}, unknown={self.unknown}."
            )
        return tuple(each for each in ids if each is not None)

    @classmethod
    def of(cls, tokenizer, source=None):
        """Returns a tokenizer's special ids, with the end id of `source` if given.

        Examples:
            >>> tokenizer = kt.open_model("phrases").tokenizer
            >>> kt.decoding.SpecialIds.of(tokenizer)
            SpecialIds(pad=0, unknown=1, start=2, end=3, source_end=None)
        """
        return cls(
            tokenizer.pad_id,
            tokenizer.unknown_id,
            tokenizer.start_id,
            tokenizer.end_id,
            source and source.end_id,
        )


@dataclass(frozen=True)
class BeamSearch:
    """Settings of beam search. The defaults follow section 6.1 of the paper.

    Args:
        beam_size: Unfinished hypotheses kept per sentence. 1 is greedy search.
        length_penalty: Exponent alpha of the length penalty, at least 0.
        length_penalty_kind: `"gnmt"` for `((5 + length) / 6) ** alpha`, as in the
            paper, or `"power"` for `length ** alpha`.
        patience: Stop early once `patience * beam_size` hypotheses have finished (Kasai
            et al., 2022). The search always stops when no better hypothesis is
            possible; if `None`, it stops only then, but greedy search, prefixes and
            required phrases imply 1. fairseq and CTranslate2 use 1. Without a length
            penalty, it has no effect, as in CTranslate2.
        extra_length: Maximum number of tokens by which a translation may exceed its
            source.
        segmentation: `"sentence"` if lines are divided into sentences, which are
            translated separately, or `"line"`. With `"auto"`, they are divided if the
            model was trained with one sentence per line.
        case: With `"auto"`, lines in capitals are translated as lowercase text, and
            the first letter of a translation is a capital if that of its source is.
            This requires a model that was trained with capitals. `"keep"` changes
            no letters.
        no_repeat_ngram_size: Length of n-grams of subwords that occur at most once in
            a translation. If 0, they may be repeated. Subwords of required phrases are
            exempt.
        repetition_penalty: Divisor of the positive logits, and factor of the negative
            ones, of subwords that a hypothesis contains already (Keskar et al., 2019).
            Values above 1 make repetitions rarer.
        coverage_penalty: Weight beta of the coverage penalty, at least 0. It lowers the
            scores of translations that hardly attend to parts of the source (Wu et
            al., 2016, section 7).
        min_length: Minimum number of subwords of a translation, without the end id and
            a forced prefix or language.
        max_length_ratio: Maximum number of tokens per token of the source, both
            including the end id. If `None`, only `extra_length` limits translations.

    Raises:
        ValueError: If a value is out of range.

    Examples:
        >>> search = kt.BeamSearch(length_penalty=1.0, length_penalty_kind="power")
        >>> float(search.penalty(20))
        20.0
    """

    beam_size: int = 4
    length_penalty: float = 0.6
    length_penalty_kind: str = "gnmt"
    patience: float | None = None
    extra_length: int = 50
    segmentation: str = "auto"
    case: str = "auto"
    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    coverage_penalty: float = 0.0
    min_length: int = 0
    max_length_ratio: float | None = None

    def __post_init__(self):
        check_at_least("beam_size", self.beam_size, 1)
        for name in ("extra_length", "no_repeat_ngram_size", "min_length"):
            check_at_least(name, getattr(self, name), 0)
        for name in ("patience", "repetition_penalty", "max_length_ratio"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"`{name}` must be above 0. Received: {name}={value}.")
        for name, values in (
            ("length_penalty_kind", sorted(LENGTH_PENALTIES)),
            ("segmentation", SEGMENTATIONS),
            ("case", CASES),
        ):
            if getattr(self, name) not in values:
                raise ValueError(
                    f"`{name}` must be one of {', '.join(values)}. "
                    f"Received: {name}={getattr(self, name)!r}."
                )
        # Negative ones would reward short hypotheses, or little coverage, and
        # invalidate the bound that stops the search.
        for name in ("length_penalty", "coverage_penalty"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"`{name}` must be at least 0 and finite. "
                    f"Received: {name}={getattr(self, name)}."
                )

    def steering(self):
        """Returns the settings for `SteeredDecoder` that are switched on, as a dict."""
        return {
            name: getattr(self, name)
            for name in STEERING
            if getattr(self, name) != getattr(BeamSearch, name)
        }

    def penalty(self, length):
        """Returns the length penalty of hypotheses of `length` tokens, float32."""
        return LENGTH_PENALTIES[self.length_penalty_kind](length, self.length_penalty)


@dataclass(frozen=True)
class Sampling:
    """Settings of sampling.

    Args:
        num_samples: Number of independent samples per sentence.
        temperature: Divisor of the logits, from 1e-30 to 1e30. Values below 1 favor
            likely tokens.
        top_k: Sample from the `top_k` most likely tokens. If `None`, from all.
        top_p: Sample from the nucleus: the smallest set of most likely tokens with this
            total probability, in (0, 1] (Holtzman et al., 2020). If `None`, from all.
        seed: Random seed, which on one backend gives the same texts the same samples.
            If `None`, it is drawn.
        extra_length: Maximum number of tokens by which a translation may exceed its
            source.

    Raises:
        ValueError: If a value is out of range.

    Examples:
        >>> sampling = kt.Sampling(num_samples=2, temperature=0.5, seed=1)
        >>> (samples,) = kt.open_model("phrases").sample(["12 euros"], sampling)
        >>> [each.text for each in samples]
        ['12 Euro', '12 Euro']
    """

    num_samples: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    extra_length: int = 50

    def __post_init__(self):
        check_at_least("num_samples", self.num_samples, 1)
        check_at_least("extra_length", self.extra_length, 0)
        if not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            raise ValueError(
                f"`temperature` must be above 0, from {MIN_TEMPERATURE} to "
                f"{MAX_TEMPERATURE}. Received: temperature={self.temperature}. For the "
                "most likely token at each step, pass top_k=1."
            )
        if self.top_k is not None:
            check_at_least("top_k", self.top_k, 1)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(
                f"`top_p` must be above 0 and at most 1. Received: top_p={self.top_p}."
            )


def check_type(settings, kind, argument):
    """Checks that the argument `argument` is of type `BeamSearch` or `Sampling`."""
    if not isinstance(settings, kind):
        name = kind.__name__
        raise TypeError(
            f"`{argument}` must be a `{name}`. Received: {argument}={settings!r:.80}. "
            f"Pass {argument}={name}(...) (see `keras_transformer.{name}`)."
        )


def check_at_least(name, value, minimum):
    """Checks that the argument `name` is at least `minimum`."""
    if value < minimum:
        raise ValueError(
            f"`{name}` must be at least {minimum}. Received: {name}={value}."
        )
