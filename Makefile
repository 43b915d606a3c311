# Needs make and a Python of 3.10 to 3.13: the first call makes .venv and installs into it, later ones start at once.

PYTHON ?= python3
BIN := .venv/bin
environment = @$(if $(filter file,$(origin PYTHON)),,PYTHON_WAS_NAMED=yes) $(PYTHON) scripts/environment.py

.PHONY: help run test lint

help: ## this list
	@sed -n 's/^\([a-z]*\):.* ## /make \1	/p' Makefile
	@echo "PYTHON=python3.12 make run takes another Python; make test ARGS='-k polar' hands arguments on"

run: ## FedMuon and FedAvg on real images, on a CPU, in about a minute
	$(environment) run
	@mkdir -p outputs && dir=$$(mktemp -d outputs/main-XXXXXX) && chmod 755 $$dir && \
	$(BIN)/fedmuon -m hydra.sweep.dir=$$dir experiment=main algorithm=fedmuon,fedavg $(ARGS)

test: lint ## lint, types and all tests
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

lint: ## ruff and mypy
	$(environment) test
	@$(BIN)/python -m ruff check
	@$(BIN)/python -m mypy fedmuon
