# One command each, and each what .ci/run runs. VENV=path uses another environment. A target installs
# what it needs and the environment lacks, so each works in a fresh clone, and after `pip install .`.
VENV ?= .venv
PYTHON := $(VENV)/bin/python
# Flower needs older packages than the other extras are tested with.
FLOWER_VENV ?= .venv-flower
FLOWER := $(FLOWER_VENV)/bin/python
# The archives of a release, and the environment in which they are tested.
DIST ?= dist
LOWEST_VENV ?= .venv-lowest
LOWEST := $(LOWEST_VENV)/bin/python
PYTEST_LOWEST := -m pytest -n auto -W default::DeprecationWarning

.PHONY: tools flower-tools test slow app texts thorough explore flower lint bench gpu docs pictures release lowest site

test: tools
	$(PYTHON) -m pytest -n auto

# Slow tests, in full: ten minutes, so before a release and after a change to what they test.
slow: tools
	DPACCT_TESTS=thorough $(PYTHON) -m pytest -n auto -m slow --ignore=tests/project/test_docs_examples.py

# Slow tests, all parameters of sampled tests, and properties on three times as many examples.
thorough: flower tools
	DPACCT_TESTS=thorough $(PYTHON) -m pytest -n auto -m "hypothesis or slow or sampled" \
		--ignore=tests/project/test_docs_examples.py

# The plug-ins for Flower, with its processes and its simulation: minutes.
flower: flower-tools
	DPACCT_TESTS=thorough $(FLOWER) -m pytest tests/fl/flower tests/interop/test_flower.py
	$(FLOWER) -m pyright --pythonpath $(FLOWER) -p tests/fl/flower/pyright.json

# The page of `dpacct app` in a real browser. Without Chromium its tests are skipped.
app: tools
	$(call group,app-test)
	$(PYTHON) -m pytest tests/cli/app_page

# Texts, adapters and saved data sets of Hugging Face, whose packages take 400 MB.
texts: tools
	$(call group,text-test)
	$(PYTHON) -m pytest tests/cli/train/test_hugging_face.py tests/fl/models tests/fl/data/test_columns.py

# New examples each time; what fails is printed with the line that repeats it.
explore: tools
	DPACCT_TESTS=explore $(PYTHON) -m pytest -n auto -m hypothesis

lint: tools
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m pyright --pythonpath $(PYTHON)
	DPACCT_TESTS=thorough $(PYTHON) -m pytest -q tests/project/test_types.py

bench: tools
	$(PYTHON) -m benchmarks

# Training at the papers' scale on a GPU, ten minutes at most; without one a small form, which says so.
gpu: tools
	$(PYTHON) -m benchmarks.device

docs: site
	DPACCT_SITE=build/site DPACCT_TESTS=thorough $(PYTHON) -m pytest -n auto tests/project/test_docs_examples.py tests/project/test_site_build.py

# The archives of a release, in $(DIST).
release: tools
	$(call group,release)
	rm -f $(DIST)/dpacct-*
	$(PYTHON) -m build --no-isolation --outdir $(DIST)
	$(PYTHON) -m twine check --strict $(DIST)/*
	DPACCT_DIST=$(DIST) DPACCT_TESTS=thorough $(PYTHON) -m pytest tests/project/test_release.py

# What a release uploads, as users get it: the wheel with `plot` and `report`, on the lowest versions
# that are allowed, runs the tests of the unpacked source archive. Those that need PyTorch are skipped.
# Old packages beside new ones warn of deprecations, which are not ours. Ledgers are tested as on
# Windows: without fork, locks and modes of files.
lowest: release
	python3 -m venv --clear $(LOWEST_VENV)
	$(PYTHON) .ci/environment.py lowest > $(LOWEST_VENV)/constraints.txt
	mkdir $(LOWEST_VENV)/source
	tar -xzf $(DIST)/dpacct-*.tar.gz -C $(LOWEST_VENV)/source --strip-components 1
	$(LOWEST) -m pip install -q -U pip
	$(LOWEST) -m pip install -q -c $(LOWEST_VENV)/constraints.txt "$$(echo $(DIST)/dpacct-*.whl)[plot,report]" \
	    --group $(LOWEST_VENV)/source/pyproject.toml:test
	cd $(LOWEST_VENV)/source && ../bin/python $(PYTEST_LOWEST) --ignore=tests/ledger
	cd $(LOWEST_VENV)/source && PYTHONPATH=tests/without_posix ../bin/python $(PYTEST_LOWEST) tests/ledger

# The pictures of the documentation, from the examples of its pages.
pictures: tools
	$(PYTHON) -m website.pictures

# The documentation site: build/site/html/index.html.
site: tools
	$(call group,site)
	$(PYTHON) -m website

# What a group of pyproject.toml asks for, if it is missing.
define group
@$(PYTHON) .ci/environment.py lacks $(1) || $(PYTHON) -m pip install -q -c constraints.txt --group $(1)
endef

tools: | $(PYTHON)
	@$(PYTHON) .ci/environment.py lacks interop fl plot report certify app dev || { $(PYTHON) -m pip install -q -U pip \
	    && $(PYTHON) -m pip install -q -c constraints.txt -e '.[interop,fl,plot,report,certify,app,postgres]' --group dev; }

flower-tools: | $(FLOWER)
	@$(FLOWER) .ci/environment.py lacks flower fl dp-accounting dev || { $(FLOWER) -m pip install -q -U pip \
	    && grep -vE '^(packaging|rich|typer|click|starlette|uvicorn)==' constraints.txt > $(FLOWER_VENV)/constraints.txt \
	    && $(FLOWER) -m pip install -q -c $(FLOWER_VENV)/constraints.txt -e '.[fl,flower,dp-accounting]' \
	        --group dev 'flwr[simulation]>=1.41'; }

$(PYTHON):
	python3 -m venv $(VENV)

$(FLOWER):
	python3 -m venv $(FLOWER_VENV)
