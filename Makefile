# Two commands: `make demo` and `make test`. Each makes its own virtual environment; nothing but Python 3.11 and pip is needed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test format benchmark campaign clean docs dist

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
	failed=0; for part in sparse_coding cross_validation training huge_bag encode viewer scale; do \
		$(BIN)/python benchmarks/$$part.py || failed=1; done; exit $$failed

# Four hours: kills, sequences of actions, damaged files, odd structures, faults, a soak, a cluster; then docs/reliability.md.
campaign: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[ray]"
	failed=0; for part in "kill --kills 300" \
		"kill --kills 300 --only replaced predict heatmap compare locate paint --out campaign/results/kill_paths.json" \
		"sequence --sequences 500" "fuzz --inputs 200000" "structure --inputs 20000" \
		faults "soak --minutes 60" ray_two_nodes; do \
		set -- $$part; name=$$1; shift; $(BIN)/python campaign/$$name.py "$$@" || failed=1; done; \
	$(BIN)/python campaign/page.py && exit $$failed

# The site, offline and searchable: open build/site/index.html. A warning is a mistake.
docs: .venv/ready
	$(BIN)/python docs/make_benchmarks.py
	$(BIN)/sphinx-build -q -E -W --keep-going docs build/site

# Wheel and sdist in dist/, and the wheel tried in a fresh environment outside of the repository.
dist: .venv/ready
	rm -rf dist && $(BIN)/python -m build
	$(BIN)/python tests/check_dist.py dist/*.whl

# constraints.txt pins every version: the same environment everywhere, and torch's CPU build where pip offers it.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv
