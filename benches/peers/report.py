"""Makes tables and verdicts from measurements. Pure: lists and dictionaries in, rows out.

A run is one measurement: model, threads, test, tokens, sequences (each of so many tokens), positions (all those and the
ones before them), engine, bits, round, tokens_per_second (of all sequences together), peak_bytes, command, and Triad's
own `limits` and `share_of_limit`.
"""

from statistics import median

PREFILL = {"smollm2": 1.4, "1.8b": 1.15}
DECODE = {"smollm2": 1.3, "1.8b": 1.15}
PREFILL_LLAMA = 3.0
BATCHED_LLAMA = 1.3
SIXTEEN_OVER_ONE = 8.0
SCALING = 1.9
MATMUL = {"smollm2": 0.85, "1.8b": 0.92}
FIRST_TOKEN_SECONDS = 0.15
# The fields that identify a test.
TEST = ("test", "tokens", "sequences")


def select(runs, **wanted):
    return [run for run in runs if all(run[key] == value for key, value in wanted.items())]


def distinct(runs, key):
    return list(dict.fromkeys(run[key] for run in runs))


def rates(runs):
    return [run["tokens_per_second"] for run in runs]


def ratio(ours, theirs, key="tokens_per_second"):
    """Returns the median over rounds of ours / theirs: only runs of the same round are compared."""
    theirs = {run["round"]: run[key] for run in theirs}
    pairs = [run[key] / theirs[run["round"]] for run in ours if run["round"] in theirs]
    return median(pairs) if pairs else None


def partner(runs, engine_runs):
    """Returns the runs of Triad with which an engine's are compared: in decode and batched decode, those with as many bits."""
    ours = [run for run in runs if run["engine"].startswith("Triad")]
    if engine_runs[0]["test"] != "prefill":
        ours = select(ours, bits=engine_runs[0]["bits"])
    return ours


def comparisons(runs):
    """One entry for each setting and engine: minimum and median, the ratio of Triad to it, and in batched decode the
    ratio to the engine's own rate with one sequence."""
    for where in settings(runs):
        setting = select(runs, **where)
        for engine in distinct(setting, "engine"):
            own = select(setting, engine=engine)
            one = select(runs, **where | {"sequences": 1}, engine=engine) if where["sequences"] > 1 else []
            yield where | {
                "engine": engine,
                "bits": own[0]["bits"],
                "rounds": len(own),
                "min": min(rates(own)),
                "median": median(rates(own)),
                "triad_ratio": None if engine.startswith("Triad") else ratio(partner(setting, own), own),
                "over_one": ratio(own, one),
                "peak_bytes": max(run["peak_bytes"] for run in own),
            }


def settings(runs):
    """Returns every setting once: the fields that select its runs or rows."""
    keys = ("model", "threads", *TEST)
    return [dict(zip(keys, values)) for values in dict.fromkeys(tuple(run[key] for key in keys) for run in runs)]


def test_name(row):
    together = f"{row['sequences']} × " if row["test"] == "batched" else ""
    return f"{row['test']} {together}{row['tokens']}"


def tables(rows, missing):
    """Yields Markdown: for each model and number of threads, engines as rows and tests as columns; batched decode separately."""
    for model, threads in dict.fromkeys((row["model"], row["threads"]) for row in rows):
        here = select(rows, model=model, threads=threads)
        single = [row for row in here if row["test"] != "batched"]
        if single:
            yield f"\n{model}, {threads_of(threads)}: tokens/s, median (minimum), Triad's ratio to it\n"
            yield from table(single, missing)
        batched = select(here, test="batched")
        if batched:
            what = "tokens/s of all sequences together, median (minimum), Triad's ratio to it, the rate over that of one"
            yield f"\n{model}, {threads_of(threads)}, batched decode: {what}\n"
            yield from table(batched, missing)


def table(rows, missing):
    tests = [{key: where[key] for key in TEST} for where in settings(rows)]
    yield table_row(["engine", *map(test_name, tests), "peak MiB"])
    yield table_row(["---"] * (len(tests) + 2))
    for engine in sorted(distinct(rows, "engine"), key=lambda name: not name.startswith("Triad")):
        own = select(rows, engine=engine)
        found = [select(own, **test) for test in tests]
        cells = [cell(entry[0]) if entry else "" for entry in found]
        yield table_row([engine, *cells, str(max(row["peak_bytes"] for row in own) >> 20)])
    for engine, reason in missing.items():
        yield table_row([engine, f"missing: {reason}"])


def cell(row):
    share = f" {row['triad_ratio']:.2f} ×" if row["triad_ratio"] else ""
    growth = f", {row['over_one']:.2f} of one" if row["over_one"] else ""
    return f"{number(row['median'])} ({number(row['min'])}){share}{growth}"


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def table_row(cells):
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def goals(runs, rows, matmuls, first_token, packages):
    """Yields every goal that the measurements decide: its name, place, required and measured value, and whether it is met."""

    def goal(what, where, wanted, measured, at_least=True):
        met = measured >= wanted if at_least else measured <= wanted
        return {"goal": what, "where": where, "wanted": wanted, "at_least": at_least, "measured": measured, "met": met}

    for key in settings(rows):
        model, threads, test, tokens, sequences = key.values()
        setting = select(rows, **key)
        where = f"{model}, {test_name(key)}, {threads_of(threads)}"
        peers = [row for row in setting if row["triad_ratio"] is not None]
        of_llama = [row for row in peers if row["engine"].startswith("llama.cpp")]
        ours = [run for run in select(runs, **key) if run["engine"].startswith("Triad")]
        if test == "prefill":
            if peers:
                best = min(peers, key=lambda row: row["triad_ratio"])
                yield goal(f"ratio to the best peer ({best['engine']})", where, PREFILL[model], best["triad_ratio"])
            if of_llama:
                best = min(of_llama, key=lambda row: row["triad_ratio"])
                yield goal(f"ratio to the best llama.cpp ({best['engine']})", where, PREFILL_LLAMA, best["triad_ratio"])
            one = select(runs, **key | {"threads": 1}, engine="Triad int8")
            if threads == 2 and one and ours:
                yield goal("2 threads over 1 thread", where, SCALING, ratio(ours, one))
            if model == "1.8b" and ours and tokens in (256, 1024, 2048):
                yield from (goal(*what) for what in share_of_limit(where, tokens, ours, packages[model]))
        elif test == "batched":
            if sequences > 1:
                for row in of_llama:
                    yield goal(f"ratio to {row['engine']}", where, BATCHED_LLAMA, row["triad_ratio"])
            if model == "1.8b" and sequences == 16:
                for row in select(setting, engine="Triad int8"):
                    if row["over_one"]:
                        yield goal("Triad int8, 16 sequences over one", where, SIXTEEN_OVER_ONE, row["over_one"])
        else:
            for row in of_llama:
                yield goal(f"ratio to {row['engine']}", where, DECODE[model], row["triad_ratio"])
            if model == "1.8b":
                for engine in distinct(ours, "engine"):
                    share = median(run["share_of_limit"] for run in select(ours, engine=engine))
                    yield goal(f"{engine}, of the memory's bandwidth", where, 0.85, share)
    single = [run for run in runs if run["test"] != "batched"]
    for model, threads, engine in dict.fromkeys((r["model"], r["threads"], r["engine"]) for r in single):
        if engine.startswith("Triad"):
            own = select(single, model=model, threads=threads, engine=engine)
            share, test = max((share_of_memory(run, packages[model]), f"{run['test']} {run['tokens']}") for run in own)
            where = f"{model}, {threads_of(threads)}, at most in {test}"
            yield goal(f"{engine}, peak memory / (1.05 × (weights + KV) + 64 MB)", where, 1.0, share, False)
    for entry in matmuls:
        if entry["threads"] == 1:
            where = f"{entry['model']}, {entry['shape']}, 1 thread"
            yield goal("INT8 matmul, of the measured peak", where, MATMUL[entry["model"]], entry["triad_share"])
    if first_token:
        yield goal("start to first token of 16, s", "smollm2", FIRST_TOKEN_SECONDS, median(first_token), False)


def threads_of(count):
    return f"{count} thread{'s' * (count > 1)}"


def share_of_memory(run, package):
    needed = package["weight_bytes"][run["engine"]] + package["kv_bytes_per_token"] * run["positions"]
    return run["peak_bytes"] / (1.05 * needed + 64e6)


def share_of_limit(where, tokens, ours, package):
    if tokens == 256:
        shares = [
            run["tokens_per_second"] * package["linear_operations_per_token"] / run["limits"]["int8_operations_per_second"]
            for run in ours
        ]
        yield "of the INT8 limit of the linear layers", where, 0.88, median(shares)
    else:
        yield "of the limit, attention at the bf16 peak", where, 0.85, median(run["share_of_limit"] for run in ours)


def goal_table(entries):
    if not entries:
        return
    yield "\nGoals\n"
    yield table_row(["goal", "where", "wanted", "measured", "verdict"])
    yield table_row(["---"] * 5)
    for entry in entries:
        sign = "≥" if entry["at_least"] else "≤"
        verdict = "met" if entry["met"] else "missed"
        yield table_row([entry["goal"], entry["where"], f"{sign} {entry['wanted']}", f"{entry['measured']:.3f}", verdict])


def matmul_table(entries):
    if not entries:
        return
    yield "\nINT8 matmul of 256 rows, share of the `vpdpbusd` peak measured next to it, medians\n"
    yield table_row(["model", "depth × columns", "threads", "Triad", "ONNX Runtime"])
    yield table_row(["---"] * 5)
    for entry in entries:
        peer = f"{entry['peer_share']:.0%} ({entry['peer_operator']})" if entry["peer_share"] else "missing"
        yield table_row([entry["model"], entry["shape"], str(entry["threads"]), f"{entry['triad_share']:.0%}", peer])
