# One command each, and each what .ci/run runs. VENV=path uses another environment.
VENV ?= .venv
PYTHON := $(VENV)/bin/python

.PHONY: test thorough explore lint bench docs

test: | $(PYTHON)
	$(PYTHON) -m pytest -n auto

# What is slow, what everyday runs take a sample of, and the properties again, on five times as many examples.
thorough: | $(PYTHON)
	DPACCT_TESTS=thorough $(PYTHON) -m pytest -n auto -m "hypothesis or slow or sampled" \
		--ignore=tests/project/test_docs_examples.py

# New examples each time; what fails is printed with the line that repeats it.
explore: | $(PYTHON)
	DPACCT_TESTS=explore $(PYTHON) -m pytest -n auto -m hypothesis

lint: | $(PYTHON)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m pyright --pythonpath $(PYTHON)

bench: | $(PYTHON)
	$(PYTHON) -m benchmarks

docs: | $(PYTHON)
	DPACCT_TESTS=thorough $(PYTHON) -m pytest -n auto tests/project/test_docs_examples.py

$(PYTHON):
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install -q -c constraints.txt -e '.[dev,interop,fl,plot]'
