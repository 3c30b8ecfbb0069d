# Everything sets itself up: a virtual environment in .venv, with the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --disable-pip-version-check -q -c constraints.txt

.PHONY: demo demo-llm test lint types check bench install install-dev browser clean

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

demo: install  ## train PPO on CartPole-v1 until it is solved
	$(BIN)/runnel train cartpole

demo-llm: $(VENV)/.installed-llm  ## teach a small transformer to write words backwards
	$(BIN)/runnel train reverse

test: install-dev browser lint types  ## linter, type checker and all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

browser:  ## Chromium, for tests of the board; where it cannot be installed they are skipped
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	  echo "no Chromium here: install it (apt-get install chromium) to test the board in a browser"

lint: install-dev
	$(BIN)/ruff check src tests examples docs benchmarks
	$(BIN)/ruff format --check src tests examples docs benchmarks

types: install-dev
	$(BIN)/mypy

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

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache
