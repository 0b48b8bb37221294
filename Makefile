# Only make and Python 3.11 or later are needed: make demo, make test.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
BENCH_READY := .venv/.bench-ready

.PHONY: demo test test-slow docs dist bench clean

# A corpus is generated, a model is fitted, measured on held-out rows, and its proof is checked.
demo: $(READY)
	rm -rf demo
	$(BIN)/streamtron generate demo/train --rows 20000 --shards 4
	$(BIN)/streamtron generate demo/held-out --rows 5000 --skip 20000 --shards 1
	$(BIN)/streamtron fit demo/train --model demo/model --stage auto
	$(BIN)/streamtron evaluate demo/model demo/held-out
	$(BIN)/streamtron certify demo/model

# Style, types, and every test that is not slow.
test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

# The tests that take minutes, and all examples of those that draw theirs.
test-slow: $(READY)
	STREAMTRON_ALL_EXAMPLES=1 $(BIN)/python -m pytest -m 'slow or hypothesis'

# The documentation, as pages in site/; a broken link is an error.
docs: $(READY)
	$(BIN)/python docs/tools/pages.py

# Wheel and source distribution in dist/; README's commands run from the wheel in a fresh
# environment of each of PYTHONS.
PYTHONS ?= $(BIN)/python
dist: $(READY)
	rm -rf build dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python release/check.py dist/*.whl $(PYTHONS)

# Side by side with the peers at small sizes, some minutes; larger ones: benchmarks/README.md.
bench: $(BENCH_READY)
	$(BIN)/python benchmarks/certified.py --generate 20000 --passes 16 --time-limit 20
	$(BIN)/python benchmarks/reading.py --generate 20000
	$(BIN)/python benchmarks/rows.py --times 1 4 --epochs 4
	$(BIN)/python benchmarks/learners.py --generate 20000 --candidates 1 4
	$(BIN)/python benchmarks/updating.py --generate 20000
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/workers.py --generate 20000 --candidates 4
	$(BIN)/python benchmarks/parts.py --generate 20000
	$(BIN)/python benchmarks/parts.py --generate 20000 --kind dense

# What make and the tools have made, .venv included.
clean:
	rm -rf .venv demo site .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info build dist
	rm -rf benchmarks/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(READY)

$(BENCH_READY): $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	touch $(BENCH_READY)
