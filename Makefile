# What a user types. `make help` lists it.
BUILD := build
VENV := .venv/bin

.PHONY: all help demo test test-gpu soak fuzz coverage check format bench clean

all: ## build the library and the command (build/spillway)
	@scripts/setup build
	@cmake --preset release $(if $(WERROR),-DSPW_WERROR=ON) >/dev/null
	@cmake --build $(BUILD) -- --quiet

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: all ## fine-tune a small model under a memory cap: unpaged, paged, uncapped (a minute)
	@scripts/demo

test: ## build and run all tests (minutes, no GPU)
	@scripts/setup test
	@$(MAKE) --no-print-directory all
	@scripts/run_tests $(BUILD)

test-gpu: all ## the tests that need an NVIDIA GPU
	@for test in $(BUILD)/tests-gpu/*; do echo "== $$test"; $$test || exit 1; done

soak: all ## 10,000 steps with spikes; walks and faults under ASan and TSan, OPS=100000 (hours, no GPU)
	@python3 bench/spikes.py
	@scripts/soak $(or $(OPS),100000)

fuzz: ## libFuzzer on every reader of files, SECONDS=20 each (needs clang)
	@scripts/setup ci
	@scripts/fuzz $(or $(SECONDS),20)

coverage: ## all tests, and which lines of src/ they run
	@scripts/setup test
	@cmake --preset coverage >/dev/null
	@cmake --build --preset coverage -- --quiet
	@find build-coverage -name '*.gcda' -delete
	@scripts/run_tests build-coverage
	@python3 scripts/coverage.py build-coverage

check: ## include law, sizes of files and functions, format, the header as C++
	@scripts/setup ci
	@python3 scripts/check_house.py
	@c++ -std=c++11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c++ include/spillway/spillway.h
	@scripts/sources | xargs $(VENV)/clang-format --dry-run -Werror

format: ## format all C
	@scripts/setup ci
	@scripts/sources | xargs $(VENV)/clang-format -i

bench: all ## measure, into bench/results
	@scripts/setup bench
	@python3 bench/step.py
	@bench/store_fio.sh

clean: ## remove what was built
	rm -rf build build-*
