# Two commands: `make demo` runs the main job, `make test` passes the tests. `make demo-kubernetes` goes on from the
# first to pods that run on GPUs.
# Both install what they need: a virtual environment in .venv, and, as root on Debian, the Debian
# packages that the disposable test nodes need. They can be run again.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Without its byte code every gpustate that a test starts would compile all of itself again.
unexport PYTHONDONTWRITEBYTECODE

#: What is installed beside the lab: the Debian packages of the tests.
NEEDS := --tests

.PHONY: demo demo-kubernetes early test proof bench quick check lint docs generate pictures setup system clean

# They need the product and the lab, not what the tests need.
demo demo-kubernetes: NEEDS :=

demo: early $(VENV)/.lab
	@$(BIN)/python docs/examples/demo.py $(POLICY)

demo-kubernetes: early $(VENV)/.lab
	@$(BIN)/python docs/examples/demo_kubernetes.py $(POLICY)

# While pip installs; gpustate lab up waits for what is not ready by then.
early: system
	@[ "$$(id -u)" != 0 ] || PYTHONPATH=lab:. $(PYTHON) -m gpustate_lab.early &

# Three processes on two cores, for a test on a node waits half its time.
test: setup
	@$(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder --durations 30

# Every enumerated point of the kill and fault harness, the virtual machines, the bench, and the tests marked long:
# some hours.
proof: NEEDS := --tests --proof
proof: setup
	@$(BIN)/python tests/support/proofs.py

# What a fleet costs beside the floor, pyinfra, Mitogen and ansible-core, in one table; then what a fresh node costs
# beside the bare commands.
bench: setup
	@$(BIN)/python -m bench $(BENCH)
	@$(BIN)/python -m bench.fresh

# Unit tests, contracts and properties that take no node, compiler, type checker or build: 90 seconds of processor time.
# One process more than there are cores, for some tests wait.
quick: setup
	@$(BIN)/pytest --quick --numprocesses $$(($$(nproc) + 1)) --dist loadfile --no-loadscope-reorder

# And the checkers and the documentation.
check: quick lint
	@$(BIN)/pytest tests/unit/test_docs.py tests/unit/test_site.py

lint: setup
	@$(BIN)/pytest tests/unit/test_checks.py

# The documentation as a site in build/site; its pages of states, verbs and formats come from the source.
docs: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file docs/site/mkdocs.yml

# What is committed and made from the source: the schema of policies, the tables of supported systems.
generate: setup
	@$(BIN)/python -m gpustate.policies.schemas
	@$(BIN)/python tests/support/supporttable.py

# The pictures of README and documentation, from what gpustate prints on lab nodes; they are committed.
pictures: setup
	@$(BIN)/python docs/site/pictures.py

setup: system $(VENV)/.done

# As root with apt-get: install what is missing, and say so. Otherwise: say what is missing, go on.
system:
	@missing=; for p in $$($(PYTHON) lab/gpustate_lab/requirements.py --packages $(NEEDS) 2>/dev/null || echo python3-venv); do \
	  dpkg-query -W -f '$${db:Status-Abbrev}' $$p 2>/dev/null | grep -q '^.i' || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "gpustate: installing Debian packages:$$missing"; \
	    case "$$missing " in *" prometheus "*) echo "gpustate: only promtool is wanted: prometheus.service is masked"; \
	      mkdir -p /etc/systemd/system; ln -s /dev/null /etc/systemd/system/prometheus.service 2>/dev/null || :;; esac; \
	    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing; \
	  else echo "gpustate: not root, so these Debian packages are left out, and with them the disposable test nodes:$$missing"; fi; \
	fi

# Without --no-compile seven seconds go to byte code of modules that are never imported, such as all of lightkube's.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --no-compile

$(VENV)/.lab: pyproject.toml lab/pyproject.toml
	@echo "gpustate: making the virtual environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --editable . --editable ./lab
	@touch $@

$(VENV)/.done: $(VENV)/.lab
	@echo "gpustate: installing the tools of the tests"
	@$(PIP) --editable '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
