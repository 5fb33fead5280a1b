"""Learning rate schedules (section 5.3)."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_transformer")
class PaperSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """`scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)` (equation 3).

    Steps count from 1: the first update, Keras's number 0, uses the rate of step 1. The
    peak is at step `warmup_steps`.

    Args:
        d_model: Width of the model.
        warmup_steps: Number of steps with linear growth.
        scale: Factor on the learning rate of the paper.

    Raises:
        ValueError: If `warmup_steps` is below 1.
    """

    def __init__(self, d_model, warmup_steps=4000, scale=1.0):
        super().__init__()
        _check_warmup(warmup_steps)
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.scale = scale

    def __call__(self, step):
        shape = _warmup_then_inverse_sqrt(step, self.warmup_steps)
        return shape * (self.scale * self.d_model**-0.5 * self.warmup_steps**-0.5)

    def get_config(self):
        return {
            "d_model": self.d_model,
            "warmup_steps": self.warmup_steps,
            "scale": self.scale,
        }


@keras.saving.register_keras_serializable(package="keras_transformer")
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """Linear growth to `learning_rate` at `warmup_steps`, then `step^-0.5`.

    It has the shape of the paper's schedule, with the peak as an argument.

    Args:
        learning_rate: The peak learning rate.
        warmup_steps: Number of steps with linear growth.

    Raises:
        ValueError: If `warmup_steps` is below 1.
    """

    def __init__(self, learning_rate, warmup_steps=4000):
        super().__init__()
        _check_warmup(warmup_steps)
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        shape = _warmup_then_inverse_sqrt(step, self.warmup_steps)
        return shape * self.learning_rate

    def get_config(self):
        return {
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
        }


@keras.saving.register_keras_serializable(package="keras_transformer")
class LinearCooldown(keras.optimizers.schedules.LearningRateSchedule):
    """Wraps a schedule so that the rate of its last updates falls linearly to 0.

    Update `steps - k`, counted from 1, uses `(k + 1) / cooldown_steps` of the wrapped
    schedule's rate: the first update of the cooldown uses all of it, the last
    `1 / cooldown_steps`. Updates after `steps` use 0.

    Source: Zhai et al., Scaling Vision Transformers (CVPR 2022), who end an inverse
    square root schedule in this way.

    Args:
        schedule: The `LearningRateSchedule` to wrap.
        steps: Number of the last update.
        cooldown_steps: Number of updates in which the rate falls.

    Raises:
        ValueError: If `cooldown_steps` is below 1 or above `steps`.
    """

    def __init__(self, schedule, steps, cooldown_steps):
        super().__init__()
        if not 1 <= cooldown_steps <= steps:
            raise ValueError(
                "`cooldown_steps` must be between 1 and `steps`. Received: "
                f"cooldown_steps={cooldown_steps}, steps={steps}."
            )
        self.schedule = schedule
        self.steps = steps
        self.cooldown_steps = cooldown_steps

    def __call__(self, step):
        left = self.steps - ops.cast(step, "float32")
        return self.schedule(step) * ops.clip(left / self.cooldown_steps, 0.0, 1.0)

    def get_config(self):
        return {
            "schedule": keras.saving.serialize_keras_object(self.schedule),
            "steps": self.steps,
            "cooldown_steps": self.cooldown_steps,
        }

    @classmethod
    def from_config(cls, config):
        schedule = keras.saving.deserialize_keras_object(config["schedule"])
        return cls(**{**config, "schedule": schedule})


@keras.saving.register_keras_serializable(package="keras_transformer")
class StagedSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Schedules that follow one another, each of which counts its own steps from 0.

    Args:
        schedules: List of `LearningRateSchedule`, one per stage.
        steps: List of the stages' numbers of steps. The last stage never ends.

    Raises:
        ValueError: If there is no stage, or the lists differ in length.
    """

    def __init__(self, schedules, steps):
        super().__init__()
        if not schedules or len(schedules) != len(steps):
            raise ValueError(
                "`schedules` and `steps` must have one entry per stage. Received: "
                f"{len(schedules)} schedules, {len(steps)} numbers of steps."
            )
        self.schedules = list(schedules)
        self.steps = list(steps)

    def __call__(self, step):
        step = ops.cast(step, "float32")
        start = 0
        rate = self.schedules[0](step)
        stages = zip(self.schedules[1:], self.steps[:-1], strict=True)
        for schedule, steps_before in stages:
            start += steps_before
            # Before its start, a stage must not compute with negative steps.
            own_step = ops.maximum(step - start, 0.0)
            rate = ops.where(step >= start, schedule(own_step), rate)
        return rate

    def get_config(self):
        return {
            "schedules": [
                keras.saving.serialize_keras_object(each) for each in self.schedules
            ],
            "steps": self.steps,
        }

    @classmethod
    def from_config(cls, config):
        schedules = map(keras.saving.deserialize_keras_object, config["schedules"])
        return cls(list(schedules), config["steps"])


def _check_warmup(warmup_steps):
    if warmup_steps < 1:
        raise ValueError(
            f"`warmup_steps` must be at least 1. Received: {warmup_steps}."
        )


def _warmup_then_inverse_sqrt(step, warmup_steps):
    # 1 at the peak. Float32 represents every step up to 2^24 exactly.
    step = ops.cast(step, "float32") + 1.0
    return ops.minimum(step / warmup_steps, ops.sqrt(warmup_steps / step))
