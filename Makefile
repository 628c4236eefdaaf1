# `make demo` sets up and trains a federation on real data; `make test` sets up and tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# PyTorch's CPU wheels: plain PyPI torch pulls gigabytes of CUDA.
TORCH_INDEX_URL ?= https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Tests start hundreds of Python processes, which would each compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE
# Test files side by side; more than the cores, for tests wait for processes much of their time.
WORKERS ?= 8
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --durations 60
PACKAGE ?= boosting client_agent coordinator crypto services
SEEDS ?= 20
CASES ?= 10200
EVERY ?= 1
PAIRS ?= 0
PAIR_MINUTES ?= inf
SECONDS ?= 10
SEED ?= 0
SCOPE ?= crypto sums barrier
NUMBER ?= 100
AGENTS ?= 100
MINUTES ?= 120
PROTOS = $(shell find proto -name '*.proto' | sort)
BASELINE := proto/baseline.binpb

.PHONY: setup setup-base services demo unit test simulation chaos soak adversary fuzz mutants matrix coverage lint proto proto-baseline bench docs linkcheck results peers images image-pins licences sbom bundle test-containers test-containers-quick test-kubernetes dashboards clean

$(VENV)/base: pyproject.toml constraints.txt hatch_build.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

# An unreachable index is skipped after one try: a machine may have a CPU build of its own.
$(VENV)/full: $(VENV)/base
	$(PIP) --retries 1 --timeout 10 --extra-index-url $(TORCH_INDEX_URL) torch==2.13.0
	$(PIP) --editable '.[dev,torch]'
	touch $@

setup-base: $(VENV)/base  ## what `make demo` needs

setup: $(VENV)/full  ## everything a user, the tests and the benchmarks need

services:  ## Debian's Prometheus, PostgreSQL, Chromium and Node, for the tests that use the real ones
	deploy/ci/install-services

demo: setup-base  ## five silos train one model on the Adult data
	$(BIN)/hedgerow demo --out runs/demo

unit: setup  ## what tests one package in one process, within a minute: PACKAGE=crypto, PACKAGE=boosting/engine
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile -m 'not process and not slow' $(addprefix tests/,$(PACKAGE))

test: setup services  ## all tests but random faults (make chaos)
	$(PYTEST) tests --ignore tests/chaos --no-loadscope-reorder

simulation: setup services  ## the whole federation in one thread by a virtual clock: what is recorded, then seeds for SECONDS: SEED=0 draws the first
	$(BIN)/python -m tests.simulation --recorded --seconds $(SECONDS) $(if $(filter-out 0,$(SEED)),--seed $(SEED))

chaos: setup services  ## random faults of all processes, and damage to all state files: SEEDS=200 for more
	SEEDS=$(SEEDS) $(PYTEST) tests/chaos

soak: setup  ## hours of jobs under random faults, in which nothing may grow: AGENTS=20 MINUTES=20 for less
	$(BIN)/python -m tests.chaos.soak --agents $(AGENTS) --minutes $(MINUTES) --seed $(SEED)

adversary: setup  ## lies in every field of every message: CASES=1000000 SEED=1 for more of them
	$(BIN)/python -m tests.adversary.mutate --cases $(CASES) --every $(EVERY) --pairs $(PAIRS) \
	    --minutes $(PAIR_MINUTES) --seed $(SEED)

fuzz: setup  ## every decoder under libFuzzer: SECONDS=600 for more, SEED=0 draws one
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed $(SEED)

mutants: setup  ## code changed in one place at a time, which tests must notice: SCOPE=sums NUMBER=300 SEED=1
	$(BIN)/python -m tests.mutants $(SCOPE) --number $(NUMBER) --seed $(SEED)

matrix: setup  ## other versions of Python and XGBoost, in environments below build/matrix
	deploy/ci/matrix

coverage: setup services  ## all tests, and the floor of what they cover (pyproject.toml)
	$(PYTEST) tests --ignore tests/chaos --no-loadscope-reorder \
		--cov --cov-report=term-missing:skip-covered

images:  ## the container images
	deploy/ci/engine
	docker compose --profile dask build

image-pins: setup  ## versions and hashes of the images' packages, after a change of constraints.txt
	$(BIN)/python -m deploy.images.pin

licences: setup  ## docs/licences.md from the packages' own metadata, after a change of constraints.txt
	$(BIN)/python -m deploy.licences

build/tools/bin/cyclonedx-py:
	$(PYTHON) -m venv build/tools
	build/tools/bin/python -m pip install --quiet 'cyclonedx-bom>=7,<8'

bundle: setup-base build/tools/bin/cyclonedx-py  ## build/hedgerow-bundle.tar, for machines without a network; after `make images`
	PATH=build/tools/bin:$$PATH PYTHON=$(BIN)/python deploy/bundle build/hedgerow-bundle.tar

sbom: setup-base build/tools/bin/cyclonedx-py  ## CycloneDX of the wheel's packages and of each image's, in build/sbom
	test -x build/wheel/bin/python || $(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install --quiet --constraint constraints.txt .
	PATH=build/tools/bin:$$PATH $(BIN)/python -m deploy.sbom build/sbom build/wheel/bin/python

test-containers: setup images  ## the federation in containers, undisturbed and with faults
	$(BIN)/python -m pytest tests/containers -o testpaths=tests/containers

test-containers-quick: setup images  ## the demo, the profiles and one fault of each kind: part of CI
	$(BIN)/python -m pytest tests/containers --quick -o testpaths=tests/containers --durations 20

test-kubernetes: setup images  ## the chart on a real cluster: join, train, lose pods, upgrade, leave
	docker build --quiet --tag hedgerow/s3-server:$${HEDGEROW_TAG:-dev} --file tests/kubernetes/s3-server.Dockerfile .
	deploy/ci/kube-tools
	deploy/ci/kube-cluster $(BIN)/python -m pytest tests/kubernetes/manifests.py tests/kubernetes/rollout.py --timeout 900
	$(BIN)/python -m json.tool build/rollout.json

dashboards: setup  ## regenerate deploy/grafana/*.json
	$(BIN)/python -m deploy.grafana.generate

lint: setup  ## style, words, types, architecture, protos
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m tests.words
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	$(BIN)/buf breaking --against $(BASELINE)

proto: setup  ## regenerate the stubs
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=proto --grpc_python_out=proto \
		--mypy_out=quiet:proto --mypy_grpc_out=quiet:proto $(PROTOS)

proto-baseline: setup  ## what `make lint` compares the protos with; renew it on purpose only
	$(BIN)/buf build --exclude-source-info --output $(BASELINE)

bench: setup  ## the quick form of every benchmark that has one; HEDGEROW_DATA=DIR has the tables of docs/results.md
	for name in $(basename $(notdir $(shell grep -l -e '"--quick"' benchmarks/[a-z]*.py))); do \
		$(BIN)/python -m benchmarks.$$name --quick || exit 1; done

results: setup  ## every table of the papers that is not in docs/results yet: DATA=DIR; stop it and go on at will
	@test -n "$(DATA)" || { echo "make results: DATA is not set; give the folder of the Parquet tables that docs/results.md names, as in make results DATA=DIR"; exit 2; }
	$(BIN)/python -m benchmarks.results --data $(DATA)

docs: setup  ## the documentation's site, in build/docs; a warning or a dead link is an error
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs

linkcheck: setup  ## ask every other site that the pages link to; needs the internet
	$(BIN)/python -m sphinx --builder linkcheck --quiet docs build/linkcheck

peers:  ## libraries that benchmarks are compared with, in an environment of their own
	$(PYTHON) -m venv .venv-peers
	grep -v '^#' benchmarks/peers.txt | while read -r what; do \
		.venv-peers/bin/python -m pip --disable-pip-version-check install --quiet $$what \
			|| echo "left out: $$what"; done

clean:
	rm -rf $(VENV) build dist runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
