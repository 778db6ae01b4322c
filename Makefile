# Everything an operator or a developer types. `make help` lists the targets.
SHELL := /bin/sh
.DEFAULT_GOAL := help

PY := .venv/bin/python
PLAY := .venv/bin/ansible-playbook
INVENTORY ?= inventories/local
LIMIT ?= local
FLAVOUR ?= cpu
SHAPE ?= 1p1d
ARGS ?=

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' Makefile

venv: ## Make .venv (ansible-core) and .deps (the four collections)
	@sh ci/venv.sh run

venv-dev: ## The same, with the linters and test tools
	@sh ci/venv.sh dev

deploy: venv ## Serve on this machine: etcd, prefill, decode, router, with the real SGLang on the CPU
	$(PLAY) site.yml -i $(INVENTORY) -l $(LIMIT) $(ARGS)

status: venv ## Show workers, roles, ranks and health of the deployment
	@$(PLAY) playbooks/status.yml -i $(INVENTORY) -l $(LIMIT) $(ARGS)

clean: venv ## Remove the deployment: containers, networks, volumes, state, our images
	$(PLAY) playbooks/down.yml -i $(INVENTORY) -l $(LIMIT) -e teardown_purge=true $(ARGS)

distclean: ## clean, and .venv, .deps, the caches, the base image, a dockerd that we started
	@sh ci/distclean.sh

check: venv-dev ## Lint and units, under 3 minutes
	@$(PY) ci/run_stages.py check

test: venv-dev ## Everything, with the real engine; prints what each stage took
	@$(PY) ci/run_stages.py

image: venv ## Build the engine image of FLAVOUR=cpu|rocm
	$(PLAY) playbooks/image.yml -i $(INVENTORY) -l $(LIMIT) -e infera_flavour=$(FLAVOUR) $(ARGS)

bench: venv-dev ## The router beside its peers: prints figures, asserts nothing
	@sh bench/bench.sh $(ARGS)

bench-balance: venv-dev ## The decode emulator at several request weights
	@$(PY) bench/balance/run.py $(ARGS)

fleet-scale: venv-dev ## Time the control plane for 2, 8 and 32 hosts (not in `make test`)
	@$(PY) ci/fleet_scale.py $(ARGS)

rehearse: venv-dev ## Every step of a measured point on this machine: SHAPE=1p1d
	@$(PY) ci/rehearse.py --shape $(SHAPE) $(ARGS)

.PHONY: help venv venv-dev deploy status clean distclean check test image bench bench-balance fleet-scale rehearse
