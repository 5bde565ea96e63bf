# Two commands do everything: `make demo` and `make test`.
PY := .venv/bin/python
TESTS ?= tests
WORKERS ?= 3
unexport WORKERS
# Thousands of processes import the same modules: each would compile them anew.
unexport PYTHONDONTWRITEBYTECODE
# A failed test runs again (these machines are shared, and the summary names each), but never one whose bits differ.
RERUN := --reruns 2 --reruns-delay 2 --rerun-except BitsDiffer
PYTEST := $(PY) -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder $(RERUN)

.PHONY: demo leslie governed-demo test test-quick test-pbs test-for coverage hooks docs pictures searches test-frameworks test-interactive test-determined names schemas check packages setup wheel chaos fuzz stranded attack bench-cli bench-index bench-read bench-search-control bench-overhead bench-checkpoint bench-mpi bench-meeting bench-start bench-elastic bench-governance bench-gpu bench-sites bench-search bench-search-tables bench-calibration governed-recovery governed-replications governed-scheduling governed-search null-searches clean

demo:  ## set up, train the example search on this machine, write report.html
	@scripts/setup.sh demo
	@$(PY) scripts/demo.py

leslie: ## a run that nobody could repeat: what has changed is named, restored, and the bits are the same again
	@scripts/setup.sh demo
	@$(PY) scripts/leslie.py

governed-demo: ## train digits under a policy, kill it once, and show which source reached which layer
	@scripts/setup.sh demo
	@$(PY) scripts/governed_demo.py

test: packages setup check  ## set up (Slurm included) and run all tests
	$(PYTEST) --durations=10 --junit-xml=build/tests.xml $(TESTS)

test-quick: setup  ## the tests that need no cluster and end soon: under 3 minutes
	$(PYTEST) $$($(PY) scripts/test_map.py quick)

test-pbs: setup  ## on a server of PBS that answers here and takes this user's jobs: every disturbance, in each mode
	$(PY) -m pytest -rs --durations=5 tests/pbs

test-for: setup  ## the tests that execute a module: make test-for FILE=hpcdet/store/fs/files.py
	$(PYTEST) $$($(PY) scripts/test_map.py for $(or $(FILE),$(error FILE names a module, such as hpcdet/store/fs/files.py)))

coverage: packages setup  ## lines and branches that the tests execute, ranks included, and tests/map.json (an hour)
	mkdir -p build/coverage
	$(PYTEST) --cov --cov-context=test --cov-report=term:skip-covered --junit-xml=build/tests.xml $(TESTS)
	$(PY) scripts/test_map.py record

test-frameworks:  ## every adapter on its framework, all of them installed in an environment of their own (gigabytes)
	venv=$$(scripts/setup.sh frameworks) && HPCDET_FRAMEWORKS=1 $$venv/bin/python -m pytest --durations=8 tests/integrations/test_frameworks.py tests/determined/test_frameworks.py

test-interactive: packages  ## notebooks with a real JupyterLab, in an environment of its own, and the private Slurm (needs root)
	venv=$$(scripts/setup.sh interactive) && $$venv/bin/python -m pytest --durations=8 tests/tasks tests/interop tests/security/test_attack_tasks.py tests/slurm/test_tasks.py

test-determined: setup  ## Determined's own examples, unmodified: make test-determined DETERMINED=/path/to/its/repository
	$(PY) -m tests.determined_corpus $(or $(DETERMINED),$(error DETERMINED names a clone of Determined's repository, as of 0.38)) $(NAMES)

schemas: setup  ## hpcdet/read/schemas and docs/reference/json.md, from the classes of what verbs print
	$(PY) scripts/schemas.py

names: setup  ## docs/reference/determined-names.md, from the recorded names and hpcdet's own tables
	$(PY) -m tests.determined_names

check: setup  ## style, types, architecture
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports

hooks: setup  ## Git runs the checks before each commit
	$(PY) -m pre_commit install --hook-type pre-commit --hook-type commit-msg

docs:  ## the pages of docs/, strict, into build/docs
	venv=$$(scripts/setup.sh docs) && NO_MKDOCS_2_WARNING=1 $$venv/bin/mkdocs build --quiet

pictures: packages setup  ## the pictures of docs/, from a search that is made for them
	$(PY) scripts/pictures.py

packages:
	@scripts/packages.sh

setup:
	@scripts/setup.sh dev

wheel: setup
	$(PY) -m pip wheel --quiet --no-deps --wheel-dir dist .

chaos: packages setup  ## a campaign of random blows: make chaos KILLS=200 SEED=1 [KINDS="kill_in_save full_disk"]
	HPCDET_CHAOS=$(or $(KILLS),200) HPCDET_CHAOS_SEED=$(or $(SEED),1) HPCDET_CHAOS_KINDS="$(KINDS)" \
		$(PY) -m pytest -m chaos -s tests/local/test_chaos.py tests/slurm/test_chaos.py

searches: setup  ## every rule of halving against its definition: make searches SEARCHES=2000
	HPCDET_SEARCHES=$(or $(SEARCHES),2000) $(PY) -m pytest tests/search/test_by_definition.py

stranded: packages setup  ## the death of workers and nodes with nobody following: real ranks, the shipped site (an hour)
	HPCDET_STRANDED=full $(PY) -m pytest -rP tests/slurm/test_stranded.py

fuzz: setup  ## forged checkpoints with right digests: make fuzz N=10000 SEED=1
	HPCDET_FUZZ=$(or $(N),10000) HPCDET_FUZZ_SEED=$(or $(SEED),1) \
		$(PY) -m pytest --timeout 7200 tests/checkpoint/test_forged.py

attack: packages setup  ## another user attacks the ranks of trials, for a minute on one host and on two (needs root)
	HPCDET_ATTACK_S=60 $(PY) -m pytest -rP tests/security/test_attack_ranks.py tests/train/test_meeting.py

bench-cli: setup  ## start-up times of the command line
	$(PY) benchmarks/bench_cli.py

bench-index: setup  ## the SQLite index: made from nothing, and brought up to date
	$(PY) benchmarks/bench_index.py

bench-read: setup  ## status, report and ls of large experiments: time and memory beside reading each line once
	$(PY) benchmarks/bench_read.py

bench-search-control: setup  ## deciding: restart of a long search, a turn over many trials, report to directive
	$(PY) benchmarks/bench_search_control.py

bench-overhead: setup  ## a step of ours against a hand-written loop, Lightning Fabric and Determined
	$(PY) benchmarks/bench_overhead.py

bench-checkpoint: setup  ## saves and stalls beside the disk itself and what others use (15 minutes)
	$(PY) benchmarks/bench_checkpoint.py

bench-mpi: setup  ## the MPI backend against raw mpi4py and gloo; overlap on and off
	$(PY) benchmarks/bench_mpi.py

bench-meeting: setup  ## ranks that prove who they are beside torch's store and plain gloo: start and steps
	$(PY) benchmarks/bench_meeting.py

bench-start: setup  ## ranks until their first step, submit, short trials beside Ray Tune and submitit, slow metadata (an hour)
	$(PY) benchmarks/bench_start.py

bench-elastic: setup  ## what the same bits on any number of ranks cost: step time against DDP
	$(PY) benchmarks/bench_elastic.py

bench-governance: setup  ## what routing gradients by source costs: operators, modules run twice, one pass per source
	$(PY) benchmarks/bench_governance.py

bench-gpu: setup  ## on accelerators: forks, lanes, exact resume, warm ranks, steps, saves; exit code 3 without one
	$(PY) benchmarks/bench_gpu.py

bench-sites: packages setup  ## load on the scheduler by counted calls, submission of 100 workers, containers (needs root, an hour)
	$(PY) benchmarks/bench_sites.py

bench-search: setup  ## our search methods beside Optuna, Ray Tune and Syne Tune: decisions, suggestions, clusters, networks
	$(PY) benchmarks/bench_search.py

bench-search-tables: setup  ## the tables of learning curves that part h of bench-search searches (10 minutes, once)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(PY) -m benchmarks.search.tables

bench-calibration: setup  ## the simulator against real searches on the private Slurm
	$(PY) benchmarks/bench_search.py --part e

governed-search: setup  ## low loss through memorization is pruned: searches with and without twins
	$(PY) benchmarks/governed_search.py

null-searches: setup  ## searches of models that know nothing by heart are pruned at most at alpha: N=2000
	HPCDET_GOVERNED_SEARCHES=$(or $(N),2000) $(PY) -m pytest -rP tests/search/test_null_searches.py

governed-recovery: setup  ## what a resume verifies: kills on 1, 2, 4 ranks, and one change for each of 23 checks
	$(PY) benchmarks/governed_recovery.py

governed-replications: setup  ## routing, canaries, removable data: published rows beside ours, failures printed (an hour)
	$(PY) benchmarks/governed_replications.py

governed-scheduling: setup  ## jobs that a policy governs run only on nodes that enforce it: on a private Slurm
	$(PY) benchmarks/governed_scheduling.py

clean:
	rm -rf .venv build dist report.html .demo
