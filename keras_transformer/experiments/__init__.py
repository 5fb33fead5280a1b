"""What a recipe describes: training runs and the ablation of Table 3."""
