"""Learning rate schedules (section 5.3 of the paper)."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_transformer")
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """The paper's schedule, scaled to a given peak.

    The rate grows linearly up to `learning_rate` at step `warmup_steps`, and then falls
    in proportion to `step^-0.5`.

    Args:
        learning_rate: The peak learning rate.
        warmup_steps: Number of steps with linear growth.

    Raises:
        ValueError: If `warmup_steps` is below 1.

    Examples:
        >>> schedule = kt.training.InverseSquareRoot(0.001, warmup_steps=100)
        >>> [round(float(schedule(step)), 5) for step in (0, 99, 399)]
        [1e-05, 0.001, 0.0005]
    """

    def __init__(self, learning_rate, warmup_steps=4000):
        super().__init__()
        if warmup_steps < 1:
            raise ValueError(
                f"`warmup_steps` must be at least 1. Received: {warmup_steps}."
            )
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        # Keras counts from 0. Float32 represents every step up to 2^24 exactly.
        step = ops.cast(step, "float32") + 1.0
        warmup_steps = self.warmup_steps
        relative_rate = ops.minimum(step / warmup_steps, ops.sqrt(warmup_steps / step))
        return relative_rate * self.learning_rate

    def get_config(self):
        return {
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
        }


@keras.saving.register_keras_serializable(package="keras_transformer")
class NoamSchedule(InverseSquareRoot):
    """Learning rate schedule of the paper (equation 3).

    The rate is `scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)`. In
    this formula, steps count from 1: the first update, for which Keras passes 0, has
    step 1. The peak is at step `warmup_steps`.

    Args:
        d_model: Width of the model.
        warmup_steps: Number of steps with linear growth.
        scale: Factor by which the paper's rate is multiplied.

    Raises:
        ValueError: If `warmup_steps` is below 1.

    Examples:
        >>> schedule = kt.training.NoamSchedule(d_model=512, warmup_steps=4000)
        >>> [f"{float(schedule(step)):.1e}" for step in (0, 3999, 99_999)]
        ['1.7e-07', '7.0e-04', '1.4e-04']
    """

    def __init__(self, d_model, warmup_steps=4000, scale=1.0):
        super().__init__(scale * d_model**-0.5, warmup_steps)
        self.learning_rate *= warmup_steps**-0.5
        self.d_model = d_model
        self.scale = scale

    def get_config(self):
        return {
            "d_model": self.d_model,
            "warmup_steps": self.warmup_steps,
            "scale": self.scale,
        }


@keras.saving.register_keras_serializable(package="keras_transformer")
class LinearCooldown(keras.optimizers.schedules.LearningRateSchedule):
    """Schedule that wraps another one and lowers its last rates linearly to 0.

    In the last `cooldown_steps` updates, the rate of the wrapped schedule is multiplied
    by a factor that falls linearly from 1 to `1 / cooldown_steps`. Further updates have
    rate 0.

    Zhai et al., Scaling Vision Transformers (CVPR 2022), end an inverse square root
    schedule in this way.

    Args:
        schedule: The `LearningRateSchedule` to wrap.
        steps: Total number of updates.
        cooldown_steps: Number of updates in which the factor falls.

    Raises:
        ValueError: If `cooldown_steps` is below 1 or above `steps`.

    Examples:
        >>> noam = kt.training.NoamSchedule(d_model=512, warmup_steps=100)
        >>> schedule = kt.training.LinearCooldown(noam, steps=1000, cooldown_steps=200)
        >>> [f"{float(schedule(step)):.1e}" for step in (99, 799, 899, 999)]
        ['4.4e-03', '1.6e-03', '7.4e-04', '7.0e-06']
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
        remaining = self.steps - ops.cast(step, "float32")
        factor = ops.clip(remaining / self.cooldown_steps, 0.0, 1.0)
        return self.schedule(step) * factor

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
    """Sequence of schedules, each with its own step count from 0.

    As in all schedules, steps are updates: skipped updates do not count.

    Args:
        schedules: List of `LearningRateSchedule`, one per stage.
        steps: List with the number of steps of each stage. The last number is ignored,
            because the last stage never ends.

    Raises:
        ValueError: If there is no stage, or the lists differ in length.

    Examples:
        >>> stages = [kt.training.InverseSquareRoot(rate, 10) for rate in (1e-3, 1e-4)]
        >>> schedule = kt.training.StagedSchedule(stages, steps=[100, 100])
        >>> [f"{float(schedule(step)):.0e}" for step in (9, 109)]
        ['1e-03', '1e-04']
    """

    def __init__(self, schedules, steps):
        super().__init__()
        if not schedules or len(schedules) != len(steps):
            raise ValueError(
                "`schedules` and `steps` must have one entry per stage. Received: "
                f"{len(schedules)} schedules, {len(steps)} entries of `steps`."
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
            # `ops.where` also evaluates stages that have not begun. Their schedules
            # must not receive negative steps.
            stage_step = ops.maximum(step - start, 0.0)
            rate = ops.where(step >= start, schedule(stage_step), rate)
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
