"""Conversion of models that other toolkits trained: Marian and Hugging Face."""
