# Every target works on a machine that has Python >= 3.11 with venv, and make. Node is used when present.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Where this is set, hundreds of processes of the tests compile all of Pairbus again, which takes half of their time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test durations deep azure package-test spark-matrix quick sim nemesis docs check fix coverage dist sbom release-check bench bench-guard clean

help:
	@echo "make setup   .venv with everything"
	@echo "make demo    an outage of a pair of namespaces, from the first send to the last check"
	@echo "make test    every test but those of make deep, the JavaScript SDK included when node is here"
	@echo "make durations   make test, which puts the seconds of each test file into tests/durations.json"
	@echo "make deep    examples and stories of the documents, whole matrices, kills on Spark, eight versions of azure-servicebus"
	@echo "make azure   the paired client on two namespaces, PAIRBUS_AZURE_PRIMARY and PAIRBUS_AZURE_SECONDARY"
	@echo "make package-test   wheel and sdist, each extra alone in an empty environment, Spark without any Java: some minutes;"
	@echo "             EXTRAS='core broker' only these"
	@echo "make spark-matrix   the tests of Spark on PySpark 4.0, 4.1, 4.2 and 4.3, each in an environment of its own"
	@echo "make quick   the tests that need neither node nor Spark, and no many seconds each: some minutes on two cores"
	@echo "make sim     the simulations of client and broker, SEEDS=1000 of each; prints every violation with its seed"
	@echo "make nemesis  faults, stops and kills over real processes for MINUTES=10; prints every violation with its seed"
	@echo "make docs    the documents as a site, in site/index.html; a broken link ends it"
	@echo "make check   ruff, codespell and mypy --strict"
	@echo "make fix     format, and correct what ruff can correct by itself"
	@echo "make coverage   branches of seven parts that tests reach without Java; fails below tests/coverage.toml"
	@echo "make dist    wheel and sdist in dist/; make sbom: their bill of materials; make release-check TAG=v0.4.0"
	@echo "make bench   every benchmark; results in bench/results/"
	@echo "make bench-guard   this tree compared with the last release, or with BASE=commit, in ten minutes; fails when it is slower"

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'
	@touch $(STAMP)

demo: setup
	$(BIN)/pairbus demo

# The first line compiles the tests of a new clone, two parts side by side; otherwise each of the nine processes compiles
# all of them.
test: setup
	@for part in 'tests/[a-f]*/' 'tests/[g-z]*/ tests/test_*.py'; do $(BIN)/pytest --collect-only $$part > /dev/null 2>&1 & done; wait
	$(BIN)/pytest -n 9 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -m 'not deep' --failures-to .ci/failures.json $(DURATIONS)

durations: DURATIONS := --durations-to tests/durations.json
durations: test

deep: setup
	$(BIN)/pytest -m deep

azure: setup
	$(BIN)/pytest --azure tests/azure

package-test: setup
	$(BIN)/python -m tools.package_test $(EXTRAS)

spark-matrix: setup
	$(BIN)/python -m tools.spark_matrix

quick: setup
	$(BIN)/pytest -n 3 --dist loadfile -m 'not node and not slow and not deep and not spark'

SEEDS ?= 1000

sim: setup
	$(BIN)/python -m tests.sim --seeds $(SEEDS)

MINUTES ?= 10

nemesis: setup
	$(BIN)/python -m tests.nemesis --minutes $(MINUTES)

docs: setup
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(BIN)/python -m tools.build_docs

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	git ls-files -z | xargs -0 $(BIN)/codespell
	$(BIN)/mypy

fix: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

coverage: setup
	$(BIN)/python -m tools.coverage_ratchet

dist: setup
	rm -rf dist
	$(BIN)/python -m build --outdir dist

SBOM := dist/sbom-environment

sbom: setup
	rm -rf $(SBOM)
	$(PYTHON) -m venv --without-pip $(SBOM)
	$(BIN)/pip --python $(SBOM)/bin/python install --quiet --disable-pip-version-check '.[broker,blob,spark]'
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible -o dist/sbom.cdx.json $(SBOM)/bin/python
	rm -rf $(SBOM)

release-check: setup
	$(BIN)/python -m tools.release_check $(TAG)

bench: setup
	$(BIN)/python -m bench

bench-guard: setup
	$(BIN)/python -m bench.guard --base "$(BASE)"

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .coverage-data dist bench/results site
