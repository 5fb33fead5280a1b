"""Translation, scoring, and alignment of text."""

import copy
import dataclasses
import functools
import hashlib
import itertools
import json
import random
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding.alignment import (
    align_units,
    alignable_pairs,
    alignment_scores,
    attend_units,
    join_units,
    token_surfaces,
)
from keras_transformer.decoding.batches import (
    PrefixEnds,
    batch_by_length,
    check_compatible,
    check_pairs,
    check_positions,
    check_texts,
    encode_prefixes,
    encode_required,
    encode_targets,
    encode_texts,
    encode_with_end,
    group_texts,
    log_warning,
    pad_rows,
    select_target,
    spell_texts,
    word_edges,
)
from keras_transformer.decoding.compiled import compile_for_ids, parallel_map
from keras_transformer.decoding.ensemble import Ensemble, build_models
from keras_transformer.decoding.forbidden import build_text_automaton
from keras_transformer.decoding.glossary import Glossary, add_unmet
from keras_transformer.decoding.markup import translate_marked
from keras_transformer.decoding.options import (
    BeamSearch,
    Sampling,
    SpecialIds,
    check_at_least,
    check_type,
)
from keras_transformer.decoding.required import required_row
from keras_transformer.decoding.scoring import PairScore, score_ids
from keras_transformer.decoding.search import sample_ids, translate_ids
from keras_transformer.decoding.spans import PROTECTED
from keras_transformer.decoding.warnings import (
    CUT_OFF,
    LOW_SCORE,
    add_warnings,
    is_cut_off,
    mean_log_probs,
)
from keras_transformer.errors import NOT_FINITE, ModelError
from keras_transformer.numerics.seeds import FixedSeed

# Maximum number of logits that are computed at a time in scoring, 128 MiB in float32.
MAX_LOGITS = 2**25
BATCH_TOKENS = 4096


class Translation(NamedTuple):
    """A translation, its score and warnings about it.

    Attributes:
        text: The translation.
        score: `log-probability / penalty(length)`, or the log-probability of a sample.
            If a text is translated in several segments, their scores are added.
        warnings: Tuple of reasons why the translation may be bad, one sentence each
            (see docs/reference/translator.md).

    Examples:
        >>> ((best,),) = kt.open_model("phrases").n_best(["12 euros"], n=1)
        >>> best.text, round(best.score, 2), best.warnings
        ('12 Euro', -0.42, ())
    """

    text: str
    score: float
    warnings: tuple[str, ...] = ()


class Translator:
    """Translates text with a `Transformer` or an `Ensemble` (section 6.1 of the paper).

    Texts are translated in batches, and results are in the order of the input. A blank
    text gives an empty translation. Line breaks are kept, and lines are translated
    separately. So are the sentences of a line if the model was trained with one
    sentence per line (see `BeamSearch`). A line of more than `max_source_length`
    subwords is always divided, with a warning, and a sentence that is still too long
    between words.

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
        glossary: List of `Term` (see `read_glossary`). For each occurrence of a term in
            a text, its translation must contain one of the term's target phrases.
            `sample` does not use it.
        parallel_parts: Number of batches that are translated or scored in parallel, one
            thread each. For CPUs, with TensorFlow only.
        warn: Called with the index of a text, from 0, and each warning of its best
            translation. If `None`, the logger "keras_transformer" receives warnings
            that number texts from 1.

    Attributes:
        path: Path of the model, or `None`. Set by `open_model`.
        data: Section `data` of the model's recipe, or `None`. Set by `open_model`.
        low_score: Mean log-probability per subword below which a translation of beam
            search has a warning, or `None`. A sensible value is three times the mean
            for translations of validation text. Set by `open_model` if the preset
            contains it.

    Raises:
        ValueError: If the tokenizer and the model do not match, a size is out of range,
            or a forbidden phrase contains no word.
        ModelError: If the model cannot generate a target phrase of the glossary.
        TypeError: If `search` is not a `BeamSearch`.

    Examples:
        >>> opened = kt.open_model("phrases")
        >>> search = kt.BeamSearch(beam_size=1)
        >>> translator = kt.Translator(opened.model, opened.tokenizer, search=search)
        >>> translator.translate(["12 euros"])
        ['12 Euro']
    """

    path = None
    data = None
    low_score = None

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
        glossary=(),
        parallel_parts=1,
        warn=None,
    ):
        check_type(search, BeamSearch, "search")
        check_at_least("max_source_length", max_source_length, 2)
        check_at_least("parallel_parts", parallel_parts, 1)
        self.model = model
        self.tokenizer = tokenizer
        self.target_tokenizer = target_tokenizer or select_target(tokenizer)
        build_models(model)
        check_compatible(model, self.tokenizer, self.target_tokenizer)
        self.search = search
        if model.position_limit is not None:
            max_source_length = min(max_source_length, model.position_limit)
        self.max_source_length = max_source_length
        self.batch_tokens = batch_tokens
        self.parallel_parts = parallel_parts
        self.warn = warn or log_warning
        self._forbid(forbidden)
        self._use_glossary(glossary)
        self._compiled = {}  # compiled functions by their settings

    def __getstate__(self):
        # Another process must compile its own functions.
        return {**vars(self), "_compiled": {}}

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

    def with_search(self, forbidden=None, glossary=None, **changes):
        """Returns a copy with changed search settings and the same model.

        Args:
            forbidden: Phrases that no translation contains. If `None`, unchanged.
            glossary: List of `Term`. If `None`, unchanged.
            **changes: Fields of `BeamSearch`.

        Raises:
            ValueError: If a value is out of range, or a forbidden phrase contains no
                word.
            TypeError: If `BeamSearch` has no such field.
            ModelError: If the vocabulary lacks what a term of the glossary needs.
        """
        names = [field.name for field in dataclasses.fields(BeamSearch)]
        if unknown := [name for name in changes if name not in names]:
            raise TypeError(
                f"`with_search` takes `forbidden`, `glossary` and {', '.join(names)}. "
                f"Received: {', '.join(unknown)}."
            )
        other = copy.copy(self)
        other._compiled = self._compiled
        other.search = dataclasses.replace(self.search, **changes)
        if forbidden is not None:
            other._forbid(forbidden)
        if forbidden is not None or glossary is not None:
            other._use_glossary(self.glossary if glossary is None else glossary)
        return other

    def translate(self, lines, protect=PROTECTED):
        """Returns the best translation of each line.

        Args:
            lines: List of str, the texts to translate.
            protect: Kinds of spans that translations must contain: `"urls"`,
                `"emails"`, `"placeholders"`, `"tags"`, `"symbols"` (such as emoji),
                `"escapes"` (such as a backslash and n), `"numbers"` (in any notation)
                and `"code"`. If empty, none. Text between `<keep>` and `</keep>` stays
                if `"tags"` are among them.

        Returns:
            List of str, one translation per line, in order.

        Raises:
            ValueError: If `lines` is not a list of str, or a kind is unknown.
            DataError: If `<keep>` or `</keep>` lacks the other.
            ModelError: If the model computes NaN.
        """
        return translate_marked(self, check_texts(lines), "text", protect)

    def n_best(self, lines, n=None, prefixes=None, required=None, protected=None):
        """Returns the best translations of each line, with scores.

        Args:
            lines: List of str.
            n: Number of translations, at most the beam size. If `None`, the beam size.
            prefixes: List of str, the required beginning of each line's translation.
                Its last word may go on in the translation, unless whitespace follows
                the prefix. If `None`, nothing is required.
            required: For each line, a list of phrases that its translations must
                contain. A phrase is a str, or a list of alternatives. A phrase that is
                given twice must occur twice. Finding a good place for a phrase of many
                subwords needs a large beam. If a translation lacks a phrase, for
                example because it reached its maximum length, there is a warning.
            protected: For each line, a list of its parts in which terms of the glossary
                do not count, such as addresses. If `None`, there are none.

        Returns:
            For each line, a list of 1 to `n` `Translation`s with different texts, best
            first. There are fewer than `n` if the search found no more, and a single,
            empty one for a blank line. If a line was divided, its i-th best translation
            consists of the i-th best ones of its parts, and the scores are added.

        Raises:
            ValueError: If `lines` is not a list of str, or `n` is below 1.
            ModelError: If `n` exceeds the beam size, or the model cannot generate a
                prefix or a required phrase, for example because it is forbidden, or
                computes NaN.

        Examples:
            >>> (found,) = kt.open_model("phrases").n_best(["3 September 2021"], n=2)
            >>> [f"{best.text} ({best.score:.1f})" for best in found]
            ['3. September 2021 (-0.6)', '3. Apr. 2021 (-3.8)']
        """
        search = self.search
        n = search.beam_size if n is None else n
        check_at_least("n", n, 1)
        if n > search.beam_size:
            raise ModelError(
                f"an n-best list of {n} needs `beam_size` of at least {n}. "
                f"Received: {search.beam_size}"
            )
        # Several results may have the same text, so twice as many are requested.
        num_places = 2 * n if n > 1 else n
        options = {"search": search, "n_best": n, "num_results": num_places}
        if required is not None:
            lines = check_texts(lines)
            required = _check_required(lines, required)
        phrases = {"required": required, "protected": protected}
        return self._run(
            translate_ids, lines, num_places, prefixes, **phrases, **options
        )

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
            ModelError: If the model cannot generate a prefix, or computes NaN.
        """
        check_type(sampling, Sampling, "sampling")
        seed = random.getrandbits(31) if sampling.seed is None else sampling.seed
        sampling = dataclasses.replace(sampling, seed=None)
        num_places = sampling.num_samples
        return self._run(
            sample_ids, lines, num_places, prefixes, seed, sampling=sampling
        )

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

        Examples:
            >>> (pair,) = kt.open_model("phrases").score(["12 euros"], ["12 Euro"])
            >>> print(f"{pair.log_prob:.1f} for {pair.num_tokens} subwords")
            -0.6 for 6 subwords
        """
        sources, targets = check_pairs(sources, targets)
        ids = SpecialIds.of(self.target_tokenizer)
        source_rows = encode_with_end(self.tokenizer, sources)
        label_rows, num_given = encode_targets(self, sources, targets)
        label_rows = [[*row, ids.end] for row in label_rows]
        lengths = list(map(max, map(len, source_rows), map(len, label_rows)))
        check_positions(self.model, source_rows + label_rows, sources + targets)
        limit = min(self._batch_tokens(), MAX_LOGITS // self.model.num_outputs)
        log_probs = np.zeros(len(sources), "float32")

        def score_batch(batch):
            sources = [source_rows[i] for i in batch]
            targets = [[ids.start, *label_rows[i][:-1]] for i in batch]
            # A language is given, so it has no probability.
            labels = [[ids.pad] * num_given + label_rows[i][num_given:] for i in batch]
            inputs = {
                "source_ids": pad_rows(sources, self.tokenizer.pad_id),
                "target_ids": pad_rows(targets, ids.pad),
                "labels": pad_rows(labels, ids.pad),
            }
            return self._call(score_ids, inputs, pad_id=ids.pad, unknown_id=ids.unknown)

        batches = batch_by_length(lengths, limit)
        for batch, found in parallel_map(score_batch, batches, self.parallel_parts):
            log_probs[batch] = found
        lengths = [len(row) - num_given for row in label_rows]
        return list(map(PairScore, map(float, log_probs), lengths))

    def align(self, sources, targets):
        """Aligns the words of translations to the words of their sources.

        Alignments are read from the decoder's attention to the source. Words are
        separated by ASCII whitespace.

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

        Examples:
            >>> kt.open_model("phrases").align(["12 euros"], ["12 Euro"])
            [[(0, 0), (1, 1)]]
        """
        if isinstance(self.model, Ensemble):
            raise ModelError("an ensemble has no alignments. Use one of its models")
        sources, targets = check_pairs(sources, targets)
        source_ids = encode_texts(self.tokenizer, [*sources, ""])
        target_ids, _ = encode_targets(self, sources, targets)
        *source_surfaces, prefix = token_surfaces(self.tokenizer, source_ids)
        target_surfaces = token_surfaces(self.target_tokenizer, target_ids)
        (prefix,), _ = join_units([prefix])
        # An invalid byte becomes U+FFFD in the text, which is up to three byte tokens.
        max_target_length = 3 * (self.max_source_length + self.search.extra_length)
        if self.model.position_limit is not None:
            max_target_length = min(max_target_length, self.model.position_limit)
        max_lengths = self.max_source_length, max_target_length
        rows = alignable_pairs(source_ids[:-1], target_ids, max_lengths, self.warn)
        lengths = [max(len(source_ids[i]), len(target_ids[i])) + 1 for i in rows]
        source, target = map(SpecialIds.of, (self.tokenizer, self.target_tokenizer))

        def align_batch(batch):
            source_rows = [[*source_ids[i], source.end] for i in batch]
            target_rows = [[target.start, *target_ids[i]] for i in batch]
            inputs = {
                "source_ids": pad_rows(source_rows, source.pad),
                "target_ids": pad_rows(target_rows, target.pad),
            }
            scores = self._call(alignment_scores, inputs)
            sides = source_surfaces, target_surfaces
            return attend_units(scores, *([side[i] for i in batch] for side in sides))

        aligned = [[] for _ in sources]
        batches = batch_by_length(lengths, self._batch_tokens())
        batches = [[rows[i] for i in batch] for batch in batches]
        for batch, found in parallel_map(align_batch, batches, self.parallel_parts):
            for i, attended in zip(batch, found, strict=True):
                aligned[i] = align_units(*attended, prefix, sources[i])
        return aligned

    def fingerprint(self):
        """Returns a hash of vocabulary, architecture and weights, as hex digits."""
        digest = hashlib.sha256(self.tokenizer.fingerprint().encode())
        if self.target_tokenizer is not self.tokenizer:
            digest.update(self.target_tokenizer.fingerprint().encode())
        for model in getattr(self.model, "models", (self.model,)):
            config = {**model.get_config(), "name": None}  # Keras numbers the names
            digest.update(json.dumps(config, sort_keys=True).encode())
            for weight in model.get_weights():
                digest.update(weight.tobytes())
        return digest.hexdigest()

    @functools.cached_property
    def characters(self):
        """The characters of the source's vocabulary (see `find_spans`)."""
        return self.tokenizer.characters()

    @functools.cached_property
    def unknown_characters(self):
        """Characters that the source's vocabulary cannot spell (see `find_spans`)."""
        return self.tokenizer.unknown_characters()

    @property
    def text_options(self):
        """How texts are divided, `TextOptions`."""
        # Imported here because it loads TensorFlow.
        from keras_transformer.decoding.text import TextOptions

        return TextOptions.of(self.tokenizer, self.search)

    @functools.cached_property
    def _prefix_ends(self):
        return PrefixEnds(self.target_tokenizer)

    @functools.cached_property
    def _word_edges(self):
        return word_edges(self.target_tokenizer)

    def _forbid(self, phrases):
        phrases = tuple(check_texts(phrases, "forbidden"))
        tokenizer = self.target_tokenizer
        try:
            automaton = build_text_automaton(tokenizer, phrases) if phrases else None
        except ValueError as error:
            raise ModelError(str(error)) from None
        self.forbidden, self._automaton = phrases, automaton

    def _use_glossary(self, terms):
        terms = list(terms)
        targets = [[[each] for each in term.targets] for term in terms]
        try:
            encoded = self._encode_required(targets)
        except ModelError:
            for term, phrases in zip(terms, targets, strict=True):
                try:
                    self._encode_required([phrases])
                except ModelError as error:
                    raise ModelError(f"{term.place}: {error}") from None
            raise
        # Sources and translations are spelled as their tokenizers spell them.
        sources = encode_texts(self.tokenizer, [term.source for term in terms])
        for term, row in zip(terms, sources, strict=True):
            if self.tokenizer.unknown_id in row:
                raise ModelError(
                    f"{term.place}: the model's vocabulary cannot spell the source "
                    f"phrase {term.source!r}"
                )
        sources = spell_texts(self.tokenizer, [term.source for term in terms])
        self.glossary = terms
        self._glossary = Glossary(
            [
                term._replace(source=source or term.source)
                for term, source in zip(terms, sources, strict=True)
            ]
        )
        texts = [text for term in terms for text in term.targets]
        spelled = iter(spell_texts(self.target_tokenizer, texts))
        self._term_targets = [
            tuple(next(spelled) for _ in term.targets) for term in terms
        ]
        self._term_ids = [[ids for (ids,) in phrases] for phrases in encoded]

    def _encode_required(self, required):
        return encode_required(
            self.target_tokenizer, required, self.model, self._automaton
        )

    def _call(self, function, inputs, forbidden=(), **options):
        """Calls a function of the model and of arrays, `inputs`, compiled.

        Calls that differ only in their arrays share one compiled function.
        """
        names = tuple(inputs)
        key = function, names, forbidden, *options.items()
        if key not in self._compiled:
            if forbidden:
                options["automaton"] = self._automaton

            def call(*arrays):
                arguments = dict(zip(names, arrays, strict=True))
                if "first_ids" in arguments:
                    arguments["first_ids"] = arguments["first_ids"][:, 0]
                if "seed" in arguments:  # what follows its two numbers is padding
                    arguments["seed"] = FixedSeed(arguments["seed"][0, :2])
                if "prefix_ends" in arguments:
                    bounds = arguments.pop("prefix_starts"), arguments["prefix_ends"]
                    arguments["prefix_ends"] = ops.stack(bounds, axis=2)
                    arguments["token_ranks"] = self._prefix_ends.ranks
                if "required_ids" in arguments:
                    arguments["word_edges"] = self._word_edges
                return function(self.model, **arguments, **options)

            # Another thread may have been faster.
            compiled = compile_for_ids(call, len(names), self.model, self.model.pad_id)
            self._compiled.setdefault(key, compiled)
        return self._compiled[key](*inputs.values())

    def _batch_tokens(self, num_samples=1):
        if self.batch_tokens is not None:
            return self.batch_tokens
        # More rows per sentence leave memory for fewer sentences.
        rows_per_sentence = max(4, self.search.beam_size, num_samples)
        return 4 * BATCH_TOKENS // rows_per_sentence

    def _segment(self, lines, has_prefixes, warnings):
        """Yields the `Segments` of each group of lines.

        Appends to `warnings`, a list per line, for long lines and for text that is not
        translated.
        """
        # Imported here because it loads TensorFlow.
        from keras_transformer.decoding.text import segment, untranslated_warnings

        options = self.text_options
        # A prefix determines the case of the translation.
        options = options._replace(case=options.case and not has_prefixes)
        num_lines = 0
        for group in group_texts(lines):
            found = segment(
                self.tokenizer.tokenize,
                group,
                self.max_source_length - 1,
                getattr(self.tokenizer, "split_language_prefix", None),
                options,
                getattr(self.tokenizer, "first_ids", None),
            )
            is_blank = found.ids.row_lengths().numpy() == 0
            counts = np.bincount(found.text_index.numpy()[~is_blank], None, len(group))
            lengths, truncated = found.lengths.numpy(), found.truncated.numpy()
            for index in np.flatnonzero(lengths >= self.max_source_length):
                message = (
                    f"{lengths[index] + 1} subwords, including the end id, exceed "
                    f"max_source_length={self.max_source_length}. The text is split "
                    f"into {counts[index]} segments."
                )
                if truncated[index]:
                    message += " Words that are too long are cut."
                warnings[num_lines + index].append(message)
            for index, message in untranslated_warnings(found, options.scripts):
                warnings[num_lines + index].append(message)
            num_lines += len(group)
            yield found

    def _run(
        self,
        function,
        lines,
        num_places,
        prefixes,
        seed=None,
        required=None,
        protected=None,
        **options,
    ):
        """Runs a search that returns `num_places` translations per segment.

        Returns for each line all translations, or its `n_best` different ones if that
        is one of the search's options.
        """
        lines = check_texts(lines)
        if prefixes is not None:
            _, prefixes = check_pairs(lines, prefixes, ("lines", "prefixes"))
            encoded = encode_prefixes(self.target_tokenizer, prefixes, self.model)
            ends = map(self._prefix_ends.of, encoded, prefixes)
            prefixes = [*zip(encoded, ends, strict=True)]
        warnings = [[] for _ in lines]
        groups = list(self._segment(lines, prefixes is not None, warnings))
        rows = [row for segments in groups for row in segments.ids.to_list()]
        first_ids = [segments.first_ids for segments in groups]
        first_ids = None if None in first_ids else np.concatenate([[], *first_ids])
        if prefixes is not None:
            prefixes = _prefixes_of_segments(groups, prefixes, first_ids)
        required_rows, needed = [[]] * len(rows), []
        if seed is None and (required is not None or self.glossary):
            required = [[]] * len(lines) if required is None else required
            protected = [[]] * len(lines) if protected is None else protected
            required_rows, needed = self._required_of_segments(
                groups, required, protected
            )
        target = self.target_tokenizer
        options["ids"] = SpecialIds.of(target, self.tokenizer)
        options["vocabulary_size"] = target.vocabulary_size
        end_id, pad_id = self.tokenizer.end_id, self.tokenizer.pad_id

        def translate_batch(numbered):
            number, batch = numbered
            source_rows = [[*rows[k], end_id] for k in batch]
            inputs = {"source_ids": pad_rows(source_rows, pad_id)}
            if seed is not None:
                # The seed is an input, because calls in other threads have other seeds.
                inputs["seed"] = np.array([[seed % 2**31, number]], "int32")
            if prefixes is not None:
                prefix_rows, ends = zip(*(prefixes[k] for k in batch), strict=True)
                inputs["prefix_ids"] = pad_rows(prefix_rows, target.pad_id)
                # Padding gives empty ranges.
                for place, name in enumerate(("prefix_starts", "prefix_ends")):
                    bounds = [[pair[place] for pair in row] for row in ends]
                    inputs[name] = pad_rows(bounds, target.pad_id)
            if first_ids is not None:
                inputs["first_ids"] = pad_rows([[first_ids[k]] for k in batch])
            if any(required_rows[k] for k in batch):
                required_ids = [required_rows[k] for k in batch]
                inputs["required_ids"] = pad_rows(required_ids, target.pad_id)
            found = self._call(
                function, inputs, self.forbidden, is_checked=True, **options
            )
            sequences, found_scores = map(np.asarray, found)
            means = np.zeros(len(batch))
            if self.low_score is not None and seed is None:
                means = mean_log_probs(
                    *(sequences, found_scores, options["search"], target.pad_id),
                    int(first_ids is not None),
                )
            is_cut = is_cut_off(sequences, found_scores, target.end_id)
            return *_texts_of(target, sequences, found_scores), is_cut, means

        texts = np.full((len(rows), num_places), b"", object)
        scores = np.zeros((len(rows), num_places))
        counts = np.ones(len(rows), "int32")  # a blank segment has an empty translation
        is_cut, means = np.zeros(len(rows), bool), np.zeros(len(rows))
        used = [k for k, row in enumerate(rows) if row]
        lengths = [len(rows[k]) + 1 for k in used]
        num_samples = 1 if seed is None else num_places
        batches = batch_by_length(lengths, self._batch_tokens(num_samples))
        batches = enumerate([used[i] for i in batch] for batch in batches)
        found = parallel_map(translate_batch, batches, self.parallel_parts)
        for (_, batch), results in found:
            arrays = texts, scores, counts, is_cut, means
            for array, result in zip(arrays, results, strict=True):
                array[batch] = result
        joined = _join(groups, texts, scores, counts, options.get("n_best"))
        text_of = _text_indices(groups)
        for index in set(itertools.compress(text_of, is_cut)):
            warnings[index].append(CUT_OFF)
        if self.low_score is not None:
            lowest = dict(sorted(zip(text_of, means, strict=True), key=lambda x: -x[1]))
            for index, mean in lowest.items():
                if mean < self.low_score:
                    warnings[index].append(LOW_SCORE.format(mean, self.low_score))
        for index, pairs in enumerate(needed):
            joined[index] = add_unmet(joined[index], pairs)
        is_text = self.data is None or self.data.kind != "trees"
        return add_warnings(lines, joined, warnings, self.warn, is_text)

    def _required_of_segments(self, groups, required, protected):
        """Returns the ids that describe each segment's phrases (see `required_row`).

        A phrase belongs to the first segment whose source contains it, or if none does,
        to the first one. Those of the glossary belong to the segments with their terms.
        Also returns, for each text, its phrases and the warnings if it lacks them.
        """
        from keras_transformer.decoding.text import CAPITALS

        encoded = self._encode_required(required)
        texts = [text for phrases in required for phrase in phrases for text in phrase]
        spelled = iter(spell_texts(self.target_tokenizer, texts))
        needed = []
        rows, num_texts = [], 0
        for segments in groups:
            ids = segments.ids.to_tensor(self.tokenizer.pad_id)
            sources = self.tokenizer.detokenize(ids).numpy()
            sources = [each.decode("utf-8", "replace") for each in sources]
            is_blank = segments.ids.row_lengths().numpy() == 0
            of_text = segments.text_index.numpy()
            in_capitals = np.zeros(len(sources), bool)
            if segments.cases is not None:
                in_capitals = segments.cases.numpy() == CAPITALS
            found = [[] for _ in sources]
            for text in range(len(segments.lengths)):
                places = np.flatnonzero((of_text == text) & ~is_blank)
                index = num_texts + text
                needed.append([])
                for phrase, ids in zip(required[index], encoded[index], strict=True):
                    spellings = tuple(next(spelled) for _ in phrase)
                    for place in places[:1]:
                        inside = (
                            k for k in places if any(x in sources[k] for x in phrase)
                        )
                        found[next(inside, place)].append(ids)
                        message = f"the translation lacks {phrase[0]!r}"
                        needed[index].append((spellings, message))
                parts = ()
                if self.glossary and protected[index]:
                    parts = spell_texts(self.tokenizer, protected[index])
                for place in places:
                    for term in self._glossary.find(
                        sources[place], parts, in_capitals[place]
                    ):
                        found[place].append(self._term_ids[term])
                        message = self.glossary[term].warning()
                        needed[index].append((self._term_targets[term], message))
            rows += map(required_row, found)
            num_texts += len(segments.lengths)
        return rows, needed


def _check_required(lines, required):
    """Checks required phrases, and returns each as a list of alternatives."""
    required = [
        [[each] if isinstance(each, str) else list(each) for each in phrases]
        for phrases in required
    ]
    if len(required) != len(lines):
        raise ValueError(
            "`lines` and `required` must have the same length. Received: "
            f"{len(lines)} lines and {len(required)} required."
        )
    return required


def _prefixes_of_segments(groups, prefixes, first_ids):
    """Returns the prefix of each segment: its ids, and how its last word may go on.

    Only the first segment of a text that is not blank has the text's prefix. The first
    ids of translations, if there are any, come before it.
    """
    rows, num_texts = [], 0
    for segments in groups:
        rest = dict(enumerate(prefixes[num_texts : num_texts + len(segments.lengths)]))
        lengths = segments.ids.row_lengths().numpy()
        for index, length in zip(segments.text_index.numpy(), lengths, strict=True):
            rows.append(rest.pop(index, ([], [])) if length else ([], []))
        num_texts += len(segments.lengths)
    if first_ids is not None:
        rows = [
            ([int(one), *ids], [[0, 0], *ends])
            for one, (ids, ends) in zip(first_ids, rows, strict=True)
        ]
    return rows


def _text_indices(groups):
    """Returns the index of each segment's text."""
    indices, num_texts = [], 0
    for segments in groups:
        indices += (segments.text_index.numpy() + num_texts).tolist()
        num_texts += len(segments.lengths)
    return indices


def _texts_of(tokenizer, sequences, scores):
    """Returns texts, scores, and the number of translations found of each segment.

    `sequences` are int32 `[batch, n, length]`. `scores` are float32 `[batch, n]`, -inf
    for empty slots, and otherwise must be finite.
    """
    if not np.all(scores < np.inf):
        raise ModelError(NOT_FINITE)
    texts = tokenizer.detokenize(np.reshape(sequences, (-1, sequences.shape[2])))
    texts = np.reshape(texts.numpy(), scores.shape)
    # The slots that were found come first. If none was, the first is an empty one.
    is_found = scores > -np.inf
    order = np.argsort(~is_found, axis=1, kind="stable")
    texts, scores = (np.take_along_axis(x, order, axis=1) for x in (texts, scores))
    return texts, scores, np.maximum(np.sum(is_found, axis=1), 1)


def _join(groups, texts, scores, counts, n_best):
    """Joins the translations of segments into lists of `Translation`, one per text."""
    import tensorflow as tf

    from keras_transformer.decoding.text import join_segments, merge_equal_texts

    joined, start = [], 0
    for segments in groups:
        rows = slice(start, start + len(segments.gaps))
        start = rows.stop
        with tf.device("CPU"):  # on a GPU, sums have no fixed order
            found = texts[rows], scores[rows], counts[rows]
            # Operations on a few texts take milliseconds, so needless ones are skipped.
            is_changed = segments.kept is not None
            if is_changed or len(segments.gaps) > len(segments.lengths):
                found = join_segments(segments, *map(tf.constant, found))
            if n_best not in (None, 1):
                found = merge_equal_texts(*map(tf.convert_to_tensor, found[:2]), n_best)
        joined += collect_translations(*map(np.asarray, found))
    return joined


def collect_translations(texts, scores, counts):
    """Returns for each row a list of its first `counts` texts as `Translation`s.

    `texts` are bytes `[rows, n]`, `scores` float `[rows, n]`, and `counts` int
    `[rows]`.
    """
    return [
        [
            Translation(text.decode("utf-8", "replace"), score)
            for text, score in zip(row[:count], row_scores, strict=False)
        ]
        for row, row_scores, count in zip(texts, scores.tolist(), counts, strict=True)
    ]
