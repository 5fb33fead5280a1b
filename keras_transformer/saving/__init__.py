"""Models on disk: run folders, `.keras` files, and SavedModels."""
