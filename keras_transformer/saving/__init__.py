"""Models on disk: run folders, `.keras` files, presets, and SavedModels."""
