"""Training runs from recipes, and the variations of Table 3."""
