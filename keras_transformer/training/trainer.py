"""Training of a model in a run folder."""

import contextlib
import pathlib

from keras_transformer.saving.checkpoints import END, INTERRUPTION, SCHEDULE
from keras_transformer.saving.keras_file import save_model
from keras_transformer.training.callbacks import AfterStep, Progress
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.moving_average import MovingAverage
from keras_transformer.training.replicas import SingleProcess
from keras_transformer.training.reporting import (
    STAGE,
    MetricsLog,
    metric_sums,
    restore_metric_sums,
)
from keras_transformer.training.step_ops import sync_variables


class Trainer:
    """Training loop that validates, writes checkpoints and logs, and resumes runs.

    It writes `checkpoints/`, `logs/` (for TensorBoard) and `metrics.jsonl` into the run
    folder, and `best.keras` after each new best validation score. If the optimizer
    averages the weights (`use_ema`), validation and saved models use the average.

    Args:
        model: A built and compiled `TrainingModel`.
        folder: The run folder, which must exist.
        keep: Number of checkpoints to keep, not counting those that are written at an
            interruption.
        workers: `Workers` object of a distributed run, in which only the chief writes
            files. If `None`, this process trains alone.
        tokenizer_fingerprint: The tokenizer's fingerprint, to store in saved models. If
            `None`, no fingerprint is stored.
        skip_nonfinite: Whether steps whose loss or gradient is not finite may be
            skipped. Otherwise, the first one stops training.

    Raises:
        ValueError: If `keep` is below 1, or the model was compiled with
            `steps_per_execution` above 1.

    Examples:
        >>> import os
        >>> transformer = kt.Transformer(100, num_layers=1, d_model=16, num_heads=2)
        >>> model = kt.training.TrainingModel(transformer)
        >>> model.compile(kt.training.FusedAdam(1e-3))
        >>> model.build({"source_ids": (None, None), "target_ids": (None, None)})
        >>> os.makedirs("runs/mine")
        >>> trainer = kt.training.Trainer(model, "runs/mine")
        >>> trainer.fit(batches, steps=1000)  # of training_dataset
    """

    def __init__(
        self,
        model,
        folder,
        keep=5,
        workers=None,
        tokenizer_fingerprint=None,
        skip_nonfinite=True,
    ):
        if model.steps_per_execution > 1:
            raise ValueError(
                "`steps_per_execution` must be 1, so that every step is counted. "
                f"Received: {model.steps_per_execution}."
            )
        self.model = model
        self.folder = pathlib.Path(folder)
        self.progress = Progress()
        self.workers = workers or SingleProcess()
        self.writes = self.workers.is_chief
        self.checkpoints = Checkpoints(
            model, self.folder / "checkpoints", keep, self.writes
        )
        self.moving_average = MovingAverage(model)
        self.log = MetricsLog(self.folder, self.progress, self.writes)
        self._tokenizer_fingerprint = tokenizer_fingerprint
        self.skip_nonfinite = skip_nonfinite
        self.stage = ""  # such as "stage 1 of 2", for the progress bar
        self._saved_step = None

    def restore(self, check=None):
        """Restores the newest checkpoint.

        Args:
            check: Function without arguments that is called after `progress` is
                restored. If it raises an exception, no file has changed.

        Returns:
            The step of the checkpoint, or 0 if no checkpoint was ever written.

        Raises:
            CheckpointError: If checkpoints exist but none can be read, if the newest
                readable one does not match the model, or if all were lost.
            RunError: If `metrics.jsonl` cannot be read.
        """
        stored = self.checkpoints.restore(Progress)
        if stored is not None:
            for name, value in stored:
                setattr(self.progress, name, value)
            # A checkpoint may be written before `fit` restores these sums.
            restore_metric_sums(self.model, self.progress.metrics)
            self.model.num_tokens = self.progress.tokens
            self._saved_step = self.progress.step
        if check is not None:
            check()
        if stored is not None:
            self.checkpoints.finish_rotation(self.progress.step)
        # Without a checkpoint, this removes the lines of all steps.
        self.log.rewind()
        return self.progress.step

    def save(self, reason=SCHEDULE):
        """Writes a checkpoint of the current step, unless one exists.

        An existing checkpoint of an interruption is rewritten for another reason.

        Args:
            reason: `"schedule"`, `"end"` or `"interruption"`. After a skipped step, it
                is always `"interruption"`, so that the unchanged weights do not count
                twice in an average of checkpoints.
        """
        sync_variables(self.model)
        # A signal may have interrupted a validation, which uses the averaged weights.
        self.moving_average.restore()
        progress = self.progress
        if progress.skipped_in_a_row:
            reason = INTERRUPTION
        was_interrupted = progress.reason == INTERRUPTION
        becomes_regular = was_interrupted and reason != INTERRUPTION
        if self._saved_step == progress.step and not becomes_regular:
            return
        progress.metrics = [float(each.numpy()) for each in metric_sums(self.model)]
        progress.tokens = self.model.num_tokens
        progress.reason = reason
        self.checkpoints.save(progress.step, dict(progress))
        self._saved_step = progress.step

    def begin_stage(self, number, num_stages, is_new):
        """Sets the stage that the log and the progress bar show, counted from 1.

        `is_new` means that no step of the stage has been trained yet.
        """
        self.progress.stage = number
        self.stage = f"stage {number} of {num_stages}"
        if is_new:
            # The sums of the last stage do not count in this stage's lines of the log.
            self.progress.metrics = []
            self.log.note(STAGE, {})

    def fit(
        self,
        dataset,
        steps,
        checkpoint_minutes=10.0,
        checkpoint_steps=None,
        validate=None,
        validation_steps=1000,
        metric="bleu",
        patience=None,
        log_steps=100,
        bar=True,
        max_consecutive_skips=0,
        locate_batch=None,
    ):
        """Trains up to step `steps`.

        If a signal interrupts a validation, the next call repeats the validation before
        training.

        Args:
            dataset: Endless dataset of batches. The first batch is for the step after
                `progress.step`. On JAX, the step is first compiled for all `shapes` of
                `TrainingBatches`.
            steps: Number of the last step.
            checkpoint_minutes: Minutes of training between checkpoints.
            checkpoint_steps: Number of steps between checkpoints. If not `None`,
                `checkpoint_minutes` is ignored.
            validate: Function without arguments that returns a mapping of metric names
                to numbers. If `None`, `fit` does not validate.
            validation_steps: Number of steps between validations.
            metric: The metric that decides which model is best: `"bleu"`, `"chrf"`,
                `"f1"` or `"perplexity"`.
            patience: Number of validations without a better value after which training
                stops. Later calls then do not train. If `None`, training never stops
                early.
            log_steps: Number of steps between lines of the training metrics.
            bar: Whether to show progress toward `steps` on standard error. If later
                calls train further, pass the number of the run's last step instead of
                `True`.
            max_consecutive_skips: Maximum number of consecutive steps whose update is
                skipped (see `TrainingModel`). Each skip is reported. With 0, the first
                one stops training, whatever `skip_nonfinite`.
            locate_batch: Function that receives the number of a skipped step, from 1,
                and returns the locations of the sentence pairs in its batch (list of
                str, such as "file:line"). They are reported with the skip. If `None`,
                no locations are reported.

        Raises:
            ValueError: If `fit` validates and `metric` is unknown.
            TrainingFaultError: If more than `max_consecutive_skips` consecutive updates
                were skipped, or one that `skip_nonfinite` forbids. Nothing is saved.
            KeyboardInterrupt: On Ctrl-C, after the step is finished and saved.
            SystemExit: On SIGTERM or SIGHUP, after the step is finished and saved. The
                code is 143 or 129.
        """
        after_step = AfterStep(
            self,
            steps,
            checkpoint_minutes,
            checkpoint_steps,
            validate,
            validation_steps,
            metric,
            patience,
            log_steps,
            bar,
            max_consecutive_skips,
            locate_batch,
        )
        with after_step:
            if validate and self.progress.validation_due:
                # The validation of an initial model, or one that a signal interrupted.
                # The checkpoint of its step still says that it is due, and a scheduled
                # one was not written.
                after_step.run_validation()
                if self.progress.step:
                    self._saved_step = None
                    after_step.save_if_due()
            remaining = steps - self.progress.step
            if remaining > 0 and not after_step.is_over():
                if shapes := getattr(dataset, "shapes", None):
                    after_step.compile(shapes)
                # The dataset's cardinality must be infinite. If it were unknown, Keras
                # would count one iteration too many per epoch.
                self.model.fit(
                    dataset,
                    steps_per_epoch=remaining,
                    epochs=1,
                    shuffle=False,
                    verbose=0,
                    callbacks=[after_step],
                )
            self.save(END)
            after_step.report_end()

    def save_model(self, name, use_average=True):
        """Saves the model in the run folder and returns the path of the file.

        Args:
            name: Name of the file, with the suffix `.keras`.
            use_average: Whether to save the optimizer's average of the weights, if it
                computes one, instead of the model's weights.
        """
        path = self.folder / name
        if not self.writes:
            return path
        weights = contextlib.nullcontext()
        if use_average:
            weights = self.moving_average.use_average()
        with weights:
            save_model(self.model.transformer, path, self._tokenizer_fingerprint)
        return path
