"""Training of a recipe's model, from text to the averaged model."""

import contextlib
import functools
import logging
import os
import pathlib
import sys
import time
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_transformer import pipelines, training
from keras_transformer.errors import require_tensorflow
from keras_transformer.files import convert_disk_full_errors
from keras_transformer.pipelines.batching import check_budget
from keras_transformer.recipes import dump_recipe, load_recipe
from keras_transformer.recipes.stages import default_text_options
from keras_transformer.runs import folder as run_folder
from keras_transformer.runs.build import build_training_model, regularization
from keras_transformer.runs.corpora import (
    check_corpora,
    check_targets,
    load_corpora,
    load_pairs,
    prepare_corpora,
    training_pairs,
)
from keras_transformer.runs.cost import training_cost
from keras_transformer.runs.report import draw_curves, has_metrics
from keras_transformer.runs.validation import (
    build_validator,
    validation_settings,
)
from keras_transformer.saving.checkpoints import END, average_checkpoints
from keras_transformer.saving.load import check_matches_recipe, check_model, load_model
from keras_transformer.saving.names import (
    CONFIG,
    CURVES,
    FINAL,
    MODEL,
    TOKENIZER,
    checkpoint_paths,
)
from keras_transformer.training.workers import Workers

logger = logging.getLogger(__name__)


def train(
    recipe,
    output,
    *,
    progress=True,
    allow_changes=False,
    restart=False,
    worker_timeout=30.0,
    allow_unsafe=False,
):
    """Trains the model that a recipe describes, or resumes the run in `output`.

    If `TF_CONFIG` lists several workers, each worker calls this function. All need
    access to `output`, but only the first worker writes to it.

    Args:
        recipe: A `Recipe`, the name of a shipped recipe, the path of a YAML file, or a
            dict of a recipe's sections.
        output: The run folder, which is created if it does not exist.
        progress: Whether to show progress on standard error.
        allow_changes: Whether to resume even if the recipe, the training or validation
            text, or the number of replicas has changed.
        restart: Whether to delete the existing run and start over.
        worker_timeout: Seconds without a heartbeat after which a worker counts as lost.
        allow_unsafe: Whether to read `training.initial_model` without safety checks.
            A malicious file can then run any code.

    Returns:
        A mapping of names to results and paths, for display. It is empty on all
        workers except the first.

    Raises:
        RecipeError: If the recipe cannot be read.
        ModelError: If Keras uses another backend than TensorFlow,
            `training.initial_model` does not match the recipe, or the recipe's model
            settings are invalid.
        DataError: If the data or the tokenizer does not match the recipe.
        RunError: If another process trains in `output`, or if `output` contains a run
            with a different recipe, text or number of replicas, or a model without
            checkpoints.
        StorageError: If `output` cannot be written, or the disk is full.
        CheckpointError: If `output` contains checkpoints but none can be read, if the
            newest readable one does not match the model, or if all were lost.
        TrainingFault: If too many consecutive steps are invalid, for example because
            the loss is not finite (see `training.on_nonfinite`).
        KeyboardInterrupt: On Ctrl-C, after saving.
        SystemExit: On SIGTERM (code 143) or SIGHUP (code 129), after saving.
        WorkersError: If `TF_CONFIG` cannot be used, or the first worker failed.
        WorkerLost: If another worker ended or cannot be reached.
    """
    require_tensorflow("training")
    if isinstance(recipe, str | os.PathLike | dict):
        existing = None if restart else output
        report = functools.partial(print, file=sys.stderr) if progress else None
        recipe = load_recipe(recipe, run=existing, report=report)
    with _claim_run(
        recipe, pathlib.Path(output), allow_changes, restart, worker_timeout
    ) as run:
        data = run.prepare(allow_unsafe)
        trainer = run.build_trainer(data)
        validate = run.build_validator(data, trainer)
        run.fit(data, trainer, validate, progress)
        return run.finish(data, trainer, validate)


@contextlib.contextmanager
def _claim_run(recipe, output, allow_changes, restart, worker_timeout):
    """Yields a `_Run` in a folder that is locked for this process."""
    training.configure_threads(recipe.training.parallel_parts)
    training.fix_order_of_sums()
    workers = Workers(worker_timeout)
    automatic = recipe.training.mixed_precision == "auto_bfloat16"
    with (
        workers.convert_worker_errors(),
        convert_disk_full_errors(output),
        training.automatic_bfloat16(automatic),
        contextlib.ExitStack() as stack,
    ):

        def claim():
            stack.enter_context(run_folder.create_and_lock(output))
            if restart:
                run_folder.check_restart(output, recipe)
                # Errors that are easy to find are reported before the run is removed.
                check_model(recipe)
                check_corpora(recipe)
            run_folder.clean(output, restart)
            run_folder.create(output)
            run_folder.claim(output, recipe, allow_changes or restart)

        workers.broadcast_from_chief(claim)
        yield _Run(recipe, output, allow_changes, workers)


class _Data(NamedTuple):
    """Vocabulary and text of a run."""

    tokenizer: Any
    corpora: dict  # names to `EncodedCorpus` (see `load_corpora`)
    pairs: dict  # splits to `Pairs` (see `load_pairs`)
    initial: Any  # the model that provides the initial weights, or None


class _Run:
    """A run in a folder that this process has locked."""

    def __init__(self, recipe, folder, allow_changes, workers):
        self.recipe = recipe
        self.folder = folder
        self.allow_changes = allow_changes
        self.workers = workers
        self.has_begun = bool(checkpoint_paths(folder / "checkpoints"))
        self._stages = recipe.stages
        self._started = time.monotonic()

    def prepare(self, allow_unsafe):
        """Writes the vocabulary and the encoded text. Returns `_Data`."""
        check_model(self.recipe)
        initial = self._load_initial_model(allow_unsafe)
        settings = self.recipe.training
        keras.utils.set_random_seed(settings.seed)
        if settings.deterministic:
            tf.config.experimental.enable_op_determinism()
        pairs = load_pairs(self.recipe)
        self.workers.broadcast_from_chief(
            lambda: prepare_corpora(self.recipe, self.folder, pairs, self.has_begun)
        )
        tokenizer, corpora = load_corpora(self.recipe, self.folder, pairs)
        if not self.has_begun and self.workers.is_chief:
            for name, corpus in corpora.items():
                dropped = (reason["count"] for reason in corpus.dropped.values())
                if corpus.has_only_copies or any(dropped):
                    logger.warning("data.%s: %s", name, corpus.report)
        return _Data(tokenizer, corpora, pairs, initial)

    def _load_initial_model(self, allow_unsafe):
        """Returns the model that provides the initial weights, or `None`."""
        path = self.recipe.training.initial_path
        if not path or self.has_begun:
            return None
        path, tokenizer, model = load_model(path, allow_unsafe)
        check_matches_recipe(path, tokenizer, model, self.recipe)
        self.workers.broadcast_from_chief(
            lambda: tokenizer.save(self.folder / TOKENIZER)
        )
        return model

    def build_trainer(self, data):
        """Returns a `Trainer` with the state of the newest checkpoint."""
        with self.workers.strategy.scope():
            model = build_training_model(self.recipe, data.tokenizer, data.initial)
        trainer = training.Trainer(
            model,
            self.folder,
            self.recipe.training.keep_checkpoints,
            self.workers,
            data.tokenizer.fingerprint(),
            skip_nonfinite=self.recipe.training.on_nonfinite == "skip",
        )
        trainer.restore(functools.partial(self._check_unchanged, data, trainer))
        if self.workers.is_chief:
            dump_recipe(self.recipe, self.folder / CONFIG)
        return trainer

    def _check_unchanged(self, data, trainer):
        """Checks the text of all stages, and that it and the replicas are unchanged."""
        fingerprints = {}
        for stage in self._stages:
            options = stage.text_options
            corpus, pairs = self._training_text(data, options)
            lengths = corpus.source_lengths, corpus.target_lengths
            check_budget(*lengths, stage.settings.batch_tokens)
            check_targets(trainer.model.transformer, corpus, pairs)
            fingerprints[options] = corpus.fingerprint
        is_known = None not in fingerprints.values()
        validation = data.corpora.get("validation")
        run_folder.check_unchanged(
            self.folder,
            trainer.progress,
            self.allow_changes,
            text="+".join(fingerprints.values()) if is_known else None,
            replicas=self._num_replicas,
            validation_text=getattr(validation, "fingerprint", None),
            validation_settings=validation_settings(self.recipe),
        )

    def build_validator(self, data, trainer, beam_size=None):
        """Returns a function that computes validation metrics, or `None`."""
        if "validation" not in data.pairs:
            return None
        return build_validator(
            self.recipe,
            trainer.model.transformer,
            data.tokenizer,
            data.corpora["validation"],
            data.pairs["validation"],
            beam_size,
        )

    def _training_text(self, data, options):
        """Returns the `EncodedCorpus` and the `Pairs` for `TextOptions`."""
        name = options.cache_name(default_text_options(self.recipe))
        return data.corpora[name], training_pairs(data.pairs, options)

    def fit(self, data, trainer, validate, show_progress):
        """Trains all unfinished stages."""
        progress = trainer.progress
        for number, stage in enumerate(self._stages, 1):
            has_steps_left = progress.step < stage.end
            is_validation_left = progress.step == stage.end and progress.validation_due
            if has_steps_left or is_validation_left:
                if self.recipe.training.stages:
                    is_new = progress.step == stage.start
                    trainer.begin_stage(number, len(self._stages), is_new)
                self._fit_stage(stage, data, trainer, validate, show_progress)

    def _fit_stage(self, stage, data, trainer, validate, show_progress):
        """Trains up to the last step of a stage."""
        settings = stage.settings
        corpus, pairs = self._training_text(data, stage.text_options)
        trainer.model.change_options(**regularization(settings))
        dataset = pipelines.training_dataset(
            corpus,
            settings.batch_tokens,
            seed=settings.seed,
            start_step=trainer.progress.step - stage.start,
            num_replicas=self._num_replicas,
            # XLA compiles once per shape. Padding to the bucket leaves few shapes.
            pad_to_bucket=bool(trainer.model.jit_compile),
            shard=(self.workers.index, self.workers.count),
        )

        def locate_batch(step):
            """Returns the locations of the pairs in a step's batch, for messages."""
            indices = pipelines.batch_indices(
                corpus, settings.batch_tokens, settings.seed, step - stage.start
            )
            return [pairs.locate(int(each)) for each in sorted(corpus.numbers(indices))]

        stopping = settings.early_stopping
        if validate is not None:
            validate = functools.partial(self.workers.broadcast_from_chief, validate)
        trainer.fit(
            self.workers.distribute(dataset),
            stage.end,
            checkpoint_minutes=settings.checkpoint_minutes,
            checkpoint_steps=settings.checkpoint_steps,
            validate=validate,
            validation_steps=settings.validation_steps,
            metric=self.recipe.validation_metric(),
            patience=stopping.patience if stopping else None,
            bar=self.recipe.training.steps if show_progress else None,
            max_consecutive_skips=settings.max_consecutive_skips,
            locate_batch=locate_batch,
        )

    def finish(self, data, trainer, validate):
        """Averages the last checkpoints, saves the model and returns the results."""
        # The average omits checkpoints of interruptions. If an interruption wrote the
        # last step's checkpoint, saving with `END` makes it a regular one.
        trainer.save(END)
        summary = self.workers.broadcast_from_chief(
            lambda: self._finish(data, trainer, validate)
        )
        if not self.workers.is_chief:
            return {}
        seconds = round(time.monotonic() - self._started)
        return {**summary, "total seconds": seconds}

    def _finish(self, data, trainer, validate):
        """Saves the averaged model and returns the results (first worker only)."""
        settings = self.recipe.training
        model, progress = trainer.model.transformer, trainer.progress
        averaged = average_checkpoints(
            model, trainer.checkpoints.folder, settings.average_checkpoints
        )
        path = trainer.save_model(MODEL, use_average=False)
        if has_metrics(self.folder):
            draw_curves([self.folder], self.folder / CURVES)
        summary = {
            "parameters": model.count_params(),
            "train pairs": self._describe_pairs(data),
            "steps": progress.step,
            "training seconds": round(progress.seconds),
            "averaged checkpoints": len(averaged),
            "model": str(path),
        }
        if settings.initial_model:
            summary = {"initial model": settings.initial_path, **summary}
        if validate is not None:
            decoding = self.recipe.decoding
            # Use the same beam size as `evaluate`. Validations during training may use
            # a smaller one to save time.
            if decoding.beam_size != settings.validation_beam_size:
                validate = self.build_validator(data, trainer, decoding.beam_size)
            scores = validate()
            trainer.log.write(FINAL, scores)
            metrics = (f"{name} {value:.2f}" for name, value in scores.items())
            summary["validation"] = (
                f"{', '.join(metrics)} (beam size {decoding.beam_size}, "
                f"length penalty {decoding.length_penalty})"
            )
        if progress.best_step is not None:
            metric = progress.best_metric or self.recipe.validation_metric()
            summary["best single checkpoint"] = (
                f"{metric} {progress.best_score:.2f} at step "
                f"{progress.best_step} (best.keras; beam size "
                f"{settings.validation_beam_size})"
            )
        summary["training cost"] = training_cost(
            self.recipe, model, self._corpora(data), progress, self._num_replicas
        )
        return summary

    def _corpora(self, data):
        """Returns the `EncodedCorpus` of each stage."""
        options = [stage.text_options for stage in self._stages]
        return [self._training_text(data, each)[0] for each in options]

    def _describe_pairs(self, data):
        """Returns a report on the training pairs, per stage if the stages differ."""
        reports = [corpus.report for corpus in self._corpora(data)]
        if len(set(reports)) == 1:
            return reports[0]
        return "; ".join(
            f"stage {number}: {report}" for number, report in enumerate(reports, 1)
        )

    @property
    def _num_replicas(self):
        return self.workers.strategy.num_replicas_in_sync
