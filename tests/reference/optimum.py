#!/usr/bin/env python3
"""Solves the small instances of `triad-lab study policy --json` by CP-SAT, a solver that is not ours, and compares optima.

    pip install ortools
    triad-lab study policy --json > policy.json
    python tests/reference/optimum.py policy.json
"""

import argparse
import json
import sys

from ortools.sat.python import cp_model

# Times are whole numbers there: of so many parts of a second.
PARTS = 1e9
# Relative difference of optima that rounding explains.
TOLERANCE = 1e-6


def solve(tasks, seconds):
    """The shortest schedule of tasks, in seconds; None where it is not found and proven in `seconds`."""
    model = cp_model.CpModel()
    lengths = [round(task["seconds"] * PARTS) for task in tasks]
    horizon = sum(lengths)
    ends, by_processor = [], {}
    last = model.new_int_var(0, horizon, "last")
    for task, length in zip(tasks, lengths):
        start = model.new_int_var(0, horizon, "")
        end = model.new_int_var(0, horizon, "")
        by_processor.setdefault(task["processor"], []).append(model.new_interval_var(start, length, end, ""))
        for before in task["predecessors"]:
            model.add(start >= ends[before])
        model.add(last >= end)
        ends.append(end)
    for intervals in by_processor.values():
        model.add_no_overlap(intervals)
    model.minimize(last)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 2
    return solver.objective_value / PARTS if solver.solve(model) == cp_model.OPTIMAL else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="what `triad-lab study policy --json` printed")
    parser.add_argument("--seconds", type=float, default=60, help="time for an instance, at most")
    arguments = parser.parse_args()
    with open(arguments.file, encoding="utf-8") as file:
        small = json.load(file)["small"]
    same, unsolved, wrong = 0, 0, 0
    for instance in small:
        if not instance["is_proven"]:
            continue
        name = "{model}, {blocks} blocks, {chunks} chunks, NPU x{ratio}".format(**instance)
        found, ours = solve(instance["tasks"], arguments.seconds), instance["optimum_seconds"]
        if found is None:
            unsolved += 1
            print(f"{name}: not solved by CP-SAT within {arguments.seconds:g} s")
        elif abs(found / ours - 1) > TOLERANCE:
            wrong += 1
            print(f"{name}: {found:.9f} s by CP-SAT, {ours:.9f} s by triad")
        else:
            same += 1
    print(f"{same} optima are the same, {wrong} are not, {unsolved} were not solved by CP-SAT")
    return 1 if wrong or not same else 0


if __name__ == "__main__":
    sys.exit(main())
