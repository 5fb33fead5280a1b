"""Learning rate schedules: the paper's (section 5.3), cooldown, and stages."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import training


def paper_rate(step, d_model, warmup_steps):
    """Computes the paper's Equation 3. The first step is 1."""
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def update_rates(schedule, steps):
    """Returns the rates of the first updates. Keras numbers them from 0."""
    return np.array([float(schedule(step)) for step in range(steps)])


@pytest.mark.parametrize(
    ("schedule", "warmup_steps", "peak"),
    [
        *((training.NoamSchedule(7, n), n, (7 * n) ** -0.5) for n in (1, 2, 31)),
        (training.NoamSchedule(7, 5, scale=2.5), 5, 2.5 * 35**-0.5),
        *((training.InverseSquareRoot(0.003, n), n, 0.003) for n in (1, 7)),
    ],
)
def test_schedules_have_the_shape_of_equation_3(schedule, warmup_steps, peak):
    values = update_rates(schedule, 97)
    paper = np.array([paper_rate(step, 1, warmup_steps) for step in range(1, 98)])
    np.testing.assert_allclose(values, peak * paper / paper.max(), rtol=1e-5)
    assert np.argmax(values) + 1 == warmup_steps


def test_paper_schedule_matches_hand_calculation():
    # 512^-0.5 * 4000^-0.5 = 6.9877e-4 at step 4,000, and half of it at step 16,000.
    schedule = training.NoamSchedule(512)
    for step in (1, 3999, 4000, 4001, 16_000, 100_000):
        rate = float(schedule(step - 1))
        assert rate == pytest.approx(paper_rate(step, 512, 4000), 1e-5)
    assert float(schedule(3999)) == pytest.approx(6.9877e-4, 1e-4)
    assert float(schedule(15_999)) == pytest.approx(6.9877e-4 / 2, 1e-4)


@pytest.mark.parametrize(("steps", "cooldown"), [(20, 1), (20, 5), (20, 20)])
def test_linear_cooldown_falls_to_zero(steps, cooldown):
    inner = training.InverseSquareRoot(0.003, 4)
    values = update_rates(training.LinearCooldown(inner, steps, cooldown), steps + 3)
    expected = update_rates(inner, steps + 3)
    for k in range(cooldown):  # the k-th update before the last
        expected[steps - 1 - k] *= (k + 1) / cooldown
    expected[steps:] = 0.0
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(
    "schedule",
    [
        training.NoamSchedule(96, 13, scale=1.7),
        training.InverseSquareRoot(0.003, 11),
        training.LinearCooldown(training.NoamSchedule(96, 13), 29, 11),
    ],
)
def test_schedules_config_round_trip(schedule):
    config = keras.saving.serialize_keras_object(schedule)
    again = keras.saving.deserialize_keras_object(config)
    assert again.get_config() == schedule.get_config()
    np.testing.assert_array_equal(update_rates(again, 29), update_rates(schedule, 29))


@pytest.mark.parametrize(
    ("schedule", "arguments", "message"),
    [
        (training.NoamSchedule, (64, 0), "warmup_steps.*Received: 0"),
        (training.InverseSquareRoot, (64, 0), "warmup_steps.*Received: 0"),
        *(
            (training.LinearCooldown, (None, 20, steps), f"cooldown_steps={steps}, st")
            for steps in (0, 21)
        ),
        (training.StagedSchedule, ([None], [1, 2]), "one entry per stage"),
        (training.StagedSchedule, ([], []), "one entry per stage"),
    ],
)
def test_schedules_reject_invalid_numbers(schedule, arguments, message):
    with pytest.raises(ValueError, match=message):
        schedule(*arguments)


def test_fit_starts_with_rate_of_step_1():
    """With a gradient of 1, the weight is minus the sum of the rates."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    schedule = training.NoamSchedule(1, 3)
    model.compile(
        keras.optimizers.SGD(schedule),
        loss=lambda labels, outputs: keras.ops.mean(outputs),
    )
    ones = tf.data.Dataset.from_tensors((np.ones((2, 1)), np.ones((2, 1)))).repeat()
    model.set_weights([np.zeros((1, 1))])
    total = 0.0
    for first in (1, 3, 5):
        model.fit(ones, steps_per_epoch=2, epochs=1, shuffle=False, verbose=0)
        total += paper_rate(first, 1, 3) + paper_rate(first + 1, 1, 3)
        assert -float(model.get_weights()[0][0, 0]) == pytest.approx(total, 1e-5)


def test_staged_schedule_restarts_each_schedule():
    first = training.InverseSquareRoot(0.01, warmup_steps=3)
    second = training.LinearCooldown(
        training.InverseSquareRoot(0.002, warmup_steps=2), 5, 5
    )
    third = training.NoamSchedule(8, warmup_steps=3)
    staged = training.StagedSchedule([first, second, third], [4, 5, 6])
    parts = [update_rates(first, 4), update_rates(second, 5), update_rates(third, 6)]
    found = update_rates(staged, 15)
    np.testing.assert_allclose(found, np.concatenate(parts), rtol=1e-6)
    copy = training.StagedSchedule.from_config(staged.get_config())
    np.testing.assert_allclose(update_rates(copy, 15), found)
