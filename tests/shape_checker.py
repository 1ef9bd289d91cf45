"""The checks of types and shapes while the tests run, which `conftest.py` installs."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

# As for mypy, an `int` is a `float`.
check_types = beartype(conf=BeartypeConf(is_pep484_tower=True))
