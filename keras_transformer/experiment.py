"""A recipe's run from text to model: joins the pipelines and training."""

import itertools
import pathlib
import time

import keras
import numpy as np

from keras_transformer import evaluation
from keras_transformer import pipelines
from keras_transformer import run_folder
from keras_transformer import training
from keras_transformer.decoding import Translator
from keras_transformer.flops import training_flops
from keras_transformer.parsing import parse_sentences
from keras_transformer.pipelines import DataError
from keras_transformer.pipelines.phrases import phrases
from keras_transformer.recipes import load_recipe
from keras_transformer.safe_loading import note_tokenizer
from keras_transformer.transformer import Transformer

TOKENIZER = run_folder.TOKENIZER
MODEL = "model.keras"


def run(recipe, output, progress=True, allow_changes=False, restart=False):
    """Trains what a recipe says, or goes on where the run in `output` was left.

    Args:
        recipe: A `Recipe`.
        output: The run's folder; made where it does not exist.
        progress: Whether to show progress on standard error.
        allow_changes: Whether to go on although the recipe or the training text is
            not what the run began with.
        restart: Whether to delete what the run has reached and begin anew.

    Returns:
        A mapping of figures and paths for people to read.

    Raises:
        DataError: the data or the tokenizer cannot be had as the recipe says.
        RunError: another process trains in `output`, or it holds a run of another
            recipe or text, or its checkpoints are gone.
        CheckpointError: `output` holds checkpoints that do not fit.
        TrainingFault: losses or gradients that are not finite, see `on_nan`.
        KeyboardInterrupt: Ctrl-C, after the state was saved.
    """
    output = pathlib.Path(output)
    output.mkdir(parents=True, exist_ok=True)
    with run_folder.locked(output):
        run_folder.clean(output, restart)
        run_folder.claim(output, recipe, allow_changes)
        return _run(recipe, output, progress, allow_changes)


def _run(recipe, output, progress, allow_changes):
    """`run` in a folder that is ours."""
    started = time.monotonic()
    settings = recipe.training
    keras.utils.set_random_seed(settings.seed)
    pairs = load_pairs(recipe)
    tokenizer = _tokenizer(recipe.tokenizer, pairs["train"], output / TOKENIZER)
    sampling = {
        "dropout": recipe.tokenizer.dropout,
        "segmentations": recipe.tokenizer.segmentations,
        "seed": settings.seed,
    }
    corpora = {
        split: pipelines.encode_corpus(
            split_pairs,
            tokenizer,
            tokenizer,
            output / "cache" / split,
            max_length=recipe.data.max_length,
            **(sampling if split == "train" else {}),
        )
        for split, split_pairs in pairs.items()
        if split != "test"
    }
    strategy = training.default_strategy()
    with strategy.scope():
        model = build_model(recipe, tokenizer.vocabulary_size)
        training_model = _compile(model, recipe)
        trainer = training.Trainer(training_model, output, settings.keep)
        trainer.tokenizer_fingerprint = tokenizer.fingerprint()
        first_step = trainer.restore()
    if hasattr(pairs["train"], "weights"):
        numbers = corpora["train"].numbers(np.arange(corpora["train"].num_pairs))
        corpora["train"].weights = pairs["train"].weights(numbers)
    run_folder.check_text(
        output, trainer.progress, corpora["train"].fingerprint, allow_changes
    )
    validate = None
    if "validation" in pairs:
        validate = _validation(
            recipe, model, tokenizer, corpora["validation"], pairs["validation"]
        )
    if settings.steps > first_step:
        # XLA compiles for each shape, so that it gets few of them.
        dataset = pipelines.training_dataset(
            corpora["train"],
            settings.batch_tokens,
            seed=settings.seed,
            start_step=first_step,
            num_replicas=strategy.num_replicas_in_sync,
            pad_to_bucket=bool(training_model.jit_compile),
        )
        stopping = settings.early_stopping
        trainer.fit(
            dataset,
            settings.steps,
            checkpoint_minutes=settings.checkpoint_minutes,
            checkpoint_steps=settings.checkpoint_steps,
            validate=validate,
            validation_steps=settings.validation_steps,
            metric=recipe.validation_metric(),
            patience=stopping.patience if stopping else None,
            bar=progress,
            max_skipped=settings.max_skipped if settings.on_nan == "skip" else 0,
            places_of=_places_of(recipe, corpora["train"], pairs["train"]),
        )
    averaged = training.average_checkpoints(
        model, output / "checkpoints", settings.average
    )
    path = trainer.save_model(MODEL)
    summary = {
        "parameters": model.count_params(),
        "train pairs": corpora["train"].report,
        "steps": trainer.progress.step,
        "training seconds": round(trainer.progress.seconds),
        "averaged checkpoints": len(averaged),
        "model": str(path),
    }
    if validate is not None:
        summary["validation"] = ", ".join(
            f"{name} {value:.2f}" for name, value in validate().items()
        )
    if trainer.progress.best_step is not None:
        summary["best single checkpoint"] = (
            f"{trainer.progress.best_score:.2f} at step {trainer.progress.best_step} "
            "(best.keras)"
        )
    summary["training cost"] = _cost(
        recipe, model, corpora["train"], trainer.progress, strategy.num_replicas_in_sync
    )
    summary["seconds in all"] = round(time.monotonic() - started)
    return summary


def load_run(folder):
    """What a run folder says about its model.

    Returns:
        `(recipe, tokenizer, model)`; the model has fresh weights.

    Raises:
        RecipeError: `config.yaml` is missing or not a recipe.
        DataError: the tokenizer is missing or damaged.
    """
    folder = pathlib.Path(folder)
    recipe = load_recipe(folder / "config.yaml")
    tokenizer = pipelines.load_tokenizer(folder / TOKENIZER)
    return recipe, tokenizer, build_model(recipe, tokenizer.vocabulary_size)


def average_run(folder, last=5, output=None):
    """Averages a run's last checkpoints into a `.keras` file.

    Args:
        folder: The run's folder.
        last: Number of checkpoints.
        output: The file. None: `model.keras` in the run's folder.

    Returns:
        The file's path and the paths of the checkpoints.

    Raises:
        CheckpointError: no checkpoint, or one of another model.
    """
    folder = pathlib.Path(folder)
    _, tokenizer, model = load_run(folder)
    paths = training.average_checkpoints(model, folder / "checkpoints", last)
    output = pathlib.Path(output) if output else folder / MODEL
    with training.replace_file(output) as temporary:
        model.save(temporary)
        note_tokenizer(temporary, tokenizer.fingerprint())
    return output, paths


def build_model(recipe, vocabulary_size):
    """The recipe's `Transformer`, built, with fresh weights."""
    precision = recipe.training.mixed_precision
    model = Transformer(
        vocabulary_size,
        **recipe.model.constructor_arguments(),
        dtype=f"mixed_{precision}" if precision else "float32",
    )
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    return model


def load_pairs(recipe):
    """The recipe's sentence pairs: a source each for train, validation and test."""
    data = recipe.data
    if data.kind == "phrases":
        splits = phrases(
            data.source_locale,
            data.target_locale,
            size=data.size,
            seed=data.seed,
            held_out=data.held_out,
        )
        return splits._asdict()
    if data.kind == "tfds":

        def source(split):
            return pipelines.TfdsPairs(
                data.name,
                split,
                source_language=data.source_language,
                target_language=data.target_language,
                data_dir=data.data_dir,
            )
    elif data.kind == "trees":

        def source(split):
            weights = getattr(split, "weights", None)
            return pipelines.TreeFiles(split.trees, weights, data.words)
    else:

        def source(split):
            return pipelines.TextFiles(split.source, split.target)

    splits = {name: getattr(data, name) for name in ("train", "validation", "test")}
    return {name: source(split) for name, split in splits.items() if split is not None}


def _tokenizer(settings, pairs, folder):
    if folder.is_dir():
        return pipelines.load_tokenizer(folder)
    symbols, sentences = (), itertools.chain.from_iterable(pairs)
    if hasattr(pairs, "symbols"):
        # Of trees only the words: symbols have their ids already.
        symbols, sentences = pairs.symbols(), pairs.sentences()
    tokenizer = pipelines.train_tokenizer(
        settings.kind,
        sentences,
        settings.vocabulary_size,
        split_digits=settings.split_digits,
        symbols=symbols,
    )
    tokenizer.save(folder)
    return tokenizer


def _compile(model, recipe):
    settings = recipe.training
    schedule = (
        training.PaperSchedule(
            model.d_model, settings.warmup_steps, settings.learning_rate_scale
        )
        if settings.schedule == "paper"
        else training.InverseSquareRoot(settings.learning_rate, settings.warmup_steps)
    )
    if settings.cooldown_steps:
        schedule = training.LinearCooldown(
            schedule, settings.steps, settings.cooldown_steps
        )
    training_model = training.TrainingModel(
        model,
        settings.label_smoothing,
        settings.gradient_accumulation_steps,
        settings.clip_norm,
    )
    training_model.compile(
        optimizer=training.FusedAdam(
            schedule,
            beta_1=settings.beta_1,
            beta_2=settings.beta_2,
            epsilon=settings.epsilon,
        ),
        jit_compile=settings.jit_compile,
    )
    training_model.build({"source_ids": (None, None), "target_ids": (None, None)})
    return training_model


def _places_of(recipe, corpus, pairs):
    """Function of a step that names the places of its batch's pairs."""
    settings = recipe.training
    locate = getattr(pairs, "locate", "pair {}".format)

    def places_of(step):
        indices = pipelines.batch_indices(
            corpus, settings.batch_tokens, settings.seed, step
        )
        return [locate(int(number)) for number in sorted(corpus.numbers(indices))]

    return places_of


def _cost(recipe, model, corpus, progress, devices):
    """Floating-point operations of the whole training, counted and as in Table 2."""
    precision = recipe.training.mixed_precision or "float32"
    settings = {
        **recipe.model.constructor_arguments(),
        "key_dim": model.key_dim or model.d_model // model.num_heads,
        "value_dim": model.value_dim or model.d_model // model.num_heads,
    }
    rows = pipelines.epoch_rows(corpus)
    epoch = training_flops(
        settings,
        model.vocabulary_size,
        corpus.source_lengths[rows],
        corpus.target_lengths[rows],
    )
    steps = pipelines.steps_per_epoch(corpus, recipe.training.batch_tokens)
    counted = epoch * progress.step / steps
    rate = training.sustained_flops(precision=precision)
    spent = progress.seconds * devices * rate
    return (
        f"{counted:.2e} operations counted; {spent:.2e} by time x {devices} device(s) "
        f"x {rate / 1e12:.2f} TFLOP/s, measured now in {precision}; "
        f"utilisation {counted / max(spent, 1.0):.0%}"
    )


def _validation(recipe, model, tokenizer, corpus, pairs):
    """Function that scores the model on the validation pairs."""
    settings = recipe.training
    decoding = recipe.decoding
    dataset = pipelines.evaluation_dataset(corpus, settings.batch_tokens)
    translator = Translator(
        model,
        tokenizer,
        beam_size=settings.validation_beam_size,
        length_penalty=decoding.length_penalty,
        length_penalty_kind=decoding.length_penalty_kind,
        extra_length=decoding.extra_length,
        max_source_length=recipe.data.max_length,
    )
    metric = "f1" if recipe.data.kind == "trees" else "bleu"
    score = None
    if getattr(settings, f"validation_{metric}"):
        score = _SCORES[metric](recipe, translator, pairs)

    def validate():
        figures = {"perplexity": evaluation.perplexity(model, dataset)}
        if score is not None:
            figures[metric] = score()
        return figures

    return validate


def _bleu_of(recipe, translator, pairs):
    """Function that scores translations of the validation text."""
    kept = [pair for pair in pairs if None not in pair]
    if not kept:
        raise DataError("data.validation: no pair there can be read")
    kept = _sample(kept, recipe.training.validation_sentences)
    sources, references = map(list, zip(*kept, strict=True))

    def score():
        return evaluation.bleu(
            translator.translate(sources),
            references,
            tokenize=recipe.evaluation.tokenize,
            lowercase=recipe.evaluation.lowercase,
        ).score

    return score


def _f1_of(recipe, translator, pairs):
    """Function that scores trees of the validation sentences."""
    trees = _sample(list(pairs.trees()), recipe.training.validation_sentences)
    sentences = [tree.words for tree in trees]

    def score():
        parses = parse_sentences(
            translator.translate_n_best, sentences, symbols=recipe.data.words
        )
        return evaluation.bracketing_score(trees, [parse.tree for parse in parses]).f1

    return score


_SCORES = {"bleu": _bleu_of, "f1": _f1_of}


def _sample(items, size):
    """`size` of the items at equal distances; all of them for None."""
    if size is None or size >= len(items):
        return items
    return [items[number * len(items) // size] for number in range(size)]
