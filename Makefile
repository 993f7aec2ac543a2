# `make` alone prints all targets. Every target installs what it needs.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help

UV_VERSION := 0.13.7
PYTHON ?= python3
UV := $(or $(shell command -v uv 2>/dev/null),.tools/uv/bin/uv)
VENV := .venv/.complete
TOOLS := .tools/cluster/.complete
RUN := PATH="$(CURDIR)/.venv/bin:$$PATH"
CLUSTER_TOOL := PYTHONPATH=dev .tools/cluster/bin/python -m clotho_dev.cluster

help: ## Show this table
	@printf 'Clotho: reinforcement-learning fine-tuning on Kubernetes.\n\n'
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-20s %s\n", $$1, $$2}'
	@printf '\n  CLUSTER=embedded|kind|current chooses the cluster (embedded where it can run, else kind).\n'

include $(wildcard make/*.mk)

.tools/uv/bin/uv:
	@echo "Installing uv $(UV_VERSION) into .tools (once) ..."
	@$(PYTHON) -m venv .tools/uv && .tools/uv/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(VENV): pyproject.toml uv.lock | $(UV)
	@echo "Installing the Python packages (once; several GB with torch) ..."
	@$(UV) sync --frozen --all-extras --quiet && touch $@

# The cluster's command line alone needs a few megabytes only.
$(TOOLS): pyproject.toml uv.lock | $(UV)
	@UV_PROJECT_ENVIRONMENT=.tools/cluster $(UV) sync --frozen --only-group cluster --quiet && touch $@

.PHONY: demo
demo: $(TOOLS) ## Train a small policy for real: cluster, chart, one TrainingRun, live view
	@PYTHONPATH=dev:operator .tools/cluster/bin/python -m clotho_dev.demo

.PHONY: test lint format unit integration e2e coverage
test: $(VENV) ## Run every test tier that this machine can run
	@$(RUN) PYTHONPATH=dev python -m clotho_dev.tiers

lint: $(VENV) ## Check style, types and layers
	@$(RUN) PYTHONPATH=dev python -m clotho_dev.tiers lint

unit: $(VENV) ## Run the unit tests (no I/O, seconds)
	@$(RUN) PYTHONPATH=dev python -m clotho_dev.tiers unit

integration: $(VENV) ## Run the tests that need a real API server or real processes
	@$(RUN) PYTHONPATH=dev python -m clotho_dev.tiers integration

e2e: $(VENV) ## Run the tests on a real node with real pods (root)
	@$(RUN) PYTHONPATH=dev python -m clotho_dev.tiers e2e

coverage: $(VENV) ## Show which lines of the packages the unit tests reach
	@$(RUN) coverage run -m pytest tests/unit -q && $(RUN) coverage report --skip-covered --sort=cover

format: $(VENV) ## Format the Python code
	@$(RUN) ruff format . && $(RUN) ruff check --fix .

.PHONY: cluster cluster-down cluster-status images
cluster: $(TOOLS) ## Start a one-node Kubernetes on this machine
	@$(CLUSTER_TOOL) up $(CLUSTER_FLAGS)

cluster-down: $(TOOLS) ## Stop that cluster and remove everything it created
	@$(CLUSTER_TOOL) down

cluster-status: $(TOOLS) ## Show the components of that cluster and their state
	@$(CLUSTER_TOOL) status || true

images: $(TOOLS) ## Build the images that changed and import them into the cluster (VARIANTS=atropos,verifiers,tinker,vllm: these too)
	@$(CLUSTER_TOOL) images --variants "$(VARIANTS)"

.PHONY: clean
clean: ## Remove what was installed into this folder (caches stay)
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage dist
