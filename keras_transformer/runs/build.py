"""Builds the training model that a recipe describes. Sections are the paper's."""

import keras

from keras_transformer import training
from keras_transformer.parsing.linearization import word_marks
from keras_transformer.saving.load import build_model


def build_training_model(recipe, tokenizer, initial=None):
    """Returns a compiled `TrainingModel` with a built optimizer.

    Args:
        recipe: A `Recipe`.
        tokenizer: Source tokenizer. Its attribute `target` is the target tokenizer.
        initial: `Transformer` that provides the initial weights. If `None`, they are
            random.
    """
    settings = recipe.training
    model = build_model(recipe, tokenizer)
    if initial is not None:
        model.set_weights(initial.get_weights())
    stages = recipe.stages
    training_model = training.TrainingModel(
        model,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        global_clipnorm=settings.global_clipnorm,
        max_gradient_norm=settings.max_gradient_norm,
        parallel_parts=settings.parallel_parts,
        guided_alignment=_guided_alignment(recipe, tokenizer),
    )
    # `change_options` creates the random generators that a stage needs. Checkpoints
    # store all of them, so all stages are set here. The first stage is set last, since
    # training starts with it.
    for stage in reversed(stages):
        training_model.change_options(**regularization(stage.settings))
    optimizer = _optimizer(settings, _schedule(stages, model.d_model))
    if settings.weight_decay:
        # Only matrices decay, not biases or normalization scales.
        vectors = [each for each in model.trainable_weights if len(each.shape) < 2]
        optimizer.exclude_from_weight_decay(var_list=vectors)
    training_model.compile(optimizer=optimizer, jit_compile=settings.jit_compile)
    training_model.build({"source_ids": (None, None), "target_ids": (None, None)})
    return training_model


def regularization(settings):
    """Returns a stage's arguments for `TrainingModel.change_options`."""
    consistency = settings.consistency
    return {
        "label_smoothing": settings.label_smoothing,
        "word_dropout": settings.word_dropout,
        "consistency": consistency and training.Consistency(**consistency.model_dump()),
    }


def _optimizer(settings, schedule):
    """Returns the optimizer: Adam (section 5.3), or Muon for the layers' matrices."""
    weight_decay = settings.weight_decay or None
    average = {
        "use_ema": settings.ema_momentum is not None,
        "ema_momentum": settings.ema_momentum or 0.0,
    }
    if settings.optimizer == "adam":
        return training.FusedAdam(
            schedule,
            beta_1=settings.beta_1,
            beta_2=settings.beta_2,
            epsilon=settings.epsilon,
            weight_decay=weight_decay,
            **average,
        )
    # `Muon` uses Adam for vectors, for embeddings (which it recognizes by name) and for
    # learned positions (excluded below).
    return keras.optimizers.Muon(
        schedule,
        adam_beta_1=settings.beta_1,
        adam_beta_2=settings.beta_2,
        epsilon=settings.epsilon,
        weight_decay=weight_decay,
        adam_weight_decay=weight_decay,
        exclude_layers=["_positions/"],
        **average,
    )


def _schedule(stages, d_model):
    schedules = [_stage_schedule(stage.settings, d_model) for stage in stages]
    if len(stages) == 1:
        return schedules[0]
    lengths = [stage.settings.steps for stage in stages]
    return training.StagedSchedule(schedules, lengths)


def _stage_schedule(settings, d_model):
    """Returns the learning rate schedule (section 5.3) of one stage."""
    if settings.schedule == "paper":
        schedule = training.PaperSchedule(
            d_model, settings.warmup_steps, settings.learning_rate_scale
        )
    else:
        schedule = training.InverseSquareRoot(
            settings.learning_rate, settings.warmup_steps
        )
    if settings.cooldown_steps:
        schedule = training.LinearCooldown(
            schedule, settings.steps, settings.cooldown_steps
        )
    return schedule


def _guided_alignment(recipe, tokenizer):
    """Returns the loss that trains an attention head to attend to the next word.

    The loss is for parsers. If the recipe has no `guided_alignment`, returns `None`.
    """
    weight = recipe.training.guided_alignment
    if not weight:
        return None
    # The schema allows this loss only for `data.kind: trees`, which has `data.words`.
    begins, symbols = word_marks(tokenizer.piece_bytes(), recipe.data.words)
    # After the last word, the head attends to the end id.
    begins[tokenizer.end_id] = True
    aligned = training.next_words(begins, symbols, tokenizer.pad_id)
    return training.GuidedAlignment(aligned, weight)
