# Taximeter from a clean clone: `make run` for a model that answers with receipts, `make test` for the proof.
# What they need is made once, under .venv, and made again when pyproject.toml or the native sources change.

VENV         ?= .venv
MODEL        ?= smollm2-135m-instruct
MACHINE_RATE ?= 0.50/h
PRICED_AS    ?= anthropic/claude-haiku-5-5
ARGS         ?=
PYTHON       ?=

PY     := $(VENV)/bin/python
LOG    := $(VENV)/install.log
NATIVE := $(shell find native -type f)
PIP    := $(PY) -m pip --disable-pip-version-check

.DELETE_ON_ERROR:
.PHONY: help install run test check bench bench-large bench-own clean

help:
	@echo 'make run      serve $(MODEL) on this machine, with receipts   (MODEL= MACHINE_RATE= PRICED_AS= ARGS=)'
	@echo 'make test     run the tests                                   (ARGS="-k ledger")'
	@echo 'make check    run the gates: ruff, pyright, import-linter'
	@echo 'make bench    measure beside llama.cpp, OpenVINO and vLLM        (ARGS="--minutes 20 --models smollm2")'
	@echo 'make bench-large   the same on models of 1 to 8 billion weights; make bench-own   the kernels and the engine alone'
	@echo 'make install  install into $(VENV) again, for instance after moving a module'
	@echo 'make clean    remove all that was made here'

run: $(VENV)/.installed
	@$(VENV)/bin/taximeter models pull $(MODEL)
	@exec $(VENV)/bin/taximeter serve --model $(MODEL) --demo --machine-rate $(MACHINE_RATE) --priced-as $(PRICED_AS) $(ARGS)

test: $(VENV)/.installed-test
	@$(VENV)/bin/taximeter models pull smollm2-135m-instruct
	@$(VENV)/bin/taximeter models pull gemma3-270m
	$(PY) -m pytest --numprocesses auto --dist loadfile $(ARGS)

check: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright --project pyproject.toml  # a configuration further up must not win
	$(VENV)/bin/lint-imports

bench: $(VENV)/.installed
	@$(VENV)/bin/taximeter models pull smollm2-135m-instruct
	@$(VENV)/bin/taximeter models pull gemma3-270m
	$(PY) bench/engines.py --json bench-engines.json $(ARGS)

bench-large: $(VENV)/.installed
	@$(VENV)/bin/taximeter models pull smollm2-135m-instruct
	$(PY) bench/large_models.py --json bench-large.json $(ARGS)

bench-own: $(VENV)/.installed
	$(PY) bench/kernels/bench_matmul.py $(ARGS)
	$(PY) bench/kernels/bench_attention.py $(ARGS)
	$(PY) bench/engine/bench_engine.py $(ARGS)

install:
	@rm -f $(VENV)/.installed
	@$(MAKE) --no-print-directory $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests bench -name __pycache__ -prune -exec rm -rf {} +

# --- What the targets above stand on -------------------------------------------------------------------------------

# Runs a pip command quietly: one line before it, and what it said only if it failed.
define pip
	@echo '$(1)'
	@$(PIP) $(2) >$(LOG) 2>&1 || { tail -n 40 $(LOG); echo 'This failed; the whole of it is in $(LOG).' >&2; exit 1; }
endef

# Writes one of pyproject.toml's lists down for pip. By our own name pip might fetch a stranger's package, and by path
# it would build the kernels again.
define extra
	@$(PY) -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	    print(*project["optional-dependencies"]["$(1)"], sep="\n")' >$(VENV)/$(1).txt
endef

$(PY):
	@python='$(PYTHON)'; \
	for candidate in $${python:-python3.13 python3.12 python3.11 python3}; do \
	    "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	    echo "Making $(VENV) with $$("$$candidate" --version)"; \
	    "$$candidate" -m venv $(VENV) && exit 0; \
	    rm -rf $(VENV); \
	    echo 'It has no working venv module. (Debian and Ubuntu: install python3-venv.)' >&2; exit 1; \
	done; \
	echo 'Taximeter needs Python 3.11 or later, and found none. Say where it is: make PYTHON=/path/to/python3' >&2; exit 1

$(VENV)/.installed: pyproject.toml $(NATIVE) | $(PY)
	$(call pip,Installing Taximeter and building its kernels; this takes a minute or two,install --editable .)
	@$(PY) -m compileall -q src  # pip does that for what it copies, but an editable installation is not copied
	@$(PY) -c 'from taximeter.engine import kernels as k; print("kernels:", k.level()); k.reason() and print("This is slow:", k.reason())'
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(call extra,test)
	$(call pip,Installing what the tests need,install --requirement $(VENV)/test.txt)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-test
	$(call extra,dev)
	$(call pip,Installing the gates,install --requirement $(VENV)/dev.txt)
	@touch $@
