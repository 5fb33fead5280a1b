"""Training with several workers, and Apache Beam pipelines for large corpora."""
