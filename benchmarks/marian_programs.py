"""Runs Marian's own programs, which the package pymarian contains.

pymarian 1.12.42 needs Python 3.11 and a separate environment.
"""

import os
import pathlib
import re
import shutil
import subprocess

import numpy as np

# SentencePiece models, which split texts into pieces.
SPLITTERS = ("source.spm", "target.spm")
# Settings of a small post-norm model. Except for its size, it is like OPUS-MT models.
MODEL = {
    "type": "transformer",
    "tied-embeddings-all": "true",
    "enc-depth": 2,
    "dec-depth": 2,
    "dim-emb": 128,
    "transformer-dim-ffn": 512,
    "transformer-heads": 4,
    "transformer-ffn-activation": "swish",
}
TRAINING = {
    "transformer-dropout": 0.1,
    "label-smoothing": 0.1,
    "cost-type": "ce-mean-words",
    "lr-warmup": 1000,
    "lr-decay-inv-sqrt": 1000,
    "optimizer-params": "0.9 0.98 1e-09",
    "maxi-batch": 200,
    "max-length": 100,
    "seed": 1,
    "disp-freq": 200,
    "save-freq": 500,
}
# Settings of the two stages of training. The second stage has smaller batches.
STAGES = (
    {"mini-batch-words": 1500, "learn-rate": 0.002, "after": "600u"},
    {"mini-batch-words": 500, "learn-rate": 0.0015, "after": "2500u"},
)
# Settings of the search, which `keras-transformer import` also reads.
DECODER = """relative-paths: true
models: [model.npz]
vocabs: [vocab.yml, vocab.yml]
beam-size: 4
normalize: 1
"""


class Marian:
    """Marian's model in a folder with `vocab.yml` and the files of `SPLITTERS`.

    Args:
        program: Path of the command `pymarian`.
        folder: Folder of the model.
        threads: Number of threads.
    """

    def __init__(self, program, folder, threads=1):
        self.program = program
        self.folder = pathlib.Path(folder)
        self.threads = threads

    def prepare(self, sources, targets, vocabulary_size=4000):
        """Trains the SentencePiece model and writes the training text in pieces."""
        import sentencepiece

        self.folder.mkdir(parents=True, exist_ok=True)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*sources, *targets]),
            model_prefix=str(self.folder / "joint"),
            vocab_size=vocabulary_size,
            minloglevel=2,
        )
        (self.folder / "joint.vocab").unlink()
        for name in SPLITTERS:
            shutil.copy(self.folder / "joint.model", self.folder / name)
        (self.folder / "joint.model").unlink()
        for side, texts in (("source", sources), ("target", targets)):
            self._write(f"train.{side}", self.split(texts, side))
        (self.folder / "decoder.yml").write_text(DECODER)

    def train(self, stages=STAGES, **changes):
        """Trains a model on the prepared text. Marian writes the vocabulary.

        Args:
            stages: Settings of each stage, which continues the one before.
            **changes: Settings that override `MODEL` and `TRAINING`.
        """
        files = "-m model.npz -t train.source train.target -v vocab.yml vocab.yml"
        for stage in stages:
            settings = {**MODEL, **TRAINING, **changes, **stage}
            options = [f"--{name} {value}" for name, value in settings.items()]
            self._run("train", *files.split(), *" ".join(options).split())

    def split(self, texts, side):
        """Splits texts with the library sentencepiece.

        Args:
            texts: List of str.
            side: "source" or "target".

        Returns:
            List of str, pieces separated by spaces.
        """
        import sentencepiece

        path = str(self.folder / f"{side}.spm")
        processor = sentencepiece.SentencePieceProcessor(model_file=path)
        return [" ".join(pieces) for pieces in processor.encode(texts, out_type=str)]

    def word_scores(self, sources, targets):
        """Returns the log-probabilities of each target's pieces and of its end.

        Args:
            sources: List of str, pieces separated by spaces.
            targets: List of str, pieces separated by spaces.

        Returns:
            List of arrays `[pieces + 1]`. Marian prints five decimals.
        """
        self._write("score.source", sources)
        self._write("score.target", targets)
        self._run(
            *("score", *self._model(), "-t", "score.source", "score.target"),
            *("--word-scores", "--output", "score.output"),
        )
        lines = self._read("score.output")
        return [
            np.array(line.partition("WordScores=")[2].split(), float) for line in lines
        ]

    def decode(self, sources, beam_size, normalize):
        """Translates with Marian's decoder.

        Args:
            sources: List of str, pieces separated by spaces.
            beam_size: Number of hypotheses.
            normalize: Exponent of the length by which scores are divided.

        Returns:
            List of str, pieces separated by spaces.
        """
        self._write("decode.source", sources)
        self._run(
            *("decode", *self._model(), "--input", "decode.source"),
            *("--output", "decode.output", "--beam-size", beam_size),
            *("--normalize", normalize, "--mini-batch", 32, "--maxi-batch", 100),
            *("--maxi-batch-sort", "src", "--max-length", 1000),
        )
        return self._read("decode.output")

    def version(self):
        """Returns the version of the program."""
        found = self._run("--version")
        return re.search(r"v[0-9.]+", found.stdout + found.stderr)[0]

    def _model(self):
        return ("-m", "model.npz", "-v", "vocab.yml", "vocab.yml")

    def _run(self, command, *options):
        threads = () if command == "--version" else ("--cpu-threads", self.threads)
        found = subprocess.run(
            [self.program, command, *map(str, (*options, *threads))],
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        if found.returncode:
            raise RuntimeError(f"{command}: {found.stderr[-2000:]}")
        return found

    def _write(self, name, lines):
        text = "".join(f"{line}\n" for line in lines)
        (self.folder / name).write_text(text, encoding="utf-8")

    def _read(self, name):
        text = (self.folder / name).read_text(encoding="utf-8")
        return text.removesuffix("\n").split("\n")
