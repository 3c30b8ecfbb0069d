# Everything sets itself up: a virtual environment in .venv, with the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --disable-pip-version-check -q -c constraints.txt

.PHONY: demo demo-llm test tests docs tables lint types check bench install install-dev browser clean

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

demo: install  ## train PPO on CartPole-v1 until it is solved
	$(BIN)/runnel train cartpole

demo-llm: $(VENV)/.installed-llm  ## teach a small transformer to write words backwards
	$(BIN)/runnel train reverse

test: lint  ## linter, type checker and all tests; the type checker runs beside the tests, since it uses one core alone
	$(MAKE) --no-print-directory -j2 types tests

tests: install-dev browser
	@# tests start many processes, and each would compile the package anew where PYTHONDONTWRITEBYTECODE is set
	$(BIN)/python -m compileall -q src
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

browser:  ## Chromium, for tests of the board; where it cannot be installed they are skipped
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	  echo "no Chromium here: install it (apt-get install chromium) to test the board in a browser"

lint: install-dev
	$(BIN)/ruff check src tests examples docs benchmarks
	$(BIN)/ruff format --check src tests examples docs benchmarks

types: install-dev
	$(BIN)/mypy

docs: $(VENV)/.installed-docs  ## the site of the docs, in build/site; a link that leads nowhere is an error
	$(BIN)/python docs/make_tables.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean

tables: install  ## write the tables of README and docs again that the code knows better
	$(BIN)/python docs/make_tables.py

bench: install-dev  ## PPO on CartPole-v1 beside Stable-Baselines3
	$(BIN)/python -m benchmarks.classic.run --row ppo-cartpole

# torch first and by itself: its pinned version decides which build is taken
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(PIP) -e '.[compiled]'
	touch $@

$(VENV)/.installed-llm: $(VENV)/.installed
	$(PIP) -e '.[llm]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e '.[dev]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache
