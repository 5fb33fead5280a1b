"""A recipe's run from text to model: joins the pipelines and training."""

import contextlib
import functools
import logging
import pathlib
import time

import keras
import numpy as np
import tensorflow as tf

from keras_transformer import pipelines
from keras_transformer import training
from keras_transformer.distributed.workers import Workers
from keras_transformer.errors import DataError
from keras_transformer.experiments import folder as run_folder
from keras_transformer.experiments.corpora import load_pairs
from keras_transformer.experiments.corpora import prepare
from keras_transformer.experiments.corpora import prepared
from keras_transformer.experiments.cost import training_cost
from keras_transformer.experiments.validation import validation
from keras_transformer.files import told_when_full
from keras_transformer.parsing.linearization import word_marks
from keras_transformer.saving.checkpoints import average_checkpoints
from keras_transformer.saving.checkpoints import checkpoint_paths
from keras_transformer.saving.load import build_model
from keras_transformer.saving.load import check_matches_recipe
from keras_transformer.saving.load import check_model
from keras_transformer.saving.load import load_model
from keras_transformer.saving.names import MODEL

TOKENIZER = run_folder.TOKENIZER
_logger = logging.getLogger("keras_transformer")


def train(
    recipe,
    output,
    progress=True,
    allow_changes=False,
    restart=False,
    worker_timeout=30.0,
):
    """Trains what a recipe says, or goes on where the run in `output` was left.

    Args:
        recipe: A `Recipe`.
        output: The run's folder; made where it does not exist.
        progress: Whether to show progress on standard error.
        allow_changes: Whether to go on although the recipe or the training text is
            not what the run began with.
        restart: Whether to delete what the run has reached and begin anew.
        worker_timeout: Seconds after which a worker that gave no sign of life is
            taken to be lost, where `TF_CONFIG` names several.

    With several workers each calls this. All must see `output`, which the first of
    them alone writes.

    Returns:
        A mapping of figures and paths for people to read; empty for all workers but
        the first.

    Raises:
        DataError: the data or the tokenizer cannot be had as the recipe says.
        RunError: another process trains in `output`, or it holds a run of another
            recipe or text, or its checkpoints are gone.
        StorageError: `output` cannot be written to, or its disk is full.
        CheckpointError: `output` holds checkpoints that do not fit.
        ModelError: `training.initial_model` is none, or not the recipe's; or no model
            can be as the recipe describes it.
        TrainingFault: losses or gradients that are not finite, see `on_nan`.
        KeyboardInterrupt: Ctrl-C, after the state was saved.
        WorkersError: `TF_CONFIG` cannot be used, or the first worker failed.
        WorkerLost: another worker has ended or cannot be reached.
    """
    output = pathlib.Path(output)
    training.use_threads(recipe.training.parallel_parts)
    workers = Workers(worker_timeout)
    automatic = recipe.training.mixed_precision == "auto_bfloat16"
    with (
        workers.told_when_lost(),
        told_when_full(output),
        training.automatic_bfloat16(automatic),
        contextlib.ExitStack() as stack,
    ):

        def take():
            run_folder.prepare(output)
            stack.enter_context(run_folder.locked(output))
            if restart:
                run_folder.check_restart(output, recipe)
            run_folder.clean(output, restart)
            run_folder.claim(output, recipe, allow_changes)

        workers.share(take)
        return _run(recipe, output, progress, allow_changes, workers)


def _run(recipe, output, progress, allow_changes, workers):
    """`train` in a folder that is ours."""
    started = time.monotonic()
    settings = recipe.training
    check_model(recipe)
    begun = bool(checkpoint_paths(output / "checkpoints"))
    initial = None
    if settings.initial_model and not begun:
        initial_tokenizer, initial = _initial_model(recipe)
        workers.share(lambda: initial_tokenizer.save(output / TOKENIZER))
    keras.utils.set_random_seed(settings.seed)
    if settings.deterministic:
        tf.config.experimental.enable_op_determinism()
    pairs = load_pairs(recipe)
    workers.share(lambda: prepare(recipe, output, pairs, begun))
    tokenizer, corpora = prepared(output, pairs)
    if not begun and workers.is_chief:
        for split, corpus in corpora.items():
            if any(reason["count"] for reason in corpus.dropped.values()):
                _logger.warning("data.%s: %s", split, corpus.report)
    with workers.strategy.scope():
        model = build_model(recipe, tokenizer)
        if initial is not None:
            model.set_weights(initial.get_weights())
        training_model = _compile(model, recipe, tokenizer)
        training_model.optimizer.build(training_model.trainable_variables)
    trainer = training.Trainer(training_model, output, settings.keep, workers)
    trainer.tokenizer_fingerprint = tokenizer.fingerprint()
    first_step = trainer.restore()
    _check_targets(model, corpora["train"], pairs["train"])
    if hasattr(pairs["train"], "weights"):
        numbers = corpora["train"].numbers(np.arange(corpora["train"].num_pairs))
        corpora["train"].weights = pairs["train"].weights(numbers)
    run_folder.check_text(
        output, trainer.progress, corpora["train"].fingerprint, allow_changes
    )
    replicas = workers.strategy.num_replicas_in_sync
    run_folder.check_replicas(output, trainer.progress, replicas, allow_changes)
    validate = validate_here = None
    if "validation" in pairs:
        validate_here = validation(
            recipe, model, tokenizer, corpora["validation"], pairs["validation"]
        )
        validate = functools.partial(workers.share, validate_here)
    if settings.steps > first_step or trainer.progress.validation_due:
        # XLA compiles for each shape, so that it gets few of them.
        dataset = pipelines.training_dataset(
            corpora["train"],
            settings.batch_tokens,
            seed=settings.seed,
            start_step=first_step,
            num_replicas=workers.strategy.num_replicas_in_sync,
            pad_to_bucket=bool(training_model.jit_compile),
            shard=(workers.index, workers.count),
        )
        stopping = settings.early_stopping
        trainer.fit(
            workers.distribute(dataset),
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

    def finish():
        return _finish(recipe, trainer, corpora["train"], validate_here, workers)

    summary = workers.share(finish)
    if not workers.is_chief:
        return {}
    return {**summary, "seconds in all": round(time.monotonic() - started)}


def _finish(recipe, trainer, corpus, validate, workers):
    """Averages, writes the model, and says what came of the run."""
    settings = recipe.training
    model, progress = trainer.model.transformer, trainer.progress
    averaged = average_checkpoints(model, trainer.checkpoints.folder, settings.average)
    path = trainer.save_model(MODEL)
    summary = {
        **({"began with": settings.initial_model} if settings.initial_model else {}),
        "parameters": model.count_params(),
        "train pairs": corpus.report,
        "steps": progress.step,
        "training seconds": round(progress.seconds),
        "averaged checkpoints": len(averaged),
        "model": str(path),
    }
    if validate is not None:
        summary["validation"] = ", ".join(
            f"{name} {value:.2f}" for name, value in validate().items()
        )
    if progress.best_step is not None:
        summary["best single checkpoint"] = (
            f"{progress.best_score:.2f} at step {progress.best_step} (best.keras)"
        )
    summary["training cost"] = training_cost(
        recipe, model, corpus, progress, workers.strategy.num_replicas_in_sync
    )
    return summary


def _initial_model(recipe):
    """The tokenizer and the model that training begins with."""
    path, tokenizer, model = load_model(recipe.training.initial_model)
    check_matches_recipe(path, tokenizer, model, recipe)
    return tokenizer, model


def _compile(model, recipe, tokenizer):
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
        settings.max_gradient_norm,
        settings.parallel_parts,
        _guided_alignment(recipe, tokenizer),
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


def _check_targets(model, corpus, pairs):
    """Every symbol of the training trees must be one of the model's outputs."""
    if model.output_size is None:
        return
    rows = corpus.rows_outside(model.output_size)
    if len(rows):
        raise DataError(
            f"{pairs.locate(int(corpus.numbers(rows)[0]))}: a label or tag, or "
            "brackets around a word, that the vocabulary has no symbol of "
            f"({len(rows)} trees with such); it was made from other trees"
        )


def _guided_alignment(recipe, tokenizer):
    """What teaches the decoder which word of a tree is next, or None."""
    weight = recipe.training.guided_alignment
    if not weight:
        return None
    begins, symbols = word_marks(tokenizer.piece_bytes(), recipe.data.words)
    begins[tokenizer.end_id] = True
    aligned = training.next_words(begins, symbols, tokenizer.pad_id)
    return training.GuidedAlignment(aligned, weight)


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
