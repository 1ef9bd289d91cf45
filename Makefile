# `make demo`, `make check` and `make test` create their own virtual environment: Python 3.11 and pip are enough.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo check test format benchmark campaign clean docs dist

demo: .venv/ready
	$(BIN)/scmil demo

# Two minutes: format, lint, types, and the tests of functions and classes that are fast.
check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 -m "not slow" tests/unit tests/test_*.py src

# Everything but the campaigns, with the coverage of lines and branches; its floor is in pyproject.toml. The types are checked
# beside the tests, some of which wait.
test: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy & types=$$!; $(BIN)/pytest -n 2 --dist worksteal --cov --cov-report=term:skip-covered; tests=$$?; \
		wait $$types && exit $$tests

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmark: .venv/ready
	failed=0; for part in sparse_coding cross_validation training huge_bag score_tiles run_overhead encode viewer scale; do \
		$(BIN)/python benchmarks/$$part.py || failed=1; done; exit $$failed

# Four hours: planted faults, kills, sequences of actions, damaged files, odd structures, faults, a soak, a cluster; then
# docs/reliability.md.
campaign: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[ray]"
	failed=0; for part in mutants "kill --kills 300" \
		"kill --kills 300 --only predict heatmap compare locate paint replaced --out campaign/results/kill_paths.json" \
		"sequence --sequences 500" "fuzz --inputs 200000" "structure --inputs 20000" \
		faults "soak --minutes 60" ray_two_nodes; do \
		set -- $$part; name=$$1; shift; $(BIN)/python campaign/$$name.py "$$@" || failed=1; done; \
	$(BIN)/python campaign/page.py && exit $$failed

# The site, offline and searchable: open build/site/index.html. A warning is a mistake.
docs: .venv/ready
	$(BIN)/python docs/make_benchmarks.py
	$(BIN)/python docs/make_arena.py
	$(BIN)/python docs/make_fidelity.py
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
