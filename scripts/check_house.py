"""Checks the laws of the house: who may include whom, and the size of files and functions.

Usage: python3 scripts/check_house.py
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# A folder of src/ may include itself and these; <spillway/spillway.h> is everybody's.
LAW = {
    "base": set(),
    "format": {"base"},
    "dev": {"base"},
    "store": {"base"},
    "kern": {"base", "dev"},
    "pager": {"base", "dev", "store"},
    "opt": {"base", "dev", "store", "kern", "pager"},
    "ckpt": {"base", "format", "dev", "store", "kern", "pager", "opt"},
    "hook": {"base"},
    "train": {"base", "format"},
    "cli": {"base", "format", "train"},
}
MOST_FILE_LINES = 1000
MOST_FUNCTION_LINES = 70
MOST_HEADER_LINES = 700


def sources(folder):
    for where, _, names in os.walk(os.path.join(ROOT, folder)):
        for name in sorted(names):
            if name.endswith((".c", ".h", ".cu", ".cuh")):
                yield os.path.relpath(os.path.join(where, name), ROOT)


def lines_of(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read().splitlines()


def check_includes(path, lines):
    folder = path.split(os.sep)[1]
    if folder not in LAW:
        yield f"{path}: folder src/{folder} is not in the law of includes"
        return
    for number, line in enumerate(lines, 1):
        found = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if not found:
            continue
        target = found.group(1).split("/")[0]
        if target != folder and target not in LAW[folder]:
            yield f"{path}:{number}: {folder} may not include {found.group(1)}"


def check_sizes(path, lines):
    most = MOST_HEADER_LINES if path.startswith("include") else MOST_FILE_LINES
    if len(lines) > most:
        yield f"{path}: {len(lines)} lines, at most {most}"
    begin = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            begin = number
        elif line == "}" and begin is not None:
            if number - begin - 1 > MOST_FUNCTION_LINES:
                yield f"{path}:{begin}: a function of {number - begin - 1} lines"
            begin = None


def main():
    faults = []
    for path in sources("src"):
        lines = lines_of(path)
        faults += check_includes(path, lines)
        faults += check_sizes(path, lines)
    for folder in ("include", "tests", "bench", "examples"):
        for path in sources(folder):
            faults += check_sizes(path, lines_of(path))
    print("\n".join(faults) if faults else "check_house: the laws hold")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
