#!/bin/sh
# The file store beside fio: same folder, size, block size and depth. Rows go to
# bench/results/store.csv. BUILD names the build folder (build); options: see store_fio.py.
set -e
cd "$(dirname "$0")/.."
command -v fio >/dev/null || { echo "bench/store_fio.sh: install fio (apt-get install fio)" >&2; exit 1; }
cmake --build "${BUILD:-build}" --target bench_store_rate >/dev/null
exec python3 bench/store_fio.py --rate "${BUILD:-build}/bench/bench_store_rate" "$@"
