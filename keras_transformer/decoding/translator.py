"""Translation, scoring, and alignment of text."""

import copy
import dataclasses
import functools
import hashlib
import random

import numpy as np

from keras_transformer.decoding.alignment import (
    align_subwords,
    alignable_pairs,
    alignment_scores,
    encode_with_surfaces,
)
from keras_transformer.decoding.batches import (
    batch_by_length,
    check_compatible,
    check_pairs,
    check_positions,
    check_texts,
    encode_prefixes,
    encode_with_end,
    log_warning,
    pad_rows,
    target_of,
)
from keras_transformer.decoding.compiled import compile_for_ids, parallel_map
from keras_transformer.decoding.ensemble import Ensemble, build_models
from keras_transformer.decoding.forbidden import build_text_automaton
from keras_transformer.decoding.options import (
    BeamSearch,
    Sampling,
    SpecialIds,
    check_at_least,
    check_type,
)
from keras_transformer.decoding.scoring import PairScore, score_ids
from keras_transformer.decoding.search import sample_ids, translate_ids
from keras_transformer.decoding.segments import (
    Translation,
    join_segments,
    merge_equal_texts,
    segment_texts,
    translations_of,
)
from keras_transformer.errors import ModelError
from keras_transformer.numerics.seeds import FixedSeed

# Maximum number of logits that are computed at a time in scoring, 128 MiB in float32.
MAX_LOGITS = 2**25
BATCH_TOKENS = 4096


class Translator:
    """Translates text with a `Transformer` or an `Ensemble` (section 6.1 of the paper).

    Texts are translated in batches, and results are in the order of the input. A blank
    text gives an empty translation. The lines of a text are translated separately, and
    line breaks are kept. A line of more than `max_source_length` subwords is divided
    into sentences, with a warning. A sentence that is still too long is divided between
    words.

    Args:
        model: `Transformer` or `Ensemble`. `align` does not support an ensemble.
        tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target. Defaults to `tokenizer.target` if it
            exists, else to `tokenizer`.
        search: Search settings, a `BeamSearch`.
        max_source_length: Maximum number of subwords that are translated together,
            including the end id. A model with learned positions may have a lower limit.
        batch_tokens: Maximum number of source positions per batch, including padding.
            If `None`, 4096, or fewer if there are more than 4 hypotheses per sentence.
        forbidden: Phrases of whole words that no translation contains. If a phrase ends
            with `*`, its last word stands for all words that begin with it.
        parallel_parts: Number of batches that are translated or scored in parallel, one
            thread each. For CPUs, with TensorFlow only.
        warn: Called with the index of a text, from 0, and a warning. If `None`, the
            logger "keras_transformer" receives warnings that number texts from 1.

    Attributes:
        path: Path of the model, or `None`. Set by `open_model`.
        data: Section `data` of the model's recipe, or `None`. Set by `open_model`.

    Raises:
        ValueError: If the tokenizer and the model do not match, a size is out of range,
            or a forbidden phrase contains no word.
        TypeError: If `search` is not a `BeamSearch`.
    """

    path = None
    data = None

    def __init__(
        self,
        model,
        tokenizer,
        target_tokenizer=None,
        search=BeamSearch(),
        *,
        max_source_length=256,
        batch_tokens=None,
        forbidden=(),
        parallel_parts=1,
        warn=None,
    ):
        check_type(search, BeamSearch, "search")
        check_at_least("max_source_length", max_source_length, 2)
        check_at_least("parallel_parts", parallel_parts, 1)
        self.model = model
        self.tokenizer = tokenizer
        self.target_tokenizer = target_tokenizer or target_of(tokenizer)
        build_models(model)
        check_compatible(model, self.tokenizer, self.target_tokenizer)
        self.search = search
        if model.positions == "learned":
            max_source_length = min(max_source_length, model.max_length)
        self.max_source_length = max_source_length
        self.batch_tokens = batch_tokens
        self.parallel_parts = parallel_parts
        self.warn = warn or log_warning
        self._forbid(forbidden)
        self._compiled = {}  # compiled functions by their settings

    def __copy__(self):
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __reduce__(self):
        # Another process must compile its own functions.
        names = "max_source_length", "batch_tokens", "forbidden", "parallel_parts"
        options = {name: getattr(self, name) for name in (*names, "warn")}
        return (
            functools.partial(type(self), **options),
            (self.model, self.tokenizer, self.target_tokenizer, self.search),
            {"path": self.path, "data": self.data},
        )

    def __repr__(self):
        models = getattr(self.model, "models", (self.model,))
        parameters = sum(model.count_params() for model in models)
        kinds = dict.fromkeys((self.tokenizer, self.target_tokenizer))
        tokenizers = ", ".join(
            f"{type(each).__name__} with {each.vocabulary_size:,} subwords"
            for each in kinds
        )
        return (
            f"Translator({self.path or 'no path'}: {type(self.model).__name__} with "
            f"{parameters:,} parameters, {tokenizers}, {self.search})"
        )

    def with_search(self, forbidden=None, **changes):
        """Returns a copy with changed search settings and the same model.

        Args:
            forbidden: Phrases that no translation contains. If `None`, unchanged.
            **changes: Fields of `BeamSearch`.

        Raises:
            ValueError: If a value is out of range.
            TypeError: If `BeamSearch` has no such field.
        """
        names = [field.name for field in dataclasses.fields(BeamSearch)]
        if unknown := [name for name in changes if name not in names]:
            raise TypeError(
                f"`with_search` takes `forbidden` and {', '.join(names)}. "
                f"Received: {', '.join(unknown)}."
            )
        other = copy.copy(self)
        other.search = dataclasses.replace(self.search, **changes)
        if forbidden is not None:
            other._forbid(forbidden)
        return other

    def translate(self, lines):
        """Returns the best translation of each line.

        Args:
            lines: List of str, the texts to translate.

        Returns:
            List of str, one translation per line, in order.

        Raises:
            ValueError: If `lines` is not a list of str.
        """
        return [best.text for best, *_ in self.n_best(lines, 1)]

    def n_best(self, lines, n=None, prefixes=None):
        """Returns the best translations of each line, with scores.

        Args:
            lines: List of str.
            n: Number of translations, at most the beam size. If `None`, the beam size.
            prefixes: List of str, the required beginning of each line's translation.
                Surrounding whitespace is removed. If `None`, nothing is required.

        Returns:
            For each line, a list of 1 to `n` `Translation`s with different texts, best
            first. There are fewer than `n` if the search found no more, and a single,
            empty one for a blank line. If a line was divided, `join_segments` joins the
            translations of its segments.

        Raises:
            ValueError: If `lines` is not a list of str, or `n` is below 1.
            ModelError: If `n` exceeds the beam size, or the model cannot generate a
                prefix.
        """
        search = self.search
        n = search.beam_size if n is None else n
        if n > search.beam_size:
            raise ModelError(
                f"an n-best list of {n} needs a beam size of at least {n}. "
                f"Received: beam_size={search.beam_size}."
            )
        # Several results may have the same text, so twice as many are requested.
        options = {"search": search, "n_best": n, "num_results": 2 * n if n > 1 else n}
        key = "n_best", search, n
        search_batch = self._compile_search(key, translate_ids, prefixes, **options)
        results = self._run(search_batch, lines, prefixes, self._batch_tokens())
        return [merge_equal_texts(ranked, n) for ranked in results]

    def sample(self, lines, sampling=Sampling(), prefixes=None):
        """Draws translations at random.

        Args:
            lines: List of str.
            sampling: Sampling settings, a `Sampling`. `search` is not used.
            prefixes: List of str, the required beginnings of translations, or `None`.

        Returns:
            For each line, a list of `sampling.num_samples` `Translation`s in the order
            drawn. Scores are log-probabilities. A blank line has a single, empty
            translation.

        Raises:
            ValueError: If `lines` is not a list of str.
            TypeError: If `sampling` is not a `Sampling`.
            ModelError: If the model cannot generate a prefix.
        """
        check_type(sampling, Sampling, "sampling")
        seed = random.getrandbits(31) if sampling.seed is None else sampling.seed
        sampling = dataclasses.replace(sampling, seed=None)
        key = "sample", sampling
        search_batch = self._compile_search(
            key, sample_ids, prefixes, has_seed=True, sampling=sampling
        )
        batch_tokens = self._batch_tokens(sampling)
        return self._run(search_batch, lines, prefixes, batch_tokens, seed)

    def score(self, sources, targets):
        """Computes the log-probabilities of given translations, including end ids.

        Args:
            sources: List of str.
            targets: List of str, their translations.

        Returns:
            List of `PairScore`, one per pair, in order.

        Raises:
            ValueError: If the lists differ in length or are not lists of str.
            ModelError: If a text has more subwords than the model's learned positions.
        """
        sources, targets = check_pairs(sources, targets)
        ids = SpecialIds.of(self.target_tokenizer)
        source_rows = encode_with_end(self.tokenizer, sources)
        label_rows = encode_with_end(self.target_tokenizer, targets)
        score = self._compile(
            ("score",), lambda *x: score_ids(self.model, *x, ids.pad, ids.unknown), 3
        )
        lengths = list(map(max, map(len, source_rows), map(len, label_rows)))
        check_positions(self.model, source_rows + label_rows, sources + targets)
        limit = min(self._batch_tokens(), MAX_LOGITS // self.model.num_outputs)
        log_probs = np.zeros(len(sources), "float32")

        def score_batch(batch):
            return score(
                pad_rows([source_rows[i] for i in batch], self.tokenizer.pad_id),
                pad_rows([[ids.start, *label_rows[i][:-1]] for i in batch], ids.pad),
                pad_rows([label_rows[i] for i in batch], ids.pad),
            )

        batches = batch_by_length(lengths, limit)
        for batch, found in parallel_map(score_batch, batches, self.parallel_parts):
            log_probs[batch] = found
        return list(map(PairScore, map(float, log_probs), map(len, label_rows)))

    def align(self, sources, targets):
        """Aligns the words of translations to the words of their sources.

        Alignments are read from the decoder's attention to the source (see
        `decoding.alignment`). Words are separated by ASCII whitespace.

        Args:
            sources: List of str.
            targets: List of str, their translations.

        Returns:
            For each pair, a list of (source word index, target word index), one per
            word of the target, in order. Indices count from 0. The list is empty if a
            side has no word. It is also empty, with a warning, if the source exceeds
            `max_source_length` or the target exceeds three times the maximum length of
            a translation.

        Raises:
            ValueError: If the lists differ in length or are not lists of str.
            ModelError: If the model is an ensemble.
        """
        if isinstance(self.model, Ensemble):
            raise ModelError("an ensemble has no alignments. Use one of its models")
        sources, targets = check_pairs(sources, targets)
        encoded = encode_with_surfaces(self.tokenizer, sources)
        source_ids, source_surfaces, prefix_lengths = encoded
        encoded = encode_with_surfaces(self.target_tokenizer, targets)
        target_ids, target_surfaces, _ = encoded
        # An invalid byte becomes U+FFFD in the text, which is up to three byte tokens.
        max_target_length = 3 * (self.max_source_length + self.search.extra_length)
        if self.model.positions == "learned":
            max_target_length = min(max_target_length, self.model.max_length)
        max_lengths = self.max_source_length, max_target_length
        rows = alignable_pairs(source_ids, target_ids, max_lengths, self.warn)
        lengths = [max(len(source_ids[i]), len(target_ids[i])) + 1 for i in rows]
        align = self._compile(
            ("align",), lambda *ids: alignment_scores(self.model, *ids), num_inputs=2
        )
        source, target = map(SpecialIds.of, (self.tokenizer, self.target_tokenizer))

        def align_batch(batch):
            source_rows = [[*source_ids[i], source.end] for i in batch]
            target_rows = [[target.start, *target_ids[i]] for i in batch]
            return align(
                pad_rows(source_rows, source.pad), pad_rows(target_rows, target.pad)
            )

        aligned = [[] for _ in sources]
        batches = batch_by_length(lengths, self._batch_tokens())
        batches = [[rows[i] for i in batch] for batch in batches]
        for batch, scores in parallel_map(align_batch, batches, self.parallel_parts):
            for i, row in zip(batch, scores, strict=True):
                sides = source_surfaces[i], target_surfaces[i]
                aligned[i] = align_subwords(row, *sides, prefix_lengths[i])
        return aligned

    def fingerprint(self):
        """Returns a hash of the vocabulary and the weights, as hexadecimal digits."""
        digest = hashlib.sha256(self.tokenizer.fingerprint().encode())
        if self.target_tokenizer is not self.tokenizer:
            digest.update(self.target_tokenizer.fingerprint().encode())
        for model in getattr(self.model, "models", (self.model,)):
            for weight in model.get_weights():
                digest.update(weight.tobytes())
        return digest.hexdigest()

    def _forbid(self, phrases):
        phrases = tuple(check_texts(phrases, "forbidden"))
        tokenizer = self.target_tokenizer
        try:
            automaton = build_text_automaton(tokenizer, phrases) if phrases else None
        except ValueError as error:
            raise ModelError(str(error)) from None
        self.forbidden, self._automaton = phrases, automaton

    def _compile_search(self, key, function, prefixes, has_seed=False, **options):
        """Compiles `translate_ids` or `sample_ids` with this translator's settings."""
        names = ["source_ids", *["seed"] * has_seed]
        names += [] if prefixes is None else ["prefix_ids"]

        def search_batch(*inputs):
            inputs = dict(zip(names, inputs, strict=True))
            if has_seed:
                inputs["seed"] = FixedSeed(inputs["seed"][0])
            return function(self.model, **inputs, **options)

        tokenizer = self.target_tokenizer
        options["ids"] = SpecialIds.of(tokenizer, self.tokenizer)
        options["vocabulary_size"] = tokenizer.vocabulary_size
        options["automaton"] = self._automaton
        key = (*key, prefixes is not None, self.forbidden)
        return self._compile(key, search_batch, num_inputs=len(names))

    def _compile(self, key, function, num_inputs):
        if key not in self._compiled:
            self._compiled[key] = compile_for_ids(function, num_inputs)
        return self._compiled[key]

    def _batch_tokens(self, sampling=Sampling()):
        if self.batch_tokens is not None:
            return self.batch_tokens
        # More rows per sentence leave memory for fewer sentences.
        rows_per_sentence = max(4, self.search.beam_size, sampling.num_samples)
        return 4 * BATCH_TOKENS // rows_per_sentence

    def _run(self, search_batch, lines, prefixes, batch_tokens, seed=None):
        """Runs a compiled search and returns the translations of each line."""
        lines = check_texts(lines)
        if prefixes is not None:
            _, prefixes = check_pairs(lines, prefixes, ("lines", "prefixes"))
            prefix_ids = encode_prefixes(self.target_tokenizer, prefixes, self.model)
        segments = segment_texts(
            self.tokenizer, lines, self.max_source_length, self.warn
        )

        def translate_batch(numbered):
            number, batch = numbered
            chosen = [segments[k] for k in batch]
            inputs = [pad_rows([each.ids for each in chosen], self.tokenizer.pad_id)]
            if seed is not None:
                # The seed is an input, because calls in other threads have other seeds.
                inputs.append(np.array([[seed % 2**31, number]], "int32"))
            if prefixes is not None:
                # Only the first segment of a text has the prefix.
                prefix_rows = [
                    prefix_ids[each.text_index] * each.is_first for each in chosen
                ]
                inputs.append(pad_rows(prefix_rows, self.target_tokenizer.pad_id))
            return translations_of(self.target_tokenizer, *search_batch(*inputs))

        rows = [k for k, each in enumerate(segments) if each.ids]
        lengths = [len(segments[k].ids) for k in rows]
        results = [[Translation("", 0.0)]] * len(segments)
        batches = batch_by_length(lengths, batch_tokens)
        batches = enumerate([rows[i] for i in batch] for batch in batches)
        found = parallel_map(translate_batch, batches, self.parallel_parts)
        for (_, batch), texts in found:
            for k, ranked in zip(batch, texts, strict=True):
                results[k] = ranked
        return join_segments(segments, results)
