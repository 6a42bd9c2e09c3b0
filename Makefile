# Two commands for a newcomer: `make demo` and `make test`. Both install the exact versions of lock.txt
# into .venv and leave the system alone. Words that may follow:
#   TORCH=cpu      PyTorch's CPU build, without 2.7 GB of CUDA libraries to download
#   PYTHON=...     the interpreter, Python 3.11 to 3.14
#   TESTS=...      what pytest runs, by default everything
#   HOLD=...       with `make newest`: requirements to hold back, as in HOLD=torch==2.13.0
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCK := lock.txt
WORKERS ?= 2
TORCH :=
TESTS :=
HOLD :=
PYTEST = -m pytest -n $(WORKERS) --dist worksteal $(TESTS)

TORCH_RELEASE := $(shell sed -n 's/^torch==\([0-9.]*\).*/\1/p' $(LOCK))
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
# hatchling comes from the lock too: an isolated build would fetch the newest.
INSTALL = $(BIN)/python -m pip install --quiet --constraint $(LOCK)

ifneq ($(filter-out cpu,$(TORCH)),)
$(error TORCH must be cpu, or left out for the build that pip chooses; got '$(TORCH)')
endif

.PHONY: demo test test-gpu newest lock check format docs clean

demo: $(VENV)/.package
	$(BIN)/python -m maxk demo

test: check
	$(BIN)/python $(PYTEST)

test-gpu:
	PYTHONPATH=src $(PYTHON) -m pytest -m gpu --require gpu

# The newest release of everything, in an environment of its own: what breaks there is not yet in the
# lock. Findings of the checkers are shown and do not stop the tests.
newest:
	rm -rf $(VENV)-newest
	$(PYTHON) -m venv $(VENV)-newest
	$(VENV)-newest/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager --editable '.[test]' $(HOLD)
	-$(VENV)-newest/bin/ruff check .
	-$(VENV)-newest/bin/mypy
	$(VENV)-newest/bin/python $(PYTEST)

lock:
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet uv
	PATH="$(CURDIR)/$(VENV)-lock/bin:$$PATH" $(PYTHON) tools/lock.py write

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
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info[:2] <= (3, 14) else \
	    "lock.txt is for Python 3.11 to 3.14, got %d.%d; name another interpreter by PYTHON=..." % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)

# $(1): the command of the Makefile, $(2): what pip installs from this folder.
define install
@$(BIN)/python tools/lock.py announce $(1) $(TORCH:%=--%)
$(if $(TORCH),$(INSTALL) --no-deps --index-url $(TORCH_CPU_INDEX) torch==$(TORCH_RELEASE))
$(INSTALL) hatchling editables
$(INSTALL) --no-build-isolation --editable '$(2)'
endef

$(VENV)/.package: pyproject.toml $(LOCK) | $(VENV)/bin/python
	$(call install,demo,.)
	touch $@

$(VENV)/.test: pyproject.toml $(LOCK) | $(VENV)/bin/python
	$(call install,test,.[test])
	touch $@ $(VENV)/.package

clean:
	rm -rf $(VENV) $(VENV)-newest $(VENV)-lock build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
