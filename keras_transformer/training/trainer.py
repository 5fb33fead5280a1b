"""Training in a run folder, from the first step or from where it was left."""

import contextlib
import dataclasses
import logging
import pathlib

import tensorflow as tf

from keras_transformer.files import replace_file
from keras_transformer.saving.keras_file import note_tokenizer
from keras_transformer.training.callbacks import PeriodicCheckpoint
from keras_transformer.training.callbacks import Progress
from keras_transformer.training.callbacks import SkippedUpdates
from keras_transformer.training.callbacks import StepCounter
from keras_transformer.training.callbacks import Validation
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.reporting import MetricsLog
from keras_transformer.training.reporting import ProgressBar
from keras_transformer.training.reporting import TrainingLog
from keras_transformer.training.reporting import metric_sums
from keras_transformer.training.signals import SaveOnSignal

logger = logging.getLogger(__name__)

# Places of a batch's pairs that a message names; the log has them all.
_NAMED_PLACES = 3


class Trainer:
    """Runs `model.fit` with checkpoints, validation, logs and resume.

    Writes into the run's folder: `checkpoints/`, `logs/` (TensorBoard),
    `metrics.jsonl`, and `best.keras` after each best validation.

    Args:
        model: A built and compiled `TrainingModel`.
        folder: The run's folder; it exists.
        keep: Number of checkpoints that are kept.
        workers: The `Workers` that train together; only the first of them writes.
            None: there are no others.
    """

    # Noted in the models that are written. None: not.
    tokenizer_fingerprint = None

    def __init__(self, model, folder, keep=5, workers=None):
        self.model = model
        self.folder = pathlib.Path(folder)
        self.progress = Progress()
        self.writes = workers is None or workers.is_chief
        self.checkpoints = Checkpoints(
            model, self.folder / "checkpoints", keep, self.writes
        )
        self.log = MetricsLog(self.folder, self.progress, self.writes)
        alone = workers is None or workers.count == 1
        self._total = list if alone else workers.total
        self._saved_step = None

    def restore(self):
        """Goes back to the newest checkpoint.

        Returns:
            Its step; 0 where there is no checkpoint.

        Raises:
            CheckpointError: checkpoints are there, but none can be read or fits.
        """
        stored = self.checkpoints.restore()
        if stored is not None:
            for name, value in stored.items():
                setattr(self.progress, name, value)
            self._saved_step = self.progress.step
        # Without a checkpoint, all lines are of a start that came to nothing.
        self.log.rewind()
        return self.progress.step

    def save(self):
        """Writes a checkpoint of the current step, unless there is one."""
        if self._saved_step != self.progress.step:
            # Through a tensor, since a mirrored variable is no number for Keras.
            sums = map(tf.convert_to_tensor, metric_sums(self.model))
            self.progress.metrics = [float(value) for value in sums]
            progress = dataclasses.asdict(self.progress)
            self.checkpoints.save(self.progress.step, progress)
            self._saved_step = self.progress.step

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
        max_skipped=0,
        places_of=None,
    ):
        """Trains up to step `steps`.

        Args:
            dataset: Endless batches, from the one after `progress.step` on.
            steps: The last step.
            checkpoint_minutes: Minutes of training between checkpoints.
            checkpoint_steps: Steps between them, instead of minutes.
            validate: Function that returns a mapping of figures. None: no validation.
            validation_steps: Steps between validations.
            metric: The figure, one of `callbacks.METRICS`, that chooses the best model
                and stops early.
            patience: Validations without a better figure after which training stops.
                A run that had stopped stays so.
            log_steps: Steps between lines of the training metrics.
            bar: Whether to show progress on standard error.
            max_skipped: Steps in a row whose update may be left out for a loss or
                gradient that is not finite; each is told and logged.
            places_of: Function of a step, counted from 1, that names the places of
                its batch's pairs, as a list of texts. None: they are not known.

        A validation that a signal interrupted is made good before the next step.

        Raises:
            TrainingFault: more than `max_skipped` such steps; nothing is saved, so
                that the last checkpoint is from before them.
            KeyboardInterrupt: Ctrl-C, after the step was finished and saved.
            SystemExit: SIGTERM, likewise, with code 143.
        """

        def on_skip(reason):
            return self._tell_of_skip(reason, places_of)

        callbacks = [
            StepCounter(self.progress),
            SkippedUpdates(self.progress, on_skip, max_skipped),
            TrainingLog(self.log, log_steps),
        ]
        bar &= self.writes
        progress_bar = ProgressBar(self.progress, steps) if bar else None
        if bar:
            callbacks.append(progress_bar)
        on_signal = SaveOnSignal(self.save, self._total)
        validation = None
        if validate is not None:

            def on_result(figures):
                self.log.write("validation", figures)
                if bar:
                    progress_bar.show_validation(figures)

            validation = Validation(
                self.progress,
                validate,
                validation_steps,
                metric,
                on_result,
                lambda: self.save_model("best.keras"),
                patience,
                on_signal.interruptible,
            )
            callbacks.append(validation)
        callbacks.append(
            PeriodicCheckpoint(
                self.progress,
                self.save,
                minutes=checkpoint_minutes,
                steps=checkpoint_steps,
                total=self._total,
            )
        )
        callbacks.append(on_signal)
        with on_signal, progress_bar or contextlib.nullcontext():
            if validation and self.progress.validation_due:
                validation.run()
            remaining = steps - self.progress.step
            stopped = patience and self.progress.validations_since_best >= patience
            if remaining <= 0 or stopped:
                return
            # One pass of fit over an endless dataset: with an unknown number of
            # batches, Keras would count one iteration too many a pass.
            self.model.fit(
                dataset,
                steps_per_epoch=remaining,
                epochs=1,
                shuffle=False,
                verbose=0,
                callbacks=callbacks,
            )
            self.save()

    def _tell_of_skip(self, reason, places_of):
        """Logs a step that updated nothing; returns the message."""
        step = self.progress.step
        places = places_of(step) if places_of else []
        message = f"step {step}: {reason}"
        if places:
            message += f"; its batch: {', '.join(places[:_NAMED_PLACES])}"
        if len(places) > _NAMED_PLACES:
            message += f" and {len(places) - _NAMED_PLACES} more"
        self.log.note("skipped", {"reason": reason, "batch": places})
        if self.writes:
            logger.warning("%s", message)
        return message

    def save_model(self, name):
        """Writes the model to a `.keras` file in the run's folder; returns its path."""
        path = self.folder / name
        if not self.writes:
            return path
        with replace_file(path) as temporary:
            self.model.transformer.save(temporary)
            if self.tokenizer_fingerprint is not None:
                note_tokenizer(temporary, self.tokenizer_fingerprint)
        return path
