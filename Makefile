# Two commands: `make demo` and `make test`. Each makes its own virtual environment; nothing but Python 3.11 and pip is needed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test format benchmark clean

demo: .venv/ready
	$(BIN)/scmil demo

test: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmark: .venv/ready
	$(BIN)/python benchmarks/sparse_coding.py; first=$$?; $(BIN)/python benchmarks/cross_validation.py; second=$$?; \
	$(BIN)/python benchmarks/encode.py && exit $$((first + second))

# constraints.txt pins every version: the same environment everywhere, and torch's CPU build where pip offers it.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv
