"""Arithmetic that exists for speed. Each function matches a plain formula."""
