# Targets that need .venv set it up first. This requires only Python 3.11 to 3.13.

PYTHON ?= python3
# Extras of setup.py to install, e.g. make test EXTRAS=dev,backends
EXTRAS ?= dev
# Folder of the environment, e.g. make test VENV=/tmp/venv
VENV ?= .venv
BIN := $(VENV)/bin
comma := ,
# One marker file per choice of extras.
INSTALLED := $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))
DEMO_ARGS ?=
TEST_ARGS ?=
# Recipe of the packaged model that make pretrained trains
MODEL ?= phrases

.PHONY: help setup demo pretrained test test-slow docs reference lint format lock clean

help:
	@echo "make demo       set up .venv, then train, evaluate, export and translate"
	@echo "make pretrained train a packaged model and store it (MODEL=phrases)"
	@echo "make test       set up .venv, then run the tests (pytest gets TEST_ARGS=...)"
	@echo "make test-slow  run the slow tests"
	@echo "make docs       build the site into build/site; warnings are errors"
	@echo "make reference  rewrite the generated pages of docs/reference"
	@echo "make lint       check style and formatting; make format fixes them"
	@echo "make setup      set up .venv only"
	@echo "make lock       rewrite requirements.lock from the packages in .venv"
	@echo "make clean      delete .venv, builds and caches"

setup: $(INSTALLED)

$(INSTALLED): setup.py pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable ".[$(EXTRAS)]"
	touch $@

demo: $(INSTALLED)
	$(BIN)/keras-transformer demo $(DEMO_ARGS)

pretrained: $(INSTALLED)
	$(BIN)/keras-transformer train $(MODEL) --output runs/$(MODEL)
	$(BIN)/python benchmarks/pretrained.py $(MODEL) runs/$(MODEL)

# tests/conftest.py decides which tests run in one process.
test: $(INSTALLED)
	$(BIN)/python -m pytest -n auto $(TEST_ARGS)

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow $(TEST_ARGS)

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

reference: $(INSTALLED)
	$(BIN)/python docs/reference.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(INSTALLED)
	head -n 1 requirements.lock > requirements.lock.new
	$(BIN)/python -m pip freeze --exclude-editable >> requirements.lock.new
	mv requirements.lock.new requirements.lock

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
