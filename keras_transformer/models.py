"""Opening a trained model wherever it lies: run folder, .keras file, SavedModel."""

import hashlib
import math
import pathlib
from typing import NamedTuple

from keras_transformer.recipes import load_recipe
from keras_transformer.stored_models import CONFIG
from keras_transformer.stored_models import ModelError
from keras_transformer.stored_models import keras_file
from keras_transformer.stored_models import load_model


class PairScore(NamedTuple):
    """How probable a model finds a given translation."""

    log_prob: float  # natural logarithm, the end of the sentence included
    num_tokens: int  # target sub-words, the end counted as one


def perplexity_of(scores) -> float:
    """Perplexity per target sub-word over a list of `PairScore`."""
    num_tokens = sum(score.num_tokens for score in scores)
    return math.exp(-sum(score.log_prob for score in scores) / num_tokens)


def open_model(path, warn=None, ensemble=()):
    """Opens a model for translating.

    Args:
        path: a run folder, a `.keras` file with its tokenizer beside it, or a
            SavedModel folder (a version, or its parent: the newest version).
        warn: function that is called with each warning (str). None: they go to the
            logger "keras_transformer".
        ensemble: paths of more runs and `.keras` files of the same vocabulary, whose
            probabilities count as much as the first one's.

    Returns:
        An object with `translate(lines, beam_size=None, length_penalty=None,
        n_best=1, first_line=1, prefixes=None, forbidden=())`, for each line a list of
        1 to `n_best` `Translation` (text, score), best first; `sample(lines,
        num_samples=1, first_line=1, prefixes=None, forbidden=(), **options)`,
        translations drawn at random, options as `Translator.sample` has them;
        `fingerprint()`, a text that tells its weights; `parse(sentences,
        beam_size=None, length_penalty=None, first_line=1)`, for each a `parsing.Parse`;
        `score(sources, targets)`, a list of `PairScore`;
        `align(sources, targets, line_numbers=None)`, what `Translator.align` gives;
        `attention(source, target)`, what `visualization.attention_of` gives;
        `export(folder, beam_size=None, length_penalty=None, scores=(), license=None)`,
        the path of the version written, for the last two see `model_card`; and
        `export_ctranslate2(folder, quantization="none")`. None stands for the recipe's
        setting. A SavedModel can only translate, and only as it was exported; an
        ensemble can translate, sample, score and parse.

    Raises:
        ModelError: nothing there, no model in it, not the tokenizer's model, or an
            ensemble of several vocabularies.
    """
    path = pathlib.Path(path)
    version = newest_version(path) if path.is_dir() else None
    if version is not None and not ensemble:
        return _open_saved_model(version)
    opened = _open_weights(path, warn)
    return _together(opened, ensemble) if ensemble else opened


def _together(opened, paths):
    """The first model as an ensemble with those at `paths`."""
    from keras_transformer.decoding import Ensemble

    first = opened.tokenizer
    models = [opened.model]
    for path in paths:
        path, tokenizer, model = load_model(path)
        if tokenizer.fingerprint() != first.fingerprint():
            raise ModelError(
                f"{path}: its vocabulary is another one than that of {opened.path} "
                f"({tokenizer.vocabulary_size} and {first.vocabulary_size} sub-words); "
                "the models of an ensemble must share theirs"
            )
        models.append(model)
    return opened.with_model(_Ensemble, Ensemble(models))


def newest_version(path):
    """The folder at or below `path` that holds `saved_model.pb`, or None."""
    if (path / "saved_model.pb").is_file():
        return path
    versions = [
        folder
        for folder in path.iterdir()
        if folder.name.isdecimal() and (folder / "saved_model.pb").is_file()
    ]
    return max(versions, key=lambda folder: int(folder.name), default=None)


def _open_weights(path, warn):
    """A run's folder or a `.keras` file, with the recipe in its folder."""
    file = keras_file(path)
    config = (file.parent if file else path) / CONFIG
    recipe = load_recipe(config) if config.is_file() else None
    search = _search_settings(recipe) if recipe else {}
    path, tokenizer, model = load_model(path)
    data = recipe.data if recipe else None
    return _TextModel(path, model, tokenizer, search, warn, data)


def _search_settings(recipe):
    """The arguments of `Translator` and of the export that a recipe decides."""
    max_length = recipe.data.max_length
    return {**recipe.decoding.model_dump(), "max_source_length": max_length}


def load_saved_model(path):
    """What `tf.saved_model.load` gives for a version's folder.

    Raises:
        ModelError: it is damaged, or no export.
    """
    import tensorflow as tf
    import tensorflow_text  # noqa: F401, its operations are in the graph

    try:
        loaded = tf.saved_model.load(str(path))
        loaded.signatures["serving_default"]
    except (OSError, KeyError, ValueError, tf.errors.OpError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{path}: cannot be loaded: {reason}") from error
    return loaded


def _open_saved_model(path):
    loaded = load_saved_model(path)
    return _SavedModel(path, loaded, loaded.signatures["serving_default"])


class _TextModel:
    """A `Transformer` with its tokenizer; see `open_model`."""

    def __init__(self, path, model, tokenizer, search, warn, data=None):
        self.path = path
        self.model = model
        self.tokenizer = tokenizer
        self.data = data
        self._search = search
        self._warn = warn
        # A translator compiles its search, so that one is kept for each setting.
        self._translators = {}

    def with_model(self, kind, model):
        """The same as a `kind`, a class like this one, of another model."""
        return kind(
            self.path, model, self.tokenizer, self._search, self._warn, self.data
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
    ):
        translator = self._translator(beam_size, length_penalty, forbidden)
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
        return self._translator(None, None, forbidden).sample(
            lines, num_samples, first_line=first_line, prefixes=prefixes, **options
        )

    def fingerprint(self):
        digest = hashlib.sha256(self.tokenizer.fingerprint().encode())
        for model in getattr(self.model, "models", (self.model,)):
            for weight in model.get_weights():
                digest.update(weight.tobytes())
        return digest.hexdigest()

    def parse(self, sentences, beam_size=None, length_penalty=None, first_line=1):
        from keras_transformer.parsing import parse_sentences

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
                n_best=self._settings(beam_size, None).get("beam_size", 4),
                first_line=first_line,
            )

        return parse_sentences(translate, sentences, first_line, self.data.words)

    def score(self, sources, targets):
        log_probs = self._translator(None, None).score(sources, targets)
        lengths = self.tokenizer.tokenize(targets).row_lengths().numpy()
        return [
            PairScore(float(log_prob), int(length) + 1)
            for log_prob, length in zip(log_probs, lengths, strict=True)
        ]

    def align(self, sources, targets, line_numbers=None):
        return self._translator(None, None).align(sources, targets, line_numbers)

    def attention(self, source, target):
        from keras_transformer.visualization import attention_of

        return attention_of(self.model, self.tokenizer, source, target)

    def export(
        self, folder, beam_size=None, length_penalty=None, scores=(), license=None
    ):
        from keras_transformer.export import export_saved_model
        from keras_transformer.export import facts_of_run
        from keras_transformer.export import model_card

        search = self._settings(beam_size, length_penalty)
        facts = facts_of_run(self.path if self.path.is_dir() else self.path.parent)
        card = model_card(
            self.model, self.tokenizer, search, **facts, scores=scores, license=license
        )
        return export_saved_model(
            self.model, self.tokenizer, folder, **search, card=card
        )

    def export_ctranslate2(self, folder, quantization="none"):
        from keras_transformer.export import export_ctranslate2

        return export_ctranslate2(self.model, self.tokenizer, folder, quantization)

    def _translator(self, beam_size, length_penalty, forbidden=()):
        from keras_transformer.decoding import Translator

        key = (beam_size, length_penalty, tuple(forbidden))
        if key not in self._translators:
            search = self._settings(beam_size, length_penalty)
            # With a wide beam fewer sentences at once, for the same memory.
            widest = max(4, search.get("beam_size", 4))
            try:
                self._translators[key] = Translator(
                    self.model,
                    self.tokenizer,
                    **search,
                    batch_tokens=4 * 4096 // widest,
                    warn=self._warn,
                    forbidden=forbidden,
                )
            except ValueError as error:
                if not forbidden:
                    raise
                raise ModelError(str(error)) from None
        return self._translators[key]

    def _settings(self, beam_size, length_penalty):
        given = {"beam_size": beam_size, "length_penalty": length_penalty}
        given = {name: value for name, value in given.items() if value is not None}
        return {**self._search, **given}


class _Ensemble(_TextModel):
    """Several models that decode as one; see `open_model`."""

    def align(self, sources, targets, line_numbers=None):
        raise ModelError(f"{self.path}: an ensemble gives no alignments")

    def attention(self, source, target):
        raise ModelError(f"{self.path}: an ensemble does not tell where it looks")

    def export(
        self, folder, beam_size=None, length_penalty=None, scores=(), license=None
    ):
        raise ModelError(f"{self.path}: an ensemble cannot be exported")

    def export_ctranslate2(self, folder, quantization="none"):
        raise ModelError(f"{self.path}: an ensemble cannot be exported")


class _SavedModel:
    """An exported model, which searches as it was exported; see `open_model`."""

    batch_size = 64

    def __init__(self, path, loaded, serve):
        self.path = path
        self._loaded = loaded  # its variables live as long as this
        self._serve = serve
        ((_, inputs),) = [serve.structured_input_signature]
        (self._input_name,) = inputs

    def translate(
        self,
        lines,
        beam_size=None,
        length_penalty=None,
        n_best=1,
        first_line=1,
        prefixes=None,
        forbidden=(),
    ):
        if prefixes is not None or forbidden:
            raise ModelError(
                f"{self.path}: a SavedModel takes neither prefixes nor forbidden "
                "words; use the run's folder or the .keras file"
            )
        for name, value in (
            ("beam size", beam_size),
            ("length penalty", length_penalty),
            ("n-best list", None if n_best == 1 else n_best),
        ):
            if value is not None:
                raise ModelError(
                    f"{self.path}: a SavedModel's {name} is fixed when it is exported; "
                    "use the run's folder"
                )
        import tensorflow as tf

        from keras_transformer.decoding import Translation

        results = [None] * len(lines)
        order = sorted(range(len(lines)), key=lambda row: len(lines[row]))
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            batch = tf.constant([lines[row] for row in rows])
            outputs = self._serve(**{self._input_name: batch})
            texts, scores = outputs["translations"].numpy(), outputs["scores"].numpy()
            for row, text, score in zip(rows, texts, scores, strict=True):
                text = text.decode("utf-8", "replace")
                results[row] = [Translation(text, float(score))]
        return results

    def sample(self, lines, num_samples=1, **_):
        raise ModelError(
            f"{self.path}: a SavedModel does not draw at random; use the run's folder "
            "or the .keras file"
        )

    def fingerprint(self):
        digest = hashlib.sha256((self.path / "saved_model.pb").read_bytes())
        for path in sorted((self.path / "variables").iterdir()):
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def parse(self, sentences, beam_size=None, length_penalty=None, first_line=1):
        raise ModelError(
            f"{self.path}: a SavedModel translates and does not parse; use the run's "
            "folder or the .keras file in it"
        )

    def score(self, sources, targets):
        raise ModelError(
            f"{self.path}: a SavedModel cannot score given translations; use the run's "
            "folder or the .keras file"
        )

    def align(self, sources, targets, line_numbers=None):
        raise ModelError(
            f"{self.path}: a SavedModel gives no alignments; use the run's folder or "
            "the .keras file"
        )

    def attention(self, source, target):
        raise ModelError(
            f"{self.path}: a SavedModel does not tell where it looks; use the run's "
            "folder or the .keras file"
        )

    def export(
        self, folder, beam_size=None, length_penalty=None, scores=(), license=None
    ):
        raise ModelError(f"{self.path}: is exported already")

    def export_ctranslate2(self, folder, quantization="none"):
        raise ModelError(f"{self.path}: is exported already; use the run's folder")
