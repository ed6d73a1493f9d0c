# Everything runs in .venv, which the first target that needs it makes. Only Python and a C++ compiler are assumed.
#   make demo     complete real Python code with the bundled model, plainly and speculatively
#   make test     the test suite
#   make check    lint, format, types, size caps
#   make mutants  plant defects one at a time; each must be killed by a test
#   make bench    the benchmarks (only on an idle machine)
#   make size     line budgets beside actuals
#   make cross    compile the kernels for AArch64 and check them under qemu
#   make peers    other engines, each in its own environment, to be measured beside ours

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
BUILT := .venv/.built
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test check mutants bench cross size peers setup

demo: setup
	$(BIN)/python examples/demo.py

# The models of the tests are tiny: two processes of one thread each are faster than one of two.
test: export OMP_NUM_THREADS = 1
test: setup
	$(BIN)/python -m pytest --numprocesses 2

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tools.size

mutants: export OMP_NUM_THREADS = 1
mutants: setup
	$(BIN)/python -m tests.mutants

bench: setup
	$(BIN)/python -m benchmarks.vs_transformers
	$(BIN)/python -m benchmarks.acceptance
	$(BIN)/python -m benchmarks.dflash
	$(BIN)/python -m benchmarks.proofs
	$(BIN)/python -m benchmarks.pairs
	$(BIN)/python -m benchmarks.phases
	$(BIN)/python -m benchmarks.noise
	$(BIN)/python -m benchmarks.kernels
	$(BIN)/python -m benchmarks.rollback
	$(BIN)/python -m benchmarks.hybrid
	$(BIN)/python -m benchmarks.decode
	$(BIN)/python -m benchmarks.report

cross: setup
	$(BIN)/python -m tests.native.cross

size: setup
	$(BIN)/python -m tools.size

peers: setup .peers/llama-cpp/.installed .peers/openvino/.installed

.peers/llama-cpp/.installed: export CMAKE_ARGS = -DGGML_NATIVE=ON -DLLAVA_BUILD=OFF
.peers/llama-cpp/.installed: benchmarks/peers/llama-cpp.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --requirement $<
	touch $@

# The exporter pulls torchvision, whose build does not fit this torch; it is not needed.
.peers/openvino/.installed: benchmarks/peers/openvino.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --constraint $< torch
	$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --requirement $<
	$(@D)/bin/python -m pip uninstall --quiet --yes torchvision
	touch $@

setup: $(BUILT)

# torch goes first and alone, so that its pin decides and nothing else can pull another build of it.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) --editable '.[test]'
	touch $@

# The installation has compiled the kernels, which takes about half a minute, but pip hides what was said. This says it
# again, and compiles only what is older than its source.
$(BUILT): $(INSTALLED) setup.py $(wildcard src/surefoot/native/source/*)
	$(BIN)/python setup.py --quiet build_kernels --inplace
	touch $@
