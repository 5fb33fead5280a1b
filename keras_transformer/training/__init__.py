"""Losses, metrics, schedules, and training in a run folder (section 5)."""

import importlib

_NAMES = {
    "CheckpointError": "checkpoints",
    "FusedAdam": "fused_adam",
    "GuidedAlignment": "guided_alignment",
    "InverseSquareRoot": "schedules",
    "LinearCooldown": "schedules",
    "PaperSchedule": "schedules",
    "Perplexity": "metrics",
    "SmoothedCrossEntropy": "losses",
    "TokenAccuracy": "metrics",
    "Trainer": "trainer",
    "TrainingFault": "guard",
    "TrainingModel": "training_model",
    "WorkerLost": "workers",
    "Workers": "workers",
    "WorkersError": "workers",
    "automatic_bfloat16": "automatic_precision",
    "average_checkpoints": "averaging",
    "checkpoint_paths": "checkpoints",
    "default_strategy": "distribution",
    "next_words": "guided_alignment",
    "sustained_flops": "device_rate",
    "use_threads": "threads",
}

__all__ = list(_NAMES)


def __getattr__(name):
    # On first use: losses, metrics and schedules run without TensorFlow.
    if name in _NAMES:
        return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
