# Two commands to know: `make demo` and `make test`. Everything else is for people who change the code.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-full check format docs bench campaign peers dist clean

PY := .venv/bin/python
PYTEST := $(PY) -m pytest -p no:cacheprovider
WORKERS ?= 3
# Every test that starts a program would otherwise compile Seer anew.
unexport PYTHONDONTWRITEBYTECODE

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup:  ## Make .venv and install what is needed (quick when nothing changed)
	@scripts/setup

demo:  ## Run the original example program on a small model; needs no account, key or GPU
	@scripts/setup demo
	@scripts/demo

test: test-fast test-full  ## All tests: the fast suite, then the full one

test-fast: setup
	$(PYTEST) -n $(WORKERS)

test-full: setup
	$(PYTEST) -n $(WORKERS) --dist loadgroup -m "full and not campaign and not gpu and not live"

check: setup  ## Lint, format and types
	@scripts/check

format: setup  ## Format and sort imports in place
	.venv/bin/ruff check --fix src tests compat benchmarks experiments
	.venv/bin/ruff format src tests compat benchmarks experiments

docs: setup  ## Build the documentation site into site/
	.venv/bin/zensical build --strict -f mkdocs.yml

bench: setup  ## Compare the speed with minimal servers and other RPC systems; writes benchmarks/results/
	@scripts/bench

campaign: setup  ## The tests that `make test` leaves out, then long runs: kills, fuzzed frames, soak tests
	$(PYTEST) -n $(WORKERS) --dist loadgroup -m "full and campaign and not gpu and not live"
	@scripts/campaign

peers: setup  ## Tests that compare with TransformerLens, SAELens and bitsandbytes, in separate environments
	@scripts/peers

dist: setup  ## Build the wheels into dist/ and try them in a fresh environment
	@scripts/dist

clean:  ## Remove the environment and what tests and builds left
	rm -rf .venv .venv-bench .venv-peers build dist .cache site .pytest_cache .ruff_cache .hypothesis
