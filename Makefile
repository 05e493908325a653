# Two commands: `make run` starts the product, `make test` sets up and runs every check.
.PHONY: run page dist test check types soak faults frameworks lock-frameworks fresh-clone setup packages format lock bench docs clean

PYTHON ?= python3
BIN := .venv/bin
UV := $(BIN)/uv
# Where nothing is kept, every process of the tests compiles all that it imports, which doubles their time.
unexport PYTHONDONTWRITEBYTECODE

# Without Node there is no page, and the server says so. The port is 8000, or that of USECHAT_PORT.
run: .venv/ready $(if $(shell command -v npm 2> /dev/null),page)
	@echo "usechat: starting the demo"
	@$(BIN)/usechat demo

# The chat page, which the server serves and the wheel carries.
page: src/usechat/page/index.html

PAGE_SOURCES := $(shell find web/src src/usechat/react -type f) web/index.html web/package-lock.json web/tsconfig.json web/vite.config.ts
src/usechat/page/index.html: web/node_modules/ready $(PAGE_SOURCES)
	@echo "usechat: building the page"
	cd web && node_modules/.bin/tsc --project . && node_modules/.bin/vite build --logLevel warn

# The wheel and the source distribution, with the page in them. What builds them is in the locks, so that no network is needed.
dist: .venv/ready page
	$(UV) build --offline --no-build-isolation --python $(BIN)/python --clear --out-dir dist

# As a user's checker sees the package.
TYPED_PROGRAM := $(BIN)/mypy --strict --cache-dir .venv/mypy tests/typing/program.py

# All that the checkers read, by name and content: what has passed once is not checked again, for a minute of work.
TYPED_SOURCES := find . \( -name .venv -o -name node_modules -o -name .git \) -prune -o -type f \
	\( -name '*.py' -o -name '*.pyi' -o -name py.typed -o -path './locks/*' -o -path ./pyproject.toml -o -path ./Makefile \) -print0

# Every check, at once, and one list of what failed in the end.
test: setup
	@$(BIN)/python tests/run.py

# The inner loop: what needs no service and no Node.
check: .venv/ready
	@$(BIN)/python tests/run.py --quick

types: .venv/ready
	@sources=$$($(TYPED_SOURCES) | sort -z | xargs -0 sha256sum | sha256sum); \
	if test "$$sources" = "$$(cat .venv/typed 2> /dev/null)"; then echo "usechat: nothing has changed since the types were found right"; \
	else $(BIN)/basedpyright --warnings && $(TYPED_PROGRAM) && echo "$$sources" > .venv/typed; fi

# What is too long for every run: more draws of the random tests, more kills.
soak: setup fresh-clone
	@echo "usechat: the long form of the random and crash tests"
	@USECHAT_SOAK=1 $(BIN)/python tests/run.py

# What somebody sees who has just cloned the last commit.
fresh-clone: .venv/ready browser/node_modules/ready
	@echo "usechat: make run in a fresh clone"
	$(BIN)/python browser/fresh_clone.py

# Every row of the table in docs/faults.md, in full, which is an hour; ROWS="stop crowd" plays some, SEED=1 again what it played,
# and STORE=valkey-server plays it on Valkey.
faults: setup
	@echo "usechat: the fault suite"
	cd faults && PYTHONPATH=.:../conformance:../tests ../$(BIN)/python suite.py $(if $(STORE),--store $(STORE),--write) $(if $(SEED),--seed $(SEED)) $(ROWS)

# Each framework with its real package and a fake provider, at its newest release and at the oldest that its extra allows:
# an environment for each of locks/frameworks/, since some exclude each other. NAME=agno is for one of them.
FRAMEWORKS := $(patsubst locks/frameworks/%.txt,%,$(wildcard $(if $(NAME),$(NAME:%=locks/frameworks/%.txt) $(NAME:%=locks/frameworks/%-floor.txt),locks/frameworks/*.txt)))
frameworks: .venv/ready conformance/node_modules/ready $(FRAMEWORKS:%=.venv/frameworks/%/ready)
	USECHAT_MATRIX=write USECHAT_FRAMEWORKS="$(FRAMEWORKS:%=$(CURDIR)/.venv/frameworks/%)" $(BIN)/pytest -q -n 2 --dist loadscope frameworks

.venv/frameworks/%/ready: locks/frameworks/%.txt .venv/ready
	@echo "usechat: setting up the environment of $*"
	$(UV) venv --quiet --allow-existing --python $(BIN)/python .venv/frameworks/$*
	$(UV) pip sync --quiet --python .venv/frameworks/$*/bin/python --require-hashes locks/frameworks/$*.txt
	@touch $@

setup: packages .venv/ready conformance/node_modules/ready browser/node_modules/ready page

packages:
	@sh tests/support/install_programs.sh

# uv comes from PyPI into the project's own venv, so that no uv has to be installed on the machine.
.venv/ready: locks/dev.txt pyproject.toml
	@echo "usechat: setting up Python packages in .venv"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	sed -n '/^uv==/,/# via/p' locks/dev.txt > .venv/uv.txt
	test -x $(UV) || $(BIN)/python -m pip install --quiet --require-hashes -r .venv/uv.txt
	$(UV) pip sync --python $(BIN)/python --require-hashes locks/dev.txt
	$(UV) pip install --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

# The pinned AI SDK clients, what builds and opens pages, and what the page is made of.
conformance/node_modules/ready browser/node_modules/ready web/node_modules/ready bench/node_modules/ready: %/node_modules/ready: %/package-lock.json
	@echo "usechat: setting up npm packages in $*/"
	cd $* && npm ci --loglevel=error
	@touch $@

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/ready
	$(BIN)/python docs/generate.py

bench: packages .venv/ready conformance/node_modules/ready bench/node_modules/ready
	$(UV) venv --quiet --allow-existing --python $(BIN)/python .venv/bench
	$(UV) pip sync --python .venv/bench/bin/python --require-hashes locks/bench.txt
	PYTHONPATH=src .venv/bench/bin/python bench/encode.py
	PYTHONPATH=src .venv/bench/bin/python bench/open_harness.py
	PYTHONPATH=src .venv/bench/bin/python bench/flows.py
	PYTHONPATH=src .venv/bench/bin/python bench/gateway.py
	PYTHONPATH=src .venv/bench/bin/python bench/deep_agent.py
	PYTHONPATH=src:tests .venv/bench/bin/python -P bench/langgraph.py
	PYTHONPATH=src:tests .venv/bench/bin/python -P bench/pydantic_ai.py
	PYTHONPATH=src .venv/bench/bin/python bench/long_chats.py
	PYTHONPATH=src .venv/bench/bin/python bench/chat_server.py
	PYTHONPATH=src:tests .venv/bench/bin/python bench/redis_turns.py
	PYTHONPATH=src:tests .venv/bench/bin/python bench/redis_load.py

COMPILE := $(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 pyproject.toml
# The extra of a framework, and in its group what its app in frameworks/ needs beside that.
FRAMEWORK_GROUPS := $(shell sed -n 's/^framework-\([a-z0-9-]*\) = .*/\1/p' pyproject.toml)
lock-frameworks: .venv/ready
	@mkdir -p locks/frameworks
	@set -e; for name in $(or $(NAME),$(FRAMEWORK_GROUPS)); do \
	echo "usechat: locking $$name"; wanted="--extra server --extra $$name --group framework-$$name"; \
	$(COMPILE) $$wanted -o locks/frameworks/$$name.txt --upgrade; \
	$(COMPILE) $$wanted --resolution lowest-direct -o locks/frameworks/$$name-floor.txt --upgrade; done

lock: .venv/ready lock-frameworks
	$(COMPILE) --extra all --group dev -o locks/dev.txt --upgrade
	$(COMPILE) --extra flows --extra redis --group bench -o locks/bench.txt --upgrade

clean:
	rm -rf .venv conformance/node_modules browser/node_modules web/node_modules bench/node_modules src/usechat/page .coverage .hypothesis
