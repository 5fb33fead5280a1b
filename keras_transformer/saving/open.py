"""Opening a trained model wherever it lies: run folder, .keras file, SavedModel."""

import hashlib
import pathlib

from keras_transformer.decoding.scoring import PairScore
from keras_transformer.errors import ModelError
from keras_transformer.recipes import load_recipe
from keras_transformer.saving.load import load_model
from keras_transformer.saving.names import CONFIG
from keras_transformer.saving.names import keras_file
from keras_transformer.saving.saved_model import newest_version
from keras_transformer.saving.saved_model import open_saved_model


def open_model(path, warn=None, ensemble=(), allow_unsafe=False, parallel_batches=1):
    """Opens a model for translating.

    Args:
        path: a run folder, a `.keras` file with its tokenizer beside it, or a
            SavedModel folder (a version, or its parent: the newest version).
        warn: function that is called with each warning (str). None: they go to the
            logger "keras_transformer".
        ensemble: paths of more runs and `.keras` files of the same vocabulary, whose
            probabilities count as much as the first one's.
        allow_unsafe: whether a `.keras` file or SavedModel is read that may hold
            more than a model of ours does, and so may run any code; see
            docs/security.md.
        parallel_batches: batches that are searched or scored at a time, see
            `Translator`.

    Returns:
        An object with `translate(lines, beam_size=None, length_penalty=None,
        n_best=1, first_line=1, prefixes=None, forbidden=(), patience=None)`, for each
        line a list of 1 to `n_best` `Translation` (text, score), best first;
        `sample(lines, num_samples=1, first_line=1, prefixes=None, forbidden=(),
        **options)`, translations drawn at random, as `Translator.sample` has them;
        `fingerprint()`, a text that tells its weights; `parse(sentences,
        beam_size=None, length_penalty=None, first_line=1, patience=None)`, for each a
        `parsing.Parse`;
        `score(sources, targets)`, a list of `PairScore`;
        `align(sources, targets, line_numbers=None)`, what `Translator.align` gives;
        `attention(source, target)`, what `visualization.attention_of` gives;
        `export(folder, beam_size=None, length_penalty=None, scores=(), license=None,
        tokenizer_ops="text", parallel_parts=1, jit_compile=False, patience=None)`, the
        path of the version written, see `export_saved_model`, for scores and licence
        `model_card`, for "core" `pipelines.CoreOpsBytePairTokenizer`; and
        `export_ctranslate2(folder, quantization="none")`. None stands for the recipe's
        setting. A SavedModel can only translate, and only as it was exported; an
        ensemble can translate, sample, score and parse.

    Raises:
        ModelError: nothing there, no model in it, one that is refused, not the
            tokenizer's model, or an ensemble of several vocabularies.
    """
    path = pathlib.Path(path)
    version = newest_version(path) if path.is_dir() else None
    if version is not None and not ensemble:
        return open_saved_model(version, warn, allow_unsafe, parallel_batches)
    opened = _open_weights(path, warn, allow_unsafe, parallel_batches)
    return _together(opened, ensemble, allow_unsafe) if ensemble else opened


def _together(opened, paths, allow_unsafe):
    """The first model as an ensemble with those at `paths`."""
    from keras_transformer.decoding import Ensemble

    first = opened.tokenizer
    models = [opened.model]
    for path in paths:
        path, tokenizer, model = load_model(path, allow_unsafe)
        if tokenizer.fingerprint() != first.fingerprint():
            raise ModelError(
                f"{path}: its vocabulary is another one than that of {opened.path} "
                f"({tokenizer.vocabulary_size} and {first.vocabulary_size} sub-words); "
                "the models of an ensemble must share theirs"
            )
        models.append(model)
    try:
        return opened.with_model(_Ensemble, Ensemble(models))
    except ValueError as error:
        raise ModelError(f"{opened.path}: {error}") from None


def _open_weights(path, warn, allow_unsafe, parallel_batches):
    """A run's folder or a `.keras` file, with the recipe in its folder."""
    file = keras_file(path)
    config = (file.parent if file else path) / CONFIG
    recipe = load_recipe(config) if config.is_file() else None
    search = _search_settings(recipe) if recipe else {}
    path, tokenizer, model = load_model(path, allow_unsafe)
    data = recipe.data if recipe else None
    return _TextModel(path, model, tokenizer, search, warn, data, parallel_batches)


def _search_settings(recipe):
    """The arguments of `Translator` and of the export that a recipe decides."""
    max_length = recipe.data.max_length
    return {**recipe.decoding.model_dump(), "max_source_length": max_length}


class _TextModel:
    """A `Transformer` with its tokenizer; see `open_model`."""

    def __init__(
        self, path, model, tokenizer, search, warn, data=None, parallel_batches=1
    ):
        self.path = path
        self.model = model
        self.tokenizer = tokenizer
        self.data = data
        self._search = search
        self._warn = warn
        self._parallel_batches = parallel_batches
        # A translator compiles its search, so that one is kept for each setting.
        self._translators = {}

    def with_model(self, kind, model):
        """The same as a `kind`, a class like this one, of another model."""
        return kind(
            *(self.path, model, self.tokenizer, self._search, self._warn, self.data),
            self._parallel_batches,
        )

    def translate(
        self,
        lines,
        beam_size=None,
        length_penalty=None,
        n_best=1,
        first_line=1,
        prefixes=None,
        forbidden=(),
        patience=None,
    ):
        translator = self._translator(
            self._settings(beam_size, length_penalty, patience), forbidden
        )
        if n_best > translator.beam_size:
            raise ModelError(
                f"an n-best list of {n_best} needs a beam size of at least {n_best}; "
                f"it is {translator.beam_size}"
            )
        return translator.translate_n_best(lines, n_best, first_line, prefixes)

    def sample(
        self,
        lines,
        num_samples=1,
        first_line=1,
        prefixes=None,
        forbidden=(),
        **options,
    ):
        return self._translator(self._search, forbidden, num_samples).sample(
            lines, num_samples, first_line=first_line, prefixes=prefixes, **options
        )

    def fingerprint(self):
        digest = hashlib.sha256(self.tokenizer.fingerprint().encode())
        for model in getattr(self.model, "models", (self.model,)):
            for weight in model.get_weights():
                digest.update(weight.tobytes())
        return digest.hexdigest()

    def parse(
        self,
        sentences,
        beam_size=None,
        length_penalty=None,
        first_line=1,
        patience=None,
    ):
        from keras_transformer.parsing.parser import parse_sentences

        if self.data is None:
            raise ModelError(
                f"{self.path}: does not tell how it spells trees; use the run's folder"
            )
        if self.data.kind != "trees":
            raise ModelError(
                f"{self.path}: was trained on data.kind {self.data.kind}; parsing "
                "needs a model of data.kind trees"
            )

        def translate(lines, first_line):
            return self.translate(
                lines,
                beam_size=beam_size,
                length_penalty=length_penalty,
                n_best=self._settings(beam_size).get("beam_size", 4),
                first_line=first_line,
                patience=patience,
            )

        return parse_sentences(translate, sentences, first_line, self.data.words)

    def score(self, sources, targets):
        from keras_transformer.decoding.batches import tokenized

        log_probs = self._translator(self._search).score(sources, targets)
        return [
            PairScore(float(log_prob), len(ids) + 1)
            for log_prob, ids in zip(
                log_probs, tokenized(self.tokenizer, targets), strict=True
            )
        ]

    def align(self, sources, targets, line_numbers=None):
        return self._translator(self._search).align(sources, targets, line_numbers)

    def attention(self, source, target):
        from keras_transformer.visualization import attention_of

        return attention_of(self.model, self.tokenizer, source, target)

    def export(
        self,
        folder,
        beam_size=None,
        length_penalty=None,
        scores=(),
        license=None,
        tokenizer_ops="text",
        parallel_parts=1,
        jit_compile=False,
        patience=None,
    ):
        from keras_transformer import pipelines
        from keras_transformer.export import export_saved_model
        from keras_transformer.export import facts_of_run
        from keras_transformer.export import model_card

        search = self._settings(beam_size, length_penalty, patience)
        facts = facts_of_run(self.path if self.path.is_dir() else self.path.parent)
        card = model_card(
            self.model, self.tokenizer, search, **facts, scores=scores, license=license
        )
        tokenizer = self.tokenizer
        if tokenizer_ops == "core":
            if tokenizer.kind != "bpe":
                raise ModelError(
                    f"{self.path}: only byte pairs can do with TensorFlow's own "
                    f"operations, and its vocabulary is of {tokenizer.kind}"
                )
            tokenizer = pipelines.CoreOpsBytePairTokenizer(tokenizer)
        return export_saved_model(
            self.model,
            tokenizer,
            folder,
            **search,
            card=card,
            parallel_parts=parallel_parts,
            jit_compile=jit_compile,
        )

    def export_ctranslate2(self, folder, quantization="none"):
        from keras_transformer.export import export_ctranslate2

        return export_ctranslate2(self.model, self.tokenizer, folder, quantization)

    def _translator(self, search, forbidden=(), num_samples=1):
        from keras_transformer.decoding import Translator

        # With many rows for each sentence fewer at once, for the same memory.
        widest = max(4, search.get("beam_size", 4), num_samples)
        key = (*search.items(), tuple(forbidden), widest)
        if key not in self._translators:
            try:
                self._translators[key] = Translator(
                    self.model,
                    self.tokenizer,
                    **search,
                    batch_tokens=4 * 4096 // widest,
                    warn=self._warn,
                    forbidden=forbidden,
                    parallel_batches=self._parallel_batches,
                )
            except ValueError as error:
                if not forbidden:
                    raise
                raise ModelError(str(error)) from None
        return self._translators[key]

    def _settings(self, beam_size=None, length_penalty=None, patience=None):
        given = {
            "beam_size": beam_size,
            "length_penalty": length_penalty,
            "patience": patience,
        }
        given = {name: value for name, value in given.items() if value is not None}
        return {**self._search, **given}


class _Ensemble(_TextModel):
    """Several models that decode as one; see `open_model`."""

    def align(self, sources, targets, line_numbers=None):
        raise ModelError(f"{self.path}: an ensemble gives no alignments")

    def attention(self, source, target):
        raise ModelError(f"{self.path}: an ensemble does not tell where it looks")

    def export(self, folder, *_, **__):
        raise ModelError(f"{self.path}: an ensemble cannot be exported")

    def export_ctranslate2(self, folder, quantization="none"):
        raise ModelError(f"{self.path}: an ensemble cannot be exported")
