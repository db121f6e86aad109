# make demo   a whole round over the gradients in fixtures/, one process for each user and step
# make test   all tests
# Both set up everything they need in .venv/ first. `make help` lists the rest.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TOPK   := $(BIN)/topk-secagg

.PHONY: help demo demo-next test test-root test-fresh test-oldest test-newest test-torch test-workflows test-flower dist lint-workflows secrecy vectors fuzz lint cog-check types check docs pictures bench bench-quick bench-flower clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z -]+:.*## / { count = split($$1, names, " "); \
	  for (i = 1; i <= count; i++) printf "%-16s %s\n", names[i], $$2 }' $(MAKEFILE_LIST)

# --- the environment -------------------------------------------------------------------------

RUN_READY := $(VENV)/.ready
DEV_READY := $(VENV)/.ready-dev

# where `pip install .` came first, code that was compiled for it may be left; a folder of the package's name hides the source
LEFT_OVER := $(VENV)/lib/python*/site-packages/topk_secagg

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'Python 3.11 or newer is needed: make PYTHON=python3.12 ...' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo 'Python has no venv: install it (Debian: python3-venv)' >&2; exit 1; }

$(RUN_READY): pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	rm -rf $(LEFT_OVER)
	$(BIN)/python -m topk_secagg.algebra.compile
	@touch $@

$(DEV_READY): pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	rm -rf $(LEFT_OVER)
	$(BIN)/python -m topk_secagg.algebra.compile
	@touch $@ $(RUN_READY)

# --- the demo: one process per user and step -------------------------------------------------

DEMO      := demo
GRADIENTS := fixtures/gradients
USERS     := $(patsubst $(GRADIENTS)/user-%.pt,%,$(sort $(wildcard $(GRADIENTS)/user-*.pt)))
LAST      := $(lastword $(USERS))
# user 10 never masks, and user 4 never answers
MASKING   := $(filter-out 10,$(USERS))
ANSWERING := $(filter-out 04,$(MASKING))

# a step that finds its file as it should be gives it a new time, so that Make does not run it again
# `offline` writes the secret first and the share for the last user last, so that one stands for all
OFFLINE  := $(USERS:%=$(DEMO)/shares/user-$(LAST)/from-%.h5)
MASKED   := $(MASKING:%=$(DEMO)/masked/user-%.h5)
ANSWERS  := $(ANSWERING:%=$(DEMO)/elimination/user-%.h5)

demo: $(DEMO)/sum.npz ## run a whole round over ten real gradients, with two drop-outs
	@$(BIN)/python fixtures/compare.py $(DEMO) $(GRADIENTS)

$(DEMO)/session.json: | $(RUN_READY)
	$(TOPK) init $(DEMO) --users 10 --survivors 5 --colluders 3 --density 0.01 --like $(GRADIENTS)/user-01.pt

$(DEMO)/shares/user-$(LAST)/from-%.h5: $(DEMO)/session.json
	$(TOPK) offline $(DEMO) --user $* --quiet

# (X records whose shares have arrived, so that everybody shares first)
$(DEMO)/masked/user-%.h5: $(GRADIENTS)/user-%.pt $(OFFLINE)
	$(TOPK) mask $(DEMO) --user $* --gradient $< --quiet

$(DEMO)/survivors.json: $(MASKED)
	$(TOPK) freeze $(DEMO)

$(DEMO)/elimination/user-%.h5: $(DEMO)/survivors.json
	$(TOPK) eliminate $(DEMO) --user $* --quiet

$(DEMO)/sum.npz: $(ANSWERS)
	$(TOPK) decode $(DEMO) --output $@

# --- a second round with the keys of the first: nothing is dealt again -----------------------

NEXT := $(DEMO)-next

demo-next: $(NEXT)/sum.npz ## a second round that goes on with the keys of the demo
	@$(BIN)/python fixtures/compare.py $(NEXT) $(GRADIENTS)

$(NEXT)/session.json: $(DEMO)/sum.npz
	$(TOPK) init $(NEXT) --from $(DEMO)

$(NEXT)/secrets/user-%.h5: $(NEXT)/session.json
	$(TOPK) offline $(NEXT) --user $* --from $(DEMO) --quiet

$(NEXT)/masked/user-%.h5: $(GRADIENTS)/user-%.pt $(NEXT)/secrets/user-%.h5
	$(TOPK) mask $(NEXT) --user $* --gradient $< --quiet

$(NEXT)/survivors.json: $(USERS:%=$(NEXT)/masked/user-%.h5)
	$(TOPK) freeze $(NEXT)

$(NEXT)/elimination/user-%.h5: $(NEXT)/survivors.json
	$(TOPK) eliminate $(NEXT) --user $* --quiet

$(NEXT)/sum.npz: $(USERS:%=$(NEXT)/elimination/user-%.h5)
	$(TOPK) decode $(NEXT) --output $@

.PRECIOUS: $(NEXT)/secrets/user-%.h5 $(NEXT)/masked/user-%.h5 $(NEXT)/elimination/user-%.h5
.PRECIOUS: $(DEMO)/shares/user-$(LAST)/from-%.h5 $(DEMO)/masked/user-%.h5 $(DEMO)/elimination/user-%.h5

GENERATED := README.md experiments/README.md $(addprefix docs/,cli.md rules.md gradients.md walkthrough.md file-format.md training.md benchmarks.md)

# --- for developers --------------------------------------------------------------------------

# all cores; one that has finished its share takes tests from the others, since some take far longer
# (tests/lint reads the source alone: `make lint` runs it)
PARALLEL := -n auto --dist worksteal --ignore=tests/lint

# (test-torch runs the others, where PyTorch is installed)
test: $(DEV_READY) ## run all tests but those of PyTorch, on all cores
	$(BIN)/python -m pytest $(PARALLEL) -m 'not needs_torch'

# (MORE=--no-skips: fail where a file system cannot be mounted)
test-root: $(DEV_READY) ## run the tests that need root: other accounts, and disks that are full
	$(if $(filter 0,$(shell id -u)),,sudo )$(BIN)/python -m pytest $(PARALLEL) -m needs_root -rs $(MORE)

test-fresh: $(DEV_READY) ## run all tests with other Hypothesis examples in every run, and five times as many
	HYPOTHESIS_PROFILE=fresh $(BIN)/python -m pytest $(PARALLEL)

# every dependency in the oldest version that pyproject.toml allows, or the newest that there is
test-oldest test-newest: test-%: ## run all tests with the oldest, or the newest, dependencies
	$(PYTHON) -m venv --clear $(VENV)-$*
	$(VENV)-$*/bin/pip install --quiet --disable-pip-version-check uv
	$(VENV)-$*/bin/uv pip install --quiet --python $(VENV)-$*/bin/python --editable '.[dev]' \
	  --upgrade --resolution $(if $(filter oldest,$*),lowest-direct,highest)
	$(VENV)-$*/bin/uv pip list --python $(VENV)-$*/bin/python
	$(VENV)-$*/bin/python -m pytest $(PARALLEL) $(MORE)

test-torch: $(DEV_READY) ## compare the readers with real PyTorch, and run the examples that need it
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0 opacus==1.6.0
	$(BIN)/python -m pytest $(PARALLEL) -m needs_torch tests/gradients tests/experiments

test-workflows: ## run the workflow with Snakemake on local cores
	$(PYTHON) -m venv $(VENV)-workflows
	$(VENV)-workflows/bin/pip install --quiet --disable-pip-version-check --editable '.[workflows]' \
	  pytest pytest-xdist hypothesis
	$(VENV)-workflows/bin/python -m pytest $(PARALLEL) tests/workflows

FLWR ?= <2
# (FLWR says which Flower, such as ==1.41.*. It warns of what its own dependencies do; each file stays in one process, as simulations are shared)
test-flower: ## train over Flower: in one process, by its simulation engine, and with a SuperLink
	$(PYTHON) -m venv $(VENV)-flower
	$(VENV)-flower/bin/pip install --quiet --disable-pip-version-check --editable '.[flower]' 'flwr[simulation]$(FLWR)' \
	  pytest pytest-xdist hypothesis scikit-learn torch==2.13.0
	$(VENV)-flower/bin/python -m topk_secagg.algebra.compile
	$(VENV)-flower/bin/python -m pytest tests/flower -W default -n auto --dist loadfile

secrecy: $(DEV_READY) ## compute that T users learn nothing but the sum, and that T + 1 do
	$(BIN)/python tests/secrecy/check.py

vectors: $(DEV_READY) ## regenerate the test vectors for other implementations
	$(BIN)/python fixtures/vectors/make.py

FUZZ_SEED ?= 1
fuzz: $(DEV_READY) ## damage, crashes, random rounds and attacks by the thousand (about half an hour)
	$(BIN)/python tests/faults/damage.py --cases 20000 --seconds 900 --seed $(FUZZ_SEED)
	$(BIN)/python tests/faults/crashes.py
	$(BIN)/python tests/faults/drill.py --rounds 500 --seconds 900 --seed $(FUZZ_SEED)
	$(BIN)/python tests/faults/two_sets.py
	$(BIN)/python tests/faults/store_drill.py --rounds 100 --seconds 1200

dist: ## build the wheel and the sdist, install each in a fresh environment and try it
	rm -rf dist $(VENV)-dist
	$(PYTHON) -m venv $(VENV)-dist
	$(VENV)-dist/bin/pip install --quiet --disable-pip-version-check 'build>=1.2'
	$(VENV)-dist/bin/python -m build --outdir dist . > $(VENV)-dist/build.log || { cat $(VENV)-dist/build.log; exit 1; }
	for file in dist/*; do PYTHON="$(PYTHON)" .ci/smoke "$$file" || exit 1; done

lint-workflows: ## check the files of .github for what makes them unsafe
	$(PYTHON) -m venv $(VENV)-zizmor
	$(VENV)-zizmor/bin/pip install --quiet --disable-pip-version-check 'zizmor>=1.10'
	$(VENV)-zizmor/bin/zizmor --offline --pedantic .github

lint: $(DEV_READY) ## ruff, habits of the source, and whether the generated documents are current
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest tests/lint
	@$(MAKE) --no-print-directory cog-check

cog-check: $(DEV_READY)
	$(BIN)/cog --check $(GENERATED)

types: $(DEV_READY) ## mypy, strict
	$(BIN)/mypy

check: test lint types ## what has to pass before a commit

docs: $(DEV_READY) ## regenerate the generated parts of the documents
	$(BIN)/cog -r $(GENERATED)

pictures: $(DEV_READY) ## redraw the pictures of the README (needs Chromium)
	$(BIN)/python docs/pictures.py

bench: $(DEV_READY) ## measure everything against floors and peers (about twenty minutes) and write docs/benchmarks
	$(BIN)/python benchmarks/bench.py --output docs/benchmarks
	$(BIN)/cog -r docs/benchmarks.md

bench-quick: $(DEV_READY) ## the same with smaller sizes and fewer repeats, printed only (about three minutes)
	$(BIN)/python benchmarks/bench.py --quick

# (in an environment of its own: Flower asks for older versions of some libraries)
bench-flower: $(DEV_READY) ## rounds over Flower beside its own SecAgg+ (about three minutes), into docs/benchmarks
	$(PYTHON) -m venv $(VENV)-flower
	$(VENV)-flower/bin/pip install --quiet --disable-pip-version-check --editable '.[flower]' 'flwr[simulation]$(FLWR)'
	$(VENV)-flower/bin/python benchmarks/flower_rounds.py --output docs/benchmarks/flower.json
	$(BIN)/cog -r docs/benchmarks.md

clean: ## remove the demo and the environment
	rm -rf $(DEMO) $(NEXT) $(VENV) $(VENV)-* build dist *.egg-info
