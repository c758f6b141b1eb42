# Two commands for a fresh machine: `make demo` and `make test`. Both set up .venv first and reuse it afterwards.
PYTHON ?= python3
BIN := .venv/bin
CLIPS := tests/data/pens.mp4

.PHONY: demo test check clean

.venv/.ready: pyproject.toml hatch_build.py constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else f"Coldframe needs Python 3.11 to 3.13, this is {v[0]}.{v[1]}: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cpu,dali,demo,dev,images,lance,ray,rtx,s3]'
	touch $@

demo: .venv/.ready
	$(BIN)/coldframe demo $(CLIPS) --out demo_out

# Two processes share two cores; more threads in each would spin against one another.
test: .venv/.ready
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

check: .venv/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf .venv demo_out dist
