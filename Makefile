# Two commands for a newcomer: `make demo` and `make test`. Both work in .venv and leave the system alone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2

.PHONY: demo test test-gpu check format docs clean

demo: $(VENV)/.package
	$(BIN)/python -m maxk demo

test: check
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-gpu:
	PYTHONPATH=src $(PYTHON) -m pytest -m gpu --require gpu

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	git ls-files '*.cu' '*.cuh' | xargs -r $(BIN)/clang-format --dry-run --Werror

format: $(VENV)/.test
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	git ls-files '*.cu' '*.cuh' | xargs -r $(BIN)/clang-format -i

docs: $(VENV)/.test
	$(BIN)/mkdocs build --strict

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "maxk needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.package: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@ $(VENV)/.package

clean:
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
