.PHONY: check test

check:
	ruff check .
	ruff format --check .
	mypy

test:
	pytest
