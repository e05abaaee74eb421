"""Compares the verdicts of containerd's tests under the stock shim and under ours.

    python3 verdicts.py KNOWN LOGS SUITE...

LOGS has SUITE-runc.log and SUITE-agentsbx.log, the output of `-test.v`. KNOWN has a line for each test that may fail under
ours alone: suite, test, reason. Ends with 1 where a difference has no reason, or a reason no difference.
"""

import os
import re
import sys

VERDICT = re.compile(r"--- (PASS|FAIL|SKIP): (\S+) \(\d")
BEGUN = re.compile(r"=== RUN +(\S+)")
LEFT = re.compile(r"left (process|cgroup): ")


def read(path):
    """The verdict of each test of a log, and how many processes and cgroups are left at its end. A test that began and has
    no verdict was cut off: that is no better than to fail."""
    found, left = {}, {"process": 0, "cgroup": 0}
    with open(path, errors="replace") as log:
        for line in log:
            if begun := BEGUN.search(line):
                found.setdefault(begun.group(1), "cut off")
            elif verdict := VERDICT.search(line):
                found[verdict.group(2)] = verdict.group(1).lower()
            elif remnant := LEFT.match(line):
                left[remnant.group(1)] += 1
    if not found:
        sys.exit(f"{path}: no test was run")
    return found, f"{left['process']} processes and {left['cgroup']} cgroups"


def reasons(path):
    """{(suite, test): reason}"""
    found = {}
    with open(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip() or line.startswith("#"):
                continue
            parts = line.split(None, 2)
            if len(parts) != 3:
                sys.exit(f"{path}:{number}: a line is a suite, a test and a reason")
            found[parts[0], parts[1]] = parts[2].strip()
    return found


known = reasons(sys.argv[1])
rows, counts, wrong = [], [], []
for suite in sys.argv[3:]:
    (stock, stock_left), (ours, ours_left) = (
        read(os.path.join(sys.argv[2], f"{suite}-{engine}.log")) for engine in ("runc", "agentsbx")
    )
    count = {}
    differ = set()
    for test in {**stock, **ours}:
        # A part of a test that fails early does not begin at all.
        pair = stock.get(test, "not run"), ours.get(test, "not run")
        key = f"both {pair[0]}" if pair[0] == pair[1] else "differ"
        count[key] = count.get(key, 0) + 1
        if pair[0] != pair[1]:
            differ.add(test)
    for test in sorted(differ):
        # A test whose part fails does so too.
        if any(other.startswith(test + "/") for other in differ):
            continue
        pair = stock.get(test, "not run"), ours.get(test, "not run")
        reason = known.get((suite, test))
        if pair[0] == "pass" and reason is None:
            wrong.append(f"{suite} {test}: passes under the stock shim only, and the list has no reason")
        rows.append((suite, test, *pair, reason or "-"))
    for test in sorted(test for listed, test in known if listed == suite):
        if test in ours and stock.get(test) == ours[test]:
            wrong.append(f"{suite} {test}: the list has a reason, but it is no different")
    total = ", ".join(f"{number} {key}" for key, number in sorted(count.items()))
    counts.append(f"{suite}: {sum(count.values())} tests and parts of tests: {total}")
    counts.append(f"  left by the tests, and ended with them: stock {stock_left}, ours {ours_left}")

if rows:
    rows.insert(0, ("suite", "test", "stock", "ours", "why"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print()
print("\n".join(counts + wrong))
sys.exit(1 if wrong else 0)
