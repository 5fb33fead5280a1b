"""Installation of keras_transformer (the distribution is keras-transformer-seq2seq)."""

import pathlib

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent

# Writes the warm-up requests for TF-Serving that an export contains.
SERVING_API = ["tensorflow-serving-api>=2.19,<2.22"]
SERVE = ["fastapi>=0.115", "uvicorn>=0.30", "prometheus-client>=0.20"]
# In Python's standard library from 3.14.
ZSTD = "backports.zstd>=1; python_version < '3.14'"
TEST = [
    ZSTD,
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "PyYAML>=6",
    "hypothesis>=6",
    "libretranslatepy>=2.1",
    "python-docx>=1.1",
    "ctranslate2>=4.5",
    "playwright>=1.45",
    *SERVE,
    *SERVING_API,
]
# For docs/notebooks.py, which generates the notebooks of the tutorials.
NOTEBOOKS = ["jupytext>=1.16", "nbclient>=0.10", "ipykernel>=6.29"]
DOCS = [
    "mkdocs-material>=9.6",
    "PyYAML>=6",
    *NOTEBOOKS,
]
# The tests compare tree scores with PYEVALB. `parse --split-words` uses nltk.
DEVELOPMENT = ["ruff>=0.8", "pre-commit>=4", "PYEVALB>=0.1.3", "nltk>=3.10"]

setup(
    name="keras-transformer-seq2seq",
    version="0.2.0.dev0",
    description=(
        "The Transformer of 'Attention Is All You Need' for TensorFlow and Keras 3: "
        "layers, training, beam search, evaluation and export"
    ),
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.14",
    # A top-level package called "pipelines" would collide with users' own, so
    # the folder is installed as keras_transformer.pipelines.
    packages=[
        *find_packages(include=["keras_transformer", "keras_transformer.*"]),
        "keras_transformer.pipelines",
        "keras_transformer.pipelines.sources",
        "keras_transformer.pipelines.tokenizers",
    ],
    package_dir={
        "keras_transformer.pipelines": "pipelines",
        "keras_transformer.pipelines.sources": "pipelines/sources",
        "keras_transformer.pipelines.tokenizers": "pipelines/tokenizers",
    },
    package_data={
        # Packaged models, which `keras-transformer models` lists.
        "keras_transformer": ["pretrained/*/*", "pretrained/*/assets/tokenizer/*"],
        "keras_transformer.recipes": ["*.yaml"],
        "keras_transformer.export": ["*.json"],
        "keras_transformer.serving": ["*.html", "*.css", "*.js"],
        "keras_transformer.visualization": ["*.html"],
    },
    install_requires=[
        "tensorflow>=2.20,<2.22",
        "keras>=3.15",
        "keras-nlp>=0.18",
        "tensorflow-text>=2.20,<2.22",
        "tensorboard>=2.19",
        "tensorflow-datasets>=4.9",
        # tensorflow-datasets imports it but does not list it as a requirement.
        "importlib_resources>=6",
        "safetensors>=0.5",
        "sentencepiece>=0.2",
        "sacrebleu>=2.4",
        "sacremoses>=0.1.1",
        "pydantic>=2.6",
        "ruamel.yaml>=0.18",
        "filelock>=3.20.1",
        "psutil>=5",
        "typer>=0.19",
        "rich>=13",
        "markdown-it-py>=3",
        "Babel>=2.14",
        "matplotlib>=3.8",
    ],
    extras_require={
        "test": TEST,
        "dev": TEST + DEVELOPMENT + DOCS,
        "docs": DOCS,
        # Keras's other backends: the layers, the model and the search run on them.
        "backends": ["jax>=0.6.1", "torch>=2.6", "scipy>=1.11"],
        # For data.kind: hf.
        "hf": ["datasets>=3"],
        # For hf://OWNER/NAME and push_to_hub.
        "hub": ["huggingface_hub>=0.34"],
        "serve": SERVE,
        "serving-api": SERVING_API,
        "ctranslate2": ["ctranslate2>=4.5"],
        # For `parse --split-words`.
        "parse": ["nltk>=3.10"],
        # For sacreBLEU's tokenizers of Japanese and Korean.
        "ja": ["sacrebleu[ja]>=2.4"],
        "ko": ["sacrebleu[ko]>=2.4"],
        # For text that zstd has compressed.
        "zstd": [ZSTD],
        "bench": ["torch>=2.6", "ctranslate2>=4.5", "psutil>=5", "nltk>=3.10"],
        # Beam requires protobuf 6, but sentencepiece 0.2.3 requires protobuf 7.36.
        "apache-beam": ["apache-beam>=2.77,<3", "sentencepiece<0.2.3"],
        "gpu": ["tensorflow[and-cuda]>=2.20,<2.22"],
    },
    entry_points={
        "console_scripts": ["keras-transformer = keras_transformer.cli:main"]
    },
    classifiers=[
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
