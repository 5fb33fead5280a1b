"""Training of a recipe's model, from text to the averaged model."""

import contextlib
import functools
import logging
import os
import pathlib
import sys
import time

import keras

from keras_transformer import pipelines, training
from keras_transformer.errors import RecipeError, RunError, require_backend
from keras_transformer.files import convert_disk_full_errors
from keras_transformer.interop.peft import write_adapters
from keras_transformer.pipelines.batching import check_budget
from keras_transformer.recipes import dump_recipe, load_recipe
from keras_transformer.recipes.automatic import check_files
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
from keras_transformer.runs.report import draw_curves
from keras_transformer.runs.validation import (
    build_validator,
    validation_settings,
)
from keras_transformer.saving.checkpoints import END, average_checkpoints
from keras_transformer.saving.keras_file import save_model
from keras_transformer.saving.load import check_matches_recipe, check_model, load_model
from keras_transformer.saving.names import (
    ADAPTERS,
    BASE_MODEL,
    CONFIG,
    CURVES,
    FINAL,
    MODEL,
    TOKENIZER,
)
from keras_transformer.training.replicas import jax_devices
from keras_transformer.training.step_ops import is_jax

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
        recipe: A `Recipe`, the name of a packaged recipe, the path of a YAML file, or a
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
        What the command prints, as a dict with keys such as `"steps"`, `"model"` (the
        path of `model.keras`) and `"validation"`. It is empty on all workers except the
        first.

    Raises:
        RecipeError: If the recipe cannot be read.
        ModelError: If Keras uses another backend than TensorFlow and JAX,
            `training.initial_model` does not match the recipe, or the recipe's model
            settings are invalid.
        DataError: If the data or the tokenizer does not match the recipe.
        RunError: If another process trains in `output`, or if `output` contains a run
            with a different recipe, text or number of replicas, a model without
            checkpoints, or files but no run.
        StorageError: If `output` cannot be written, or the disk is full.
        CheckpointError: If `output` contains checkpoints but none can be read, if the
            newest readable one does not match the model, or if all were lost.
        TrainingFaultError: If too many consecutive steps are invalid, for example
            because the loss is not finite (see `training.on_nonfinite`).
        KeyboardInterrupt: On Ctrl-C, after saving.
        SystemExit: On SIGTERM (code 143) or SIGHUP (code 129), after saving.
        WorkersError: If `TF_CONFIG` cannot be used, or the first worker failed.
        WorkerLostError: If another worker ended or cannot be reached.

    Examples:
        >>> recipe = kt.recipes.load_recipe("phrases", ["training.steps=1500"])
        >>> results = kt.train(recipe, "runs/phrases")
    """
    require_backend("training", "tensorflow", "jax")
    if isinstance(recipe, str | os.PathLike | dict):
        existing = None if restart else output
        chosen = []  # a line per setting
        recipe = load_recipe(recipe, run=existing, report=chosen.append)
        check_files(recipe.data)
        show = functools.partial(print, file=sys.stderr)
        for line in chosen if progress else ():
            show(line)
    with _claim_run(
        recipe, pathlib.Path(output), allow_changes, restart, worker_timeout
    ) as run:
        run.build_trainer(run.prepare(allow_unsafe, progress))
        run.fit(progress)
        return run.finish()


@contextlib.contextmanager
def _claim_run(recipe, output, allow_changes, restart, worker_timeout):
    """Yields a `_Run` in a folder that is locked for this process."""
    with (
        _configure_backend(recipe.training, worker_timeout) as workers,
        convert_disk_full_errors(output),
        contextlib.ExitStack() as stack,
    ):

        def claim():
            stack.enter_context(run_folder.create_and_lock(output))
            run_folder.refuse_other_files(output)
            if restart:
                run_folder.check_restart(output, recipe)
                # Errors that are easy to find are reported before the run is removed.
                check_model(recipe)
                check_corpora(recipe)
            run_folder.clean(output, restart)
            run_folder.claim(output, recipe, allow_changes or restart)

        workers.broadcast_from_chief(claim)
        yield _Run(recipe, output, allow_changes, workers)


@contextlib.contextmanager
def _configure_backend(settings, worker_timeout):
    """Yields the `Workers`, with the backend configured for `training` in a recipe."""
    is_automatic = settings.mixed_precision == "bfloat16_matmul"
    if is_jax():
        for what, is_given in {
            "training.mixed_precision=bfloat16_matmul": is_automatic,
            "training by several workers (TF_CONFIG)": os.environ.get("TF_CONFIG"),
            "training.deterministic": settings.deterministic,
        }.items():
            if is_given:
                require_backend(what, "tensorflow")
        # The operations of tokenizers leave the GPUs to JAX.
        with contextlib.suppress(ImportError, RuntimeError):
            import tensorflow as tf

            tf.config.set_visible_devices([], "GPU")
        with jax_devices() as workers:
            yield workers
        return
    from keras_transformer.training.workers import Workers

    training.configure_threads(settings.parallel_parts)
    training.fix_order_of_sums()
    workers = Workers(worker_timeout)
    # An XLA program cannot access the variables of other devices.
    if settings.jit_compile is True and workers.num_replicas > workers.count:
        raise RecipeError(
            "training.jit_compile: true requires a single GPU per process. Set it to "
            "auto, or choose a GPU, such as with --device gpu:0. Received: "
            f"{workers.num_replicas // workers.count} GPUs"
        )
    with workers.convert_worker_errors(), training.automatic_bfloat16(is_automatic):
        yield workers


class _Run:
    """A run in a folder that this process has locked."""

    def __init__(self, recipe, folder, allow_changes, workers):
        self.recipe = recipe
        self.folder = folder
        self.allow_changes = allow_changes
        self.workers = workers
        self.has_begun = run_folder.has_begun(folder)
        self._stages = recipe.stages
        self._started = time.monotonic()

    def prepare(self, allow_unsafe, progress):
        """Writes and loads the vocabulary and the encoded text.

        Returns the model that provides the initial weights, or `None`.
        """
        check_model(self.recipe)
        initial = self._load_initial_model(allow_unsafe)
        settings = self.recipe.training
        keras.utils.set_random_seed(settings.seed)
        if settings.deterministic:
            import tensorflow as tf

            tf.config.experimental.enable_op_determinism()
        self.pairs = pairs = load_pairs(self.recipe.data)
        self.workers.broadcast_from_chief(
            lambda: prepare_corpora(
                *(self.recipe, self.folder, pairs, self.has_begun, progress)
            )
        )
        self.tokenizer, self.corpora = load_corpora(self.recipe, self.folder, pairs)
        if not self.has_begun and self.workers.is_chief:
            for name, corpus in self.corpora.items():
                dropped = (reason["count"] for reason in corpus.dropped.values())
                if corpus.has_only_copies or any(dropped):
                    logger.warning("data.%s: %s", name, corpus.report)
        return initial

    def _load_initial_model(self, allow_unsafe):
        settings = self.recipe.training
        path, has_adapters = settings.initial_path, settings.lora
        if self.has_begun:
            # Checkpoints contain no weights that are frozen.
            return load_model(self.folder / BASE_MODEL)[2] if has_adapters else None
        if not path:
            return None
        path, tokenizer, model = load_model(path, allow_unsafe)
        check_matches_recipe(path, tokenizer, model, self.recipe)

        def write():
            tokenizer.save(self.folder / TOKENIZER)
            if has_adapters:
                save_model(model, self.folder / BASE_MODEL, tokenizer.fingerprint())

        self.workers.broadcast_from_chief(write)
        return model

    def build_trainer(self, initial):
        """Builds the `Trainer`, with the state of the newest checkpoint."""
        with self.workers.scope():
            model = build_training_model(self.recipe, self.tokenizer, initial)
        self.trainer = training.Trainer(
            model,
            self.folder,
            self.recipe.training.keep_checkpoints,
            self.workers,
            self.tokenizer.fingerprint(),
            skip_nonfinite=self.recipe.training.on_nonfinite == "skip",
        )
        # The scores of the initial model are the first that training has to beat.
        is_validated = initial is not None and "validation" in self.pairs
        self.trainer.progress.validation_due = is_validated
        self.trainer.restore(self._check_unchanged)
        if self.workers.is_chief:
            dump_recipe(self.recipe, self.folder / CONFIG)
        self.validate = self._build_validator()

    def _check_unchanged(self):
        """Checks the text of all stages, and that it and the replicas are unchanged."""
        fingerprints = {}
        for stage in self._stages:
            options = stage.text_options
            corpus, pairs = self._training_text(options)
            lengths = corpus.source_lengths, corpus.target_lengths
            check_budget(*lengths, stage.settings.batch_tokens, corpus.copies)
            check_targets(self.trainer.model.transformer, corpus, pairs)
            fingerprints[options] = corpus.fingerprint
        is_known = None not in fingerprints.values()
        validation = self.corpora.get("validation")
        run_folder.check_unchanged(
            self.folder,
            self.trainer.progress,
            self.allow_changes,
            text="+".join(fingerprints.values()) if is_known else None,
            # On JAX, dropout does not depend on the devices.
            replicas=None if is_jax() else self.workers.num_replicas,
            validation_text=getattr(validation, "fingerprint", None),
            validation_settings=validation_settings(self.recipe),
        )

    def _build_validator(self, beam_size=None):
        """Returns a function that computes validation metrics, or `None`."""
        if "validation" not in self.pairs:
            return None
        return build_validator(
            self.recipe,
            self.trainer.model.transformer,
            self.tokenizer,
            self.corpora["validation"],
            self.pairs["validation"],
            beam_size,
        )

    def _training_text(self, options):
        """Returns the `EncodedCorpus` and the `Pairs` for `TextOptions`."""
        return self.corpora[options.cache_name], training_pairs(self.pairs, options)

    def fit(self, show_progress):
        """Trains all unfinished stages."""
        progress = self.trainer.progress
        if self.workers.is_chief:
            self._report_start(progress.step, self._stages[-1].end)
        for number, stage in enumerate(self._stages, 1):
            has_steps_left = progress.step < stage.end
            is_validation_left = progress.step == stage.end and progress.validation_due
            if has_steps_left or is_validation_left:
                if self.recipe.training.stages:
                    is_new = progress.step == stage.start
                    self.trainer.begin_stage(number, len(self._stages), is_new)
                self._fit_stage(stage, show_progress)

    def _report_start(self, step, end):
        """Reports at which step a run resumes, or that it is complete."""
        if step > end:
            logger.warning(
                f"the run has trained {step} steps, more than training.steps={end}: it "
                "ends here. To train further, set training.steps"
            )
        elif step == end:
            longer = "add a stage" if self.recipe.training.stages else "increase it"
            logger.info(
                f"already complete at step {step:,}, as training.steps requires. To "
                f"train longer, {longer}"
            )
        elif self.has_begun:
            logger.info(f"resuming from step {step:,} of {end:,}")

    def _fit_stage(self, stage, show_progress):
        """Trains up to the last step of a stage."""
        settings, trainer, validate = stage.settings, self.trainer, self.validate
        corpus, pairs = self._training_text(stage.text_options)
        trainer.model.change_options(**regularization(settings))
        # XLA compiles once per shape.
        pad_to_bucket = is_jax() or bool(trainer.model.jit_compile)
        arguments = {
            "seed": settings.seed,
            "start_step": trainer.progress.step - stage.start,
            "num_replicas": self.workers.num_replicas,
        }
        if is_jax():
            dataset = pipelines.TrainingBatches(
                corpus, settings.batch_tokens, **arguments
            )
        else:
            dataset = pipelines.training_dataset(
                corpus,
                settings.batch_tokens,
                **arguments,
                pad_to_bucket=pad_to_bucket,
                shard=(self.workers.index, self.workers.count),
            )

        def locate_batch(step):
            """Returns the locations of the pairs in a step's batch, for messages."""
            indices = pipelines.batch_indices(
                *(corpus, settings.batch_tokens, settings.seed, step - stage.start),
                pad_to_bucket,
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

    def finish(self):
        """Averages the last checkpoints, saves the model and returns the results."""
        # The average omits checkpoints of interruptions. If an interruption wrote the
        # last step's checkpoint, saving with `END` makes it a regular one.
        self.trainer.save(END)
        summary = self.workers.broadcast_from_chief(self._finish)
        if not self.workers.is_chief:
            return {}
        summary["total seconds"] = round(time.monotonic() - self._started)
        if self.has_begun:
            summary["resumed"] = (
                "training seconds count all starts, total seconds only the last"
            )
        return summary

    def _finish(self):
        """Saves the averaged model and returns the results (first worker only)."""
        settings, decoding = self.recipe.training, self.recipe.decoding
        trainer, progress = self.trainer, self.trainer.progress
        model = trainer.model.transformer
        averaged = average_checkpoints(
            model, trainer.checkpoints.folder, settings.average_checkpoints
        )
        path = trainer.save_model(MODEL, use_average=False)
        if settings.lora:
            write_adapters(model, self.folder / ADAPTERS, settings.initial_path)
        with contextlib.suppress(RunError):  # if there is nothing to draw
            draw_curves([self.folder], self.folder / CURVES)
        corpora = [self._training_text(each.text_options)[0] for each in self._stages]
        summary = {
            "parameters": model.count_params(),
            "train pairs": _describe_pairs(corpora),
            "steps": progress.step,
            "training seconds": round(progress.seconds),
            "averaged checkpoints": len(averaged),
            "model": str(path),
        }
        if settings.initial_model:
            summary = {"initial model": settings.initial_path, **summary}
        if settings.lora:
            summary["adapters"] = str(self.folder / ADAPTERS)
        if validate := self.validate:
            # Use the same beam size as `evaluate`. Validations during training may use
            # a smaller one to save time.
            if decoding.beam_size != settings.validation_beam_size:
                validate = self._build_validator(decoding.beam_size)
            scores = validate()
            trainer.log.write(FINAL, scores)
            metrics = (f"{name} {value:.2f}" for name, value in scores.items())
            summary["validation"] = (
                f"{', '.join(metrics)} (beam size {decoding.beam_size}, "
                f"length penalty {decoding.length_penalty})"
            )
        if progress.best_step is not None:
            metric = progress.best_metric or self.recipe.validation_metric()
            step = progress.best_step
            place = f"at step {step}" if step else "before training, which did not help"
            summary["best single checkpoint"] = (
                f"{metric} {progress.best_score:.2f} {place} (best.keras; beam size "
                f"{settings.validation_beam_size})"
            )
        summary["training cost"] = training_cost(
            self.recipe, model, corpora, progress, self.workers.num_replicas
        )
        return summary


def _describe_pairs(corpora):
    """Returns a report on the training pairs, per stage if the stages differ."""
    reports = [corpus.report for corpus in corpora]
    if len(set(reports)) == 1:
        return reports[0]
    return "; ".join(f"stage {n}: {report}" for n, report in enumerate(reports, 1))
