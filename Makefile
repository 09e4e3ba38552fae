# Everything from a fresh clone: `make reproduce` (laptop, no GPU), `make test` (what CI runs). `make help` lists the rest.

# What `make reproduce` runs, in this order. An interrupted run resumes: finished cells are never run again.
REPRODUCE_STUDIES ?= end_to_end ablation routing motivation growth throughput_bound asynchrony sensitivity worlds traces
REPRODUCE_OPTIONS ?=
# Folder of public agent traces; those found there are imported and run beside our recordings (study `traces`).
TRACES ?= ../shared/traces
# Where cells, figures and the report go.
STORE ?= runs
FIGURES ?= figures
REPORT ?= report

VENV ?= .venv
# Real engines and trainers, on CPU cores: an environment of its own, since its pins exclude the light base's.
LIVE ?= .venv-live
LIVE_WORKLOADS ?= search-r1
LIVE_OPTIONS ?=
PYTHON ?= $(shell command -v python3.11 || command -v python3)
LIBRA = $(VENV)/bin/libra
DRAW = $(LIBRA) figures --store $(STORE) --out $(FIGURES)
WRITE = $(LIBRA) report --store $(STORE) --out $(REPORT)
PIP_INSTALL = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help traces reproduce demo figures report live live-test sandbox test lint dev clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:[^#]*##/\t/' | expand -t 12

# Exit 3 of `libra validate` means that a gate is missed, which the report says.
# Exit 1 of `libra run` means that some cells failed: the report shows them, so it is still made.
reproduce: traces ## from nothing to the report: install, run the main job, draw figures, write the report
	@failed=0; \
	for study in $(REPRODUCE_STUDIES); do \
	  code=0; $(LIBRA) run $$study $(REPRODUCE_OPTIONS) --store $(STORE) || code=$$?; \
	  if [ $$code -gt 1 ]; then echo "stopped in study $$study; run it again to resume" >&2; exit $$code; fi; \
	  if [ $$code -eq 1 ]; then failed=1; fi; \
	done; \
	$(LIBRA) validate --store $(STORE) || [ $$? -eq 3 ] || exit 1; \
	$(DRAW) && $(WRITE) || exit $$?; \
	echo "report: $(abspath $(REPORT))/report.html"; \
	if [ $$failed -eq 1 ]; then echo "some cells failed; the report lists them" >&2; fi; \
	exit $$failed

# FOLDER=FORMAT of each source; a trace that is there already is not imported again.
TRACE_SOURCES = tau-bench/gpt-4o-airline.json=openai swe-agent/raw=swe-agent mini-swe-agent/raw=mini-swe-agent \
	kv-cache-tester/raw=kv-cache-tester kv-cache-tester/episodes.jsonl.gz=normalized

traces: $(VENV)/.installed-light ## import the public traces under TRACES, if there are any
	@for pair in $(TRACE_SOURCES); do \
	  source="$(TRACES)/$${pair%=*}"; format="$${pair#*=}"; \
	  out="traces/$$(echo "$${pair%=*}" | sed -e 's#/raw##' -e 's#\..*##' -e 's#/#-#').jsonl.gz"; \
	  if [ -e "$$source" ] && [ ! -e "$$out" ]; then \
	    mkdir -p traces; log="$${out%.jsonl.gz}.log"; \
	    $(LIBRA) import $$format "$$source" --out "$$out" >"$$log" || exit $$?; \
	    echo "imported $$out; what could not be read, and how tokens were counted: $$log"; \
	  fi; \
	done

demo: $(VENV)/.installed-light ## the newcomer's first minute: three workloads, five systems, a report
	@$(LIBRA) demo --store $(STORE)

figures: $(VENV)/.installed-light ## draw every figure and table from the store
	@$(DRAW)

report: $(VENV)/.installed-light ## write the report from the store
	@$(WRITE)
	@echo "report: $(abspath $(REPORT))/report.html"

live: $(LIVE)/.installed $(VENV)/.installed-light ## train for real on two CPU cores: install, learning curve, report
	@for workload in $(LIVE_WORKLOADS); do $(LIVE)/bin/libra train $$workload $(LIVE_OPTIONS) --store $(STORE) || exit $$?; done
	@$(DRAW) && $(WRITE)
	@echo "report: $(abspath $(REPORT))/report.html"

# The live set is installed while the light tests run: that takes minutes of the network's time and one core's. Not by
# $(MAKE), for which `make -n`, too, would run the whole line.
test: lint sandbox ## linters, types, import contracts and every test
	@mkdir -p build; make --no-print-directory $(LIVE)/.installed >build/live-install.log 2>&1 & install=$$!; \
	code=0; $(VENV)/bin/python -m pytest || code=$$?; \
	wait $$install || { cat build/live-install.log; exit 1; }; exit $$code
	@$(MAKE) --no-print-directory live-test

live-test: $(LIVE)/.installed
	@$(LIVE)/bin/python -m pytest -m 'not by_hand' tests/live tests/unit/workloads/environments tests/unit/workloads/tools tests/unit/workloads/rewards

# bubblewrap makes the faster of the two sandboxes; without it the other one is tested.
sandbox:
	@command -v bwrap >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  { echo "installing bubblewrap"; apt-get update -qq && apt-get install -y -qq bubblewrap >/dev/null; }; } || true

lint: $(VENV)/.installed-dev ## ruff, mypy and the import contracts
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports --no-logo

dev: $(VENV)/.installed-dev ## install with the development tools

clean: ## remove caches and builds; keeps the virtual environment and every result
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find libra baselines analysis paper_figures experiments tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps say for which pyproject.toml the environment was installed.
$(VENV)/.installed-light: pyproject.toml | $(VENV)/bin/python
	@echo "installing the light base into $(VENV) (about a minute)"
	@$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing the light base and the development tools into $(VENV) (about a minute)"
	@$(PIP_INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.installed-light

$(LIVE)/.installed: requirements/live-cpu.txt pyproject.toml
	@echo "installing torch, vLLM and verl for CPUs into $(LIVE) (two minutes, 2.5 GB)"
	@test -x $(LIVE)/bin/python || $(PYTHON) -m venv $(LIVE)
	@$(LIVE)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@$(LIVE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/live-cpu.txt
	@$(LIVE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "no python3 found; install Python 3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)
