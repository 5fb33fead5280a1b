"""Several workers for training, and Apache Beam for large corpora."""
