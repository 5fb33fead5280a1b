"""Losses, metrics, schedules and the training loop (section 5 of the paper)."""

import importlib

_NAMES = {
    "Consistency": "consistency",
    "FusedAdam": "fused_adam",
    "GuidedAlignment": "guided_alignment",
    "InverseSquareRoot": "schedules",
    "LinearCooldown": "schedules",
    "PaperSchedule": "schedules",
    "Perplexity": "metrics",
    "SmoothedCrossEntropy": "losses",
    "StagedSchedule": "schedules",
    "TokenAccuracy": "metrics",
    "Trainer": "trainer",
    "TrainingModel": "training_model",
    "allocate_gpu_memory_on_demand": "devices",
    "automatic_bfloat16": "devices",
    "configure_threads": "devices",
    "default_strategy": "replicas",
    "fix_order_of_sums": "devices",
    "next_words": "guided_alignment",
}

__all__ = list(_NAMES)


def __getattr__(name):
    # Imported on first use, so that losses, metrics and schedules need no TensorFlow.
    if name in _NAMES:
        return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
