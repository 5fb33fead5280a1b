"""Translation with an exported SavedModel."""

import copy
import functools
import hashlib
import types

import numpy as np
import tensorflow as tf

from keras_transformer.decoding.alignment import align_units
from keras_transformer.decoding.batches import check_pairs, check_texts, log_warning
from keras_transformer.decoding.compiled import parallel_map
from keras_transformer.decoding.glossary import Glossary, add_unmet
from keras_transformer.decoding.markup import translate_marked
from keras_transformer.decoding.options import check_at_least
from keras_transformer.decoding.scoring import PairScore
from keras_transformer.decoding.spans import PROTECTED
from keras_transformer.decoding.text import (
    TextOptions,
    join_segments,
    report_untranslated,
    segment,
    split_characters,
    split_languages,
)
from keras_transformer.decoding.translator import collect_translations
from keras_transformer.decoding.warnings import (
    TRUNCATED,
    add_warnings,
    export_warnings,
)
from keras_transformer.errors import NOT_FINITE, ModelError
from keras_transformer.export.load import load_saved_model


class ExportedTranslator:
    """Translates text with an export, whose search settings are fixed.

    It has the methods of `Translator` that an export supports.

    Args:
        path: Folder of one version of the export.
        allow_unsafe: Whether to skip the checks. An unchecked SavedModel can run any
            code.
        parallel_parts: Number of batches that are computed in parallel.
        warn: Called with the index of a text and each warning about its translation.
            By default, warnings are logged (see `Translator`).

    Raises:
        ModelError: If the SavedModel fails the checks, is damaged, or is not an export.

    Examples:
        >>> exported = kt.export.ExportedTranslator("saved_models/phrases/1")
        >>> translations = exported.translate(["12 euros"])
    """

    batch_size = 64
    data = None  # an export does not contain the recipe
    glossary = ()

    def __init__(self, path, allow_unsafe=False, parallel_parts=1, warn=None):
        self.path = path
        self.warn = warn or log_warning
        self.parallel_parts = parallel_parts
        # The loaded object owns the variables. Signatures work only while it exists.
        self._loaded, limits = load_saved_model(path, allow_unsafe)
        self._set_limits(limits)

    def _set_limits(self, limits):
        self.batch_size = min(self.batch_size, limits.max_batch_size)
        self.low_score = limits.low_score
        self.characters = frozenset(limits.characters)
        self.unknown_characters = frozenset(limits.unknown_characters)
        self.languages = limits.languages  # of a multilingual model
        self.text_options = limits.text_options()

    @classmethod
    def of_signatures(cls, signatures, path, batch_size, limits):
        """Returns a translator that calls the given functions instead of an export.

        `signatures` maps names to functions that return tensors or arrays, and `limits`
        are `ExportLimits`. Warnings are not logged, but only added to translations.
        """
        translator = cls.__new__(cls)
        translator._loaded = types.SimpleNamespace(signatures=signatures)
        translator.path, translator.batch_size = path, batch_size
        translator._set_limits(limits)
        translator.parallel_parts, translator.warn = 1, lambda index, text: None
        return translator

    def __repr__(self):
        signatures = ", ".join(sorted(self._loaded.signatures))
        return f"ExportedTranslator({self.path}: {signatures})"

    def with_search(self, glossary):
        """Returns a copy that uses a glossary, a list of `Term` (see `Translator`).

        Raises:
            ModelError: If the model was exported without constraints.
        """
        if "translate_constrained" not in self._loaded.signatures:
            raise ModelError(
                f"{self.path}: cannot use a glossary. Export the model with "
                "--constraints"
            )
        other = copy.copy(self)
        other.glossary, other._glossary = glossary, Glossary(glossary)
        return other

    def translate(self, lines, protect=PROTECTED):
        """Same as `Translator.translate`.

        Returns:
            List of str, one per line.
        """
        return translate_marked(self, check_texts(lines), "text", protect)

    def n_best(self, lines, n=None, protected=None):
        """Like `Translator.n_best`, but without prefixes and required phrases.

        `n` defaults to the beam size of the export. A line with terms of the glossary
        has one translation.

        Returns:
            List with a list of `Translation` per line, best first.

        Raises:
            ValueError: If `lines` is not a list of str, or `n` is below 1.
            ModelError: If `n` exceeds the beam size of the export, or the model
                computes NaN.
        """
        lines = check_texts(lines)
        check_at_least("n", 1 if n is None else n, 1)
        name = "serving_default" if n == 1 else "translate_n_best"

        def lists(outputs):
            # There is one column per hypothesis of the beam.
            shape = len(outputs["truncated"]), -1
            texts, scores = (
                np.reshape(outputs[each], shape) for each in ("translations", "scores")
            )
            beam_size = texts.shape[1]
            if n is not None and n > beam_size:
                raise ModelError(
                    f"{self.path}: cannot return an n-best list of {n}, because it was "
                    f"exported with a beam size of {beam_size}. Export the model with "
                    f"`beam_size` of at least {n}"
                )
            texts, scores = texts[:, :n], scores[:, :n]
            counts = outputs.get("counts", np.ones(len(texts), int))
            return zip(
                collect_translations(texts, scores, counts),
                export_warnings(outputs, self.low_score),
                strict=True,
            )

        protected = [()] * len(lines) if protected is None else protected
        pairs = zip(lines, protected, strict=True)
        steered = {
            index: pair
            for index, pair in enumerate(pairs)
            if self.glossary and self._glossary.find(*pair)
        }
        plain = ["" if index in steered else line for index, line in enumerate(lines)]
        found = self._run(name, {"inputs": plain}, lists)
        if steered:
            results = self._translate_terms(*zip(*steered.values(), strict=True))
            for index, result in zip(steered, results, strict=True):
                found[index] = result
        ranked, warnings = ([pair[i] for pair in found] for i in (0, 1))
        texts = [line.encode("utf-8", "replace") for line in lines]
        kept = report_untranslated(texts, self.text_options)
        warnings = [[*one, *two] for one, two in zip(warnings, kept, strict=True)]
        return add_warnings(lines, ranked, warnings, self.warn)

    def _translate_terms(self, lines, protected):
        """Yields translations and warnings of lines with terms of the glossary.

        The search translates single sentences.
        """
        segments = segment(
            # An export has no function that only tokenizes. Characters will do.
            split_characters,
            [line.encode("utf-8", "replace") for line in lines],
            *(2**30, split_languages),
            TextOptions(layout=True, sentences=True),
        )
        sources = tf.strings.unicode_encode(segments.ids, "UTF-8").numpy()
        sources, text_of = [each.decode() for each in sources], segments.text_index
        needed, required = [[] for _ in lines], []
        for source, index in zip(sources, text_of.numpy(), strict=True):
            # Equal phrases must follow each other.
            found = sorted(self._glossary.find(source, protected[index]))
            terms = [self.glossary[each] for each in found]
            required.append("\n".join("|".join(each.targets) for each in terms))
            needed[index] += [(each.targets, each.warning()) for each in terms]
        columns = {"inputs": sources, "prefixes": [""] * len(sources)}
        names = "translations", "scores", "truncated"
        results = self._run(
            "translate_constrained",
            {**columns, "required": required},
            lambda outputs: zip(*(outputs[name] for name in names), strict=True),
        )
        *results, is_cut = zip(*results, strict=True)
        texts, scores = (tf.constant(each)[:, None] for each in results)
        counts = tf.ones([len(sources)], tf.int32)
        joined = join_segments(segments, texts, scores, counts)
        ranked = collect_translations(*map(np.asarray, joined))
        cut = {*text_of.numpy()[np.array(is_cut)]}
        message = f"{TRUNCATED}, or the model cannot generate a term"
        for index, (translations, pairs) in enumerate(zip(ranked, needed, strict=True)):
            yield add_unmet(translations, pairs), [message] * (index in cut)

    def score(self, sources, targets):
        """Like `Translator.score`, but cuts texts that are too long, with a warning.

        Returns:
            List of `PairScore`, one per pair.

        Raises:
            ValueError: If the lists differ in length or are not lists of str.
        """
        sources, targets = check_pairs(sources, targets)

        def pair_scores(outputs):
            columns = outputs["log_probs"].tolist(), outputs["num_tokens"].tolist()
            return map(PairScore, *columns)

        message = "too long for the export. Only its beginning was scored."
        columns = {"inputs": sources, "targets": targets}
        return self._run("score", columns, pair_scores, message)

    def attend(self, sources, targets):
        """Computes the mean cross-attention of the decoder's last two layers.

        Args:
            sources: List of str.
            targets: List of str, their translations.

        Returns:
            For each pair, a tuple of the source subwords (list of str), the target
            subwords (list of str), and their attention, float32 `[target_subwords,
            source_subwords]`. Subwords that share a character are joined. For a pair
            with a text that is too long for the export, `None`.

        Raises:
            ValueError: If the lists differ in length or are not lists of str.
        """
        sources, targets = check_pairs(sources, targets)

        def attentions(outputs):
            names = "source_pieces", "target_pieces", "attention", "truncated"
            for *sides, attention, is_cut in zip(*map(outputs.get, names), strict=True):
                source, target = map(_decode_pieces, sides)
                scores = attention[: len(target), : len(source)]
                yield None if is_cut else (source, target, scores)

        columns = {"inputs": sources, "targets": targets}
        return self._run("attend", columns, attentions)

    def align(self, sources, targets):
        """Like `Translator.align`, but with the length limits of the export.

        Returns:
            As `Translator.align`. The list of a pair that is too long is empty, with a
            warning.

        Raises:
            ValueError: If the lists differ in length or are not lists of str.
        """
        aligned = []
        for index, found in enumerate(self.attend(sources, targets)):
            if found is None:
                self.warn(index, "too long for the export. It was not aligned.")
                aligned.append([])
                continue
            *sides, scores = found
            source, target, prefix = (
                [piece.encode() for piece in side]
                for side in (*sides, self._source_prefix)
            )
            aligned.append(align_units(source, target, scores, prefix, sources[index]))
        return aligned

    @functools.cached_property
    def _source_prefix(self):
        """Subwords before each source: the language prefix of some Marian models.

        An empty text has no other subwords.
        """
        (found,) = self.attend([""], [""])
        return [] if found is None else found[0]

    def _run(self, name, columns, results_of, cut_message=None):
        """Runs a signature on batches of texts of similar lengths.

        `columns` are lists of texts by input. `results_of(outputs)` returns a list of
        one result per row of a batch. `cut_message` is a warning about each text that
        the export has cut.
        """
        signature = self._loaded.signatures[name]
        lengths = [max(map(len, row)) for row in zip(*columns.values(), strict=True)]
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        batches = [
            order[start : start + self.batch_size]
            for start in range(0, len(order), self.batch_size)
        ]

        def run_batch(rows):
            # UTF-8 cannot encode lone surrogates. They become question marks.
            inputs = {
                name: tf.constant([texts[i].encode("utf-8", "replace") for i in rows])
                for name, texts in columns.items()
            }
            try:
                outputs = signature(**inputs)
            except tf.errors.InvalidArgumentError as error:
                if NOT_FINITE not in str(error):
                    raise
                raise ModelError(f"{self.path}: {NOT_FINITE}") from error
            outputs = {name: np.asarray(value) for name, value in outputs.items()}
            return list(results_of(outputs)), outputs["truncated"]

        found, is_cut = [None] * len(order), [False] * len(order)
        batches = parallel_map(run_batch, batches, self.parallel_parts)
        for rows, (results, truncated) in batches:
            for row, result, each in zip(rows, results, truncated, strict=True):
                found[row], is_cut[row] = result, each
        if cut_message is not None:
            for row in np.flatnonzero(is_cut):
                self.warn(int(row), cut_message)
        return found

    def fingerprint(self):
        """Returns a hash of the graph and the weights, as hexadecimal digits."""
        digest = hashlib.sha256((self.path / "saved_model.pb").read_bytes())
        for path in sorted((self.path / "variables").iterdir()):
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()


def _decode_pieces(pieces):
    """Returns the pieces of a row as text, without the empty ones at its end."""
    # An unknown id within the row may have an empty piece.
    size = max((index for index, piece in enumerate(pieces, 1) if piece), default=0)
    return [piece.decode("utf-8", "replace") for piece in pieces[:size]]
