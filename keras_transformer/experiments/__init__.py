"""Training runs from recipes, which are files of settings, and the runs of Table 3."""
