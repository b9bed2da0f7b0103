# One command each, and each what .ci/run runs. VENV=path uses another environment.
VENV ?= .venv
PYTHON := $(VENV)/bin/python
# Flower needs older packages than the other extras are tested with.
FLOWER_VENV ?= .venv-flower
FLOWER := $(FLOWER_VENV)/bin/python

.PHONY: test slow thorough explore flower lint bench gpu docs pictures release site

test: | $(PYTHON)
	$(PYTHON) -m pytest -n auto

# Slow tests, in full: ten minutes, so before a release and after a change to what they test.
slow: | $(PYTHON)
	DPACCT_TESTS=thorough $(PYTHON) -m pytest -n auto -m slow --ignore=tests/project/test_docs_examples.py

# Slow tests, all parameters of sampled tests, and properties on three times as many examples.
thorough: flower | $(PYTHON)
	DPACCT_TESTS=thorough $(PYTHON) -m pytest -n auto -m "hypothesis or slow or sampled" \
		--ignore=tests/project/test_docs_examples.py

# The plug-ins for Flower, with its processes and its simulation: minutes.
flower: | $(FLOWER)
	DPACCT_TESTS=thorough $(FLOWER) -m pytest tests/fl/flower tests/interop/test_flower.py
	$(FLOWER) -m pyright --pythonpath $(FLOWER) -p tests/fl/flower/pyright.json

# New examples each time; what fails is printed with the line that repeats it.
explore: | $(PYTHON)
	DPACCT_TESTS=explore $(PYTHON) -m pytest -n auto -m hypothesis

lint: | $(PYTHON)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m pyright --pythonpath $(PYTHON)

bench: | $(PYTHON)
	$(PYTHON) -m benchmarks

# Training at the papers' scale on a GPU, ten minutes at most; without one a small form, which says so.
gpu: | $(PYTHON)
	$(PYTHON) -m benchmarks.device

docs: | $(PYTHON)
	DPACCT_TESTS=thorough $(PYTHON) -m pytest -n auto tests/project/test_docs_examples.py tests/project/test_site_build.py

# The archives of a release. Needs the group `release`.
release: | $(PYTHON)
	DPACCT_TESTS=thorough $(PYTHON) -m pytest tests/project/test_release.py

# The pictures of the documentation, from the examples of its pages.
pictures: | $(PYTHON)
	$(PYTHON) -m website.pictures

# The documentation site: build/site/html/index.html. Installs the group `site`, then needs no network.
site: | $(PYTHON)
	$(PYTHON) -c 'import furo, myst_parser, latex2mathml, ziamath' 2>/dev/null \
	    || $(PYTHON) -m pip install -q -c constraints.txt --group site
	$(PYTHON) -m website
	$(PYTHON) -m website.notebooks build/site/notebooks

$(PYTHON):
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install -q -U pip
	$(PYTHON) -m pip install -q -c constraints.txt -e '.[interop,fl,plot,report]' --group dev

$(FLOWER):
	python3 -m venv $(FLOWER_VENV)
	$(FLOWER) -m pip install -q -U pip
	grep -vE '^(packaging|rich|typer)==' constraints.txt > $(FLOWER_VENV)/constraints.txt
	$(FLOWER) -m pip install -q -c $(FLOWER_VENV)/constraints.txt -e '.[fl,flower,dp-accounting]' --group dev 'flwr[simulation]>=1.41'
