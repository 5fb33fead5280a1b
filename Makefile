# `make demo` and `make test` need nothing but Python 3.11 or later: they set up .venv.

PYTHON ?= python3
# More of setup.py's extras: make test EXTRAS=dev,backends
EXTRAS ?= dev
# Another folder for the environment: make test VENV=/tmp/venv
VENV ?= .venv
BIN := $(VENV)/bin
comma := ,
# A mark for each choice of extras.
INSTALLED := $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))
DEMO_ARGS ?=
TEST_ARGS ?=

.PHONY: help setup demo test test-slow docs lint format lock clean

help:
	@echo "make demo       set up .venv, then train, evaluate, export and translate"
	@echo "make test       set up .venv, then run the tests (TEST_ARGS=... is passed on)"
	@echo "make test-slow  run the tests that take long"
	@echo "make docs       build the site of docs/ into build/site; a warning is an error"
	@echo "make lint       check style and formatting; make format mends them"
	@echo "make setup      set up .venv only"
	@echo "make lock       rewrite requirements.lock from what .venv holds"
	@echo "make clean      delete .venv and what the tools left behind"

setup: $(INSTALLED)

$(INSTALLED): setup.py pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable ".[$(EXTRAS)]"
	touch $@

demo: $(INSTALLED)
	$(BIN)/keras-transformer demo $(DEMO_ARGS)

# A file's tests stay together: they share what is slow to make.
test: $(INSTALLED)
	$(BIN)/python -m pytest -n auto --dist loadfile $(TEST_ARGS)

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow $(TEST_ARGS)

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

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
