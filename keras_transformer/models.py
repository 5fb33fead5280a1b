"""Opening a trained model wherever it lies: run folder, .keras file, SavedModel."""

import logging
import math
import pathlib
from typing import NamedTuple

from keras_transformer.safe_loading import LoadingError
from keras_transformer.safe_loading import check_tokenizer
from keras_transformer.safe_loading import load_keras_file
from keras_transformer.safe_loading import short


class ModelError(ValueError):
    """A model cannot be opened or cannot do what is asked; told in one line."""


class PairScore(NamedTuple):
    """How probable a model finds a given translation."""

    log_prob: float  # natural logarithm, the end of the sentence included
    num_tokens: int  # target sub-words, the end counted as one


def perplexity_of(scores) -> float:
    """Perplexity per target sub-word over a list of `PairScore`."""
    num_tokens = sum(score.num_tokens for score in scores)
    return math.exp(-sum(score.log_prob for score in scores) / num_tokens)


def open_model(path, warn=None, allow_unsafe=False):
    """Opens a model for translating.

    Args:
        path: a run folder, a `.keras` file with its tokenizer beside it, or a
            SavedModel folder (a version, or its parent: the newest version).
        warn: function that is called with each warning (str). None: they go to the
            logger "keras_transformer".
        allow_unsafe: whether a `.keras` file or SavedModel is read that may hold
            more than a model of ours does, and so may run any code; see
            docs/security.md.

    Returns:
        An object with `translate(lines, beam_size=None, length_penalty=None,
        n_best=1, first_line=1)`, for each line a list of 1 to `n_best` `Translation`
        (text, score), best first; `parse(sentences, beam_size=None,
        length_penalty=None, first_line=1)`, for each a `parsing.Parse`;
        `score(sources, targets)`, a list of `PairScore`;
        `align(sources, targets, line_numbers=None)`, what `Translator.align` gives;
        `attention(source, target)`, what `visualization.attention_of` gives;
        `export(folder, beam_size=None, length_penalty=None, scores=(), license=None)`,
        the path of the version written, for the last two see `model_card`; and
        `export_ctranslate2(folder, quantization="none")`. None stands for the recipe's
        setting. A SavedModel can only translate, and only as it was exported.

    Raises:
        ModelError: nothing there, no model in it, one that is refused, or not the
            tokenizer's model.
    """
    path = pathlib.Path(path)
    if path.is_file():
        if path.suffix != ".keras":
            raise ModelError(f"{path}: neither a .keras file nor a folder")
        return _open_keras(path, warn, allow_unsafe)
    if not path.is_dir():
        raise ModelError(f"{path}: no such file or folder")
    version = newest_version(path)
    if version is not None:
        return _open_saved_model(version, warn, allow_unsafe)
    if (path / "model.keras").is_file():
        return _open_keras(path / "model.keras", warn, allow_unsafe)
    if (path / "config.yaml").is_file():
        return _open_checkpoint(path, warn)
    raise ModelError(
        f"{path}: no model here: neither a run (config.yaml), nor a .keras file, nor "
        "a SavedModel"
    )


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


def _open_keras(path, warn, allow_unsafe):
    """A `.keras` file, with tokenizer and recipe in its folder."""
    from keras_transformer import pipelines
    from keras_transformer.recipes import load_recipe
    from keras_transformer.transformer import Transformer

    folder = path.parent
    config = folder / "config.yaml"
    recipe = load_recipe(config) if config.is_file() else None
    search = _search_settings(recipe) if recipe else {}
    inner = folder / "tokenizer"
    tokenizer = pipelines.load_tokenizer(inner if inner.is_dir() else folder)
    try:
        model = load_keras_file(path, allow_unsafe)
        check_tokenizer(path, tokenizer.fingerprint())
    except LoadingError as error:
        raise ModelError(str(error)) from error
    if not isinstance(model, Transformer):
        raise ModelError(f"{path}: holds a {type(model).__name__}, no Transformer")
    data = recipe.data if recipe else None
    return _TextModel(path, model, tokenizer, search, warn, data)


def _open_checkpoint(path, warn):
    """A run that has no `model.keras` yet: its newest checkpoint."""
    from keras_transformer.experiment import load_run
    from keras_transformer.training import average_checkpoints
    from keras_transformer.training import checkpoint_paths

    if not checkpoint_paths(path / "checkpoints"):
        raise ModelError(
            f"{path}: this run has no model yet: neither model.keras nor a checkpoint"
        )
    recipe, tokenizer, model = load_run(path)
    average_checkpoints(model, path / "checkpoints", last=1)
    search = _search_settings(recipe)
    return _TextModel(path, model, tokenizer, search, warn, recipe.data)


def _search_settings(recipe):
    """The arguments of `Translator` and of the export that a recipe decides."""
    max_length = recipe.data.max_length
    return {**recipe.decoding.model_dump(), "max_source_length": max_length}


def load_saved_model(path, allow_unsafe=False):
    """What `tf.saved_model.load` gives for a version's folder.

    Args:
        path: the folder.
        allow_unsafe: whether to do without `check_saved_model`.

    Raises:
        ModelError: it is damaged, refused, or no export.
    """
    import tensorflow as tf
    import tensorflow_text  # noqa: F401, its operations are in the graph

    from keras_transformer.safe_graph import check_saved_model

    try:
        if not allow_unsafe:
            check_saved_model(path)
        loaded = tf.saved_model.load(str(path))
        loaded.signatures["serving_default"]
    except LoadingError as error:
        raise ModelError(str(error)) from error
    # A damaged export raises whatever its readers came across.
    except Exception as error:
        raise ModelError(f"{path}: cannot be loaded: {short(error)}") from error
    return loaded


def _open_saved_model(path, warn, allow_unsafe):
    loaded = load_saved_model(path, allow_unsafe)
    return _SavedModel(path, loaded, loaded.signatures["serving_default"], warn)


class _TextModel:
    """A `Transformer` with its tokenizer; see `open_model`."""

    def __init__(self, path, model, tokenizer, search, warn, data=None):
        if tokenizer.vocabulary_size != model.vocabulary_size:
            raise ModelError(
                f"{path}: the model has {model.vocabulary_size} sub-words, the "
                f"tokenizer beside it {tokenizer.vocabulary_size}"
            )
        self.path = path
        self.model = model
        self.tokenizer = tokenizer
        self.data = data
        self._search = search
        self._warn = warn
        # A translator compiles its search, so that one is kept for each setting.
        self._translators = {}

    def translate(
        self, lines, beam_size=None, length_penalty=None, n_best=1, first_line=1
    ):
        translator = self._translator(beam_size, length_penalty)
        if n_best > translator.beam_size:
            raise ModelError(
                f"an n-best list of {n_best} needs a beam size of at least {n_best}; "
                f"it is {translator.beam_size}"
            )
        return translator.translate_n_best(lines, n_best, first_line)

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

    def _translator(self, beam_size, length_penalty):
        from keras_transformer.decoding import Translator

        key = (beam_size, length_penalty)
        if key not in self._translators:
            search = self._settings(beam_size, length_penalty)
            # With a wide beam fewer sentences at once, for the same memory.
            widest = max(4, search.get("beam_size", 4))
            self._translators[key] = Translator(
                self.model,
                self.tokenizer,
                **search,
                batch_tokens=4 * 4096 // widest,
                warn=self._warn,
            )
        return self._translators[key]

    def _settings(self, beam_size, length_penalty):
        given = {"beam_size": beam_size, "length_penalty": length_penalty}
        given = {name: value for name, value in given.items() if value is not None}
        return {**self._search, **given}


class _SavedModel:
    """An exported model, which searches as it was exported; see `open_model`."""

    batch_size = 64

    def __init__(self, path, loaded, serve, warn=None):
        self.path = path
        self._warn = warn or logging.getLogger("keras_transformer").warning
        self._loaded = loaded  # its variables live as long as this
        self._serve = serve
        ((_, inputs),) = [serve.structured_input_signature]
        (self._input_name,) = inputs

    def translate(
        self, lines, beam_size=None, length_penalty=None, n_best=1, first_line=1
    ):
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
        import numpy as np
        import tensorflow as tf

        from keras_transformer.decoding.translator import Translation

        results = [None] * len(lines)
        cut = []
        order = sorted(range(len(lines)), key=lambda row: len(lines[row]))
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            # Lone surrogates, which no tensor can hold, become question marks.
            batch = tf.constant([lines[row].encode("utf-8", "replace") for row in rows])
            outputs = self._serve(**{self._input_name: batch})
            texts, scores = outputs["translations"].numpy(), outputs["scores"].numpy()
            for row, text, score in zip(rows, texts, scores, strict=True):
                text = text.decode("utf-8", "replace")
                results[row] = [Translation(text, float(score))]
            # Older exports do not tell.
            for row in np.flatnonzero(outputs.get("truncated", [])):
                cut.append(first_line + rows[row])
        for number in sorted(cut):
            self._warn(
                f"line {number}: longer than the export reads; the rest is left out"
            )
        return results

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
