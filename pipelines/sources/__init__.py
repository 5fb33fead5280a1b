"""Sources of sentence pairs: files, datasets, records, and generated phrases."""
