"""Builds the training model that a recipe describes. Sections are the paper's."""

import keras

from keras_transformer import training
from keras_transformer.layers.adapters import add_adapters
from keras_transformer.parsing.linearization import word_marks
from keras_transformer.saving.load import build_model


def build_training_model(recipe, tokenizer, initial=None):
    """Returns a compiled `TrainingModel` with a built optimizer.

    The `Transformer` `initial` provides the initial weights. Without it, they are
    random.
    """
    settings = recipe.training
    model = build_model(recipe, tokenizer)
    if initial is not None:
        model.set_weights(initial.get_weights())
    if settings.lora:
        add_adapters(model, **settings.lora.model_dump(), seed=settings.seed)
    stages = recipe.stages
    training_model = training.TrainingModel(
        model,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        global_clipnorm=settings.global_clipnorm,
        skip_above_gradient_norm=settings.skip_above_gradient_norm,
        parallel_parts=settings.parallel_parts,
        guided_alignment=_guided_alignment(recipe, model, tokenizer),
    )
    # `change_options` creates the random generators that a stage needs. Checkpoints
    # store all of them, so all stages are set here. The first stage is set last, since
    # training starts with it.
    for stage in reversed(stages):
        training_model.change_options(**regularization(stage.settings))
    schedules = [_schedule(stage.settings, model.d_model) for stage in stages]
    schedule = schedules[0]
    if len(stages) > 1:
        lengths = [stage.settings.steps for stage in stages]
        schedule = training.StagedSchedule(schedules, lengths)
    optimizer = _optimizer(settings, schedule)
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
        "token_dropout": settings.token_dropout,
        "consistency": consistency and training.Consistency(**consistency.model_dump()),
    }


def _optimizer(settings, schedule):
    """Returns the optimizer: Adam (section 5.3), or Muon for the layers' matrices."""
    weight_decay = settings.weight_decay or None
    shared = {
        "epsilon": settings.epsilon,
        "weight_decay": weight_decay,
        "use_ema": settings.ema_momentum is not None,
        "ema_momentum": settings.ema_momentum or 0.0,
    }
    betas = settings.beta_1, settings.beta_2
    if settings.optimizer == "adam":
        return training.FusedAdam(schedule, *betas, **shared)
    # `Muon` uses Adam for vectors, for embeddings (which it recognizes by name) and for
    # learned positions (excluded below).
    return keras.optimizers.Muon(
        schedule,
        *betas,
        adam_weight_decay=weight_decay,
        exclude_layers=["_positions/"],
        **shared,
    )


def _schedule(settings, d_model):
    """Returns the learning rate schedule (section 5.3) of one stage."""
    warmup, cooldown = settings.warmup_steps, settings.cooldown_steps
    if settings.schedule == "noam":
        scale = settings.learning_rate_scale
        schedule = training.NoamSchedule(d_model, warmup, scale)
    else:
        schedule = training.InverseSquareRoot(settings.learning_rate, warmup)
    if not cooldown:
        return schedule
    return training.LinearCooldown(schedule, settings.steps, cooldown)


def _guided_alignment(recipe, model, tokenizer):
    """Returns the loss of `training.guided_alignment_weight`, or `None`.

    In a parser, a head attends to the next word. Otherwise, the mean of the last
    layer's heads, which the alignments of translations use, follows those of the text.
    """
    weight = recipe.training.guided_alignment_weight
    if not weight:
        return None
    if recipe.data.kind != "trees":
        return training.GuidedAlignment(
            training.same_groups, weight, layer=len(model.decoder.layers) - 1, head=None
        )
    begins, symbols = word_marks(tokenizer.piece_bytes(), recipe.data.linearization)
    # After the last word, the head attends to the end id.
    begins[tokenizer.end_id] = True
    aligned = training.next_words(begins, symbols, tokenizer.pad_id)
    return training.GuidedAlignment(aligned, weight)
