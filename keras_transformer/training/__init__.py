"""Losses, metrics, schedules and the training loop (section 5 of the paper)."""

from keras_transformer._imports import lazy_names

_NAMES = {
    "Consistency": "consistency",
    "FusedAdam": "fused_adam",
    "GuidedAlignment": "guided_alignment",
    "InverseSquareRoot": "schedules",
    "LinearCooldown": "schedules",
    "NoamSchedule": "schedules",
    "Perplexity": "metrics",
    "SmoothedCrossEntropy": "losses",
    "StagedSchedule": "schedules",
    "TokenAccuracy": "metrics",
    "Trainer": "trainer",
    "TrainingModel": "training_model",
    "Workers": "workers",
    "allocate_gpu_memory_on_demand": "devices",
    "automatic_bfloat16": "devices",
    "configure_threads": "devices",
    "default_strategy": "replicas",
    "fix_order_of_sums": "devices",
    "next_words": "guided_alignment",
    "same_groups": "guided_alignment",
}

__all__ = list(_NAMES)

# Losses, metrics and schedules need no TensorFlow.
__getattr__, __dir__ = lazy_names(__name__, ("workers",), _NAMES)
