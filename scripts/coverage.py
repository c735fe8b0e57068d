"""Line coverage of src/ by what gcov counted: a line a file, the lines that no test ran, the total.

Usage: python3 scripts/coverage.py BUILD
"""
import collections
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def counters(build):
    """The .gcno of what was built from src/: gcov counts 0 where a test never loaded it."""
    for where, _, names in os.walk(os.path.join(build, "src")):
        for name in names:
            if name.endswith(".gcno"):
                yield os.path.join(where, name)


def read(build):
    """{file: {line: count}}; a line that is compiled several times counts where it ran most."""
    lines = collections.defaultdict(dict)
    for path in counters(build):
        text = subprocess.run(["gcov", "--json-format", "--stdout", path], check=True, cwd=build,
                              capture_output=True).stdout
        for document in filter(None, text.split(b"\n")):
            for file in json.loads(document)["files"]:
                name = os.path.relpath(os.path.join(build, file["file"]), ROOT)
                if name.startswith("src" + os.sep):
                    for line in file["lines"]:
                        number = line["line_number"]
                        lines[name][number] = max(lines[name].get(number, 0), line["count"])
    return lines


def ranges(numbers, compiled):
    """"3-5, 9": lines that follow each other with nothing compiled between them are one range."""
    order = {number: place for place, number in enumerate(sorted(compiled))}
    runs = []
    for number in numbers:
        if runs and order[number] == order[runs[-1][1]] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def main():
    lines = read(os.path.abspath(sys.argv[1]))
    all_lines = all_run = 0
    for name in sorted(lines):
        missed = sorted(number for number, count in lines[name].items() if not count)
        n = len(lines[name])
        all_lines += n
        all_run += n - len(missed)
        print(f"{(n - len(missed)) / n:7.1%} {n:5} {name}  {ranges(missed, lines[name])}".rstrip())
    if not all_lines:
        sys.exit("scripts/coverage.py: no counters; build with -DSPW_COVERAGE=ON and run the tests")
    print(f"{all_run / all_lines:7.1%} {all_lines:5} src: {all_lines - all_run} lines did not run")


main()
