#!/usr/bin/env python3
"""Mutation testing in one build: plants bugs into a copy of the library's crates, each behind a switch, and asks the tests.

    .ci/mutants/run.py build                     copy, rewrite, drop what does not compile, build the test binaries
    .ci/mutants/run.py trace                     which test reaches which mutant (one process per test)
    .ci/mutants/run.py run [--every K] [ID ...]  for each mutant, the tests that reach it, until one fails
    .ci/mutants/run.py report                    counts by area, and the survivors

All is kept in `target/mutants` (--dir for another place) and taken up again where it was left. `trace`, `run` and `report` need
no Rust: mutants.json, binaries.json and the binaries that it names are enough.
"""
import argparse, collections, concurrent.futures, json, os, pathlib, re, resource, shutil, signal, struct, subprocess, sys, threading, time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / ".ci/mutants"
NOBODY = 65534


def sh(command, **more):
    return subprocess.run(command, check=True, **more)


# ---- build


def copy_tree(to, but):
    """Copies what git knows or would add; a file that is the same stays, so that a build does not repeat."""
    listed = sh(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        source, target = ROOT / name, to / name
        if name in but or name.startswith(".ci/") or not source.is_file():
            continue
        if not target.is_file() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def blamed(copy, file, line):
    """The mutant whose switch is the nearest above a line: an alternative has no other switches in it."""
    above = "".join((copy / file).read_text().splitlines(keepends=True)[:line])
    # A long line may be broken inside of a switch.
    found = re.findall(r"mutant::on\(\s*(\d+)u32\b", above)
    return int(found[-1]) if found else None


def build(work, jobs):
    copy, dropped_file = work / "copy", work / "dropped.json"
    env = dict(os.environ, CARGO_TARGET_DIR=str(work / "tool"))
    sh(["cargo", "build", "--release", "--quiet", "--manifest-path", TOOL / "Cargo.toml"], env=env)
    # Lints of the library are not for rewritten code; debug information takes half of the time.
    env = dict(os.environ, CARGO_TARGET_DIR=str(work / "target"), RUSTFLAGS="--cap-lints=allow",
               CARGO_PROFILE_DEV_DEBUG="0", CARGO_INCREMENTAL="1")
    copy.mkdir(parents=True, exist_ok=True)
    # What the tool has rewritten it writes again, where it changes.
    known = copy / "mutants.json"
    rewritten = {m["file"] for m in json.loads(known.read_text())} | {"crates/numerics/src/lib.rs"} if known.exists() else set()
    copy_tree(copy, rewritten)
    # What did not compile before does not now, if the mutants are the same.
    full = work / "full"
    sh([work / "tool/release/mutants", ROOT, full], stdout=subprocess.DEVNULL)
    key = [[m["id"], m["file"], m["what"]] for m in json.loads((full / "mutants.json").read_text())]
    old = json.loads(dropped_file.read_text()) if dropped_file.exists() else {}
    dropped = set(old["ids"]) if old.get("of") == key else set()
    for turn in range(40):
        (work / "numbers").write_text("\n".join(map(str, sorted(dropped))))
        sh([work / "tool/release/mutants", ROOT, copy, work / "numbers"])
        begun = time.time()
        check = subprocess.run(["cargo", "check", "--workspace", "--lib", "--message-format=json", "--quiet", f"-j{jobs}"],
                               cwd=copy, env=env, capture_output=True, text=True)
        new, lost = set(), []
        for text in check.stdout.splitlines():
            message = json.loads(text).get("message") or {}
            if message.get("level") != "error":
                continue
            spans = [s for s in message["spans"] if s["is_primary"]] or message["spans"]
            ids = {blamed(copy, s["file_name"], s["line_start"]) for s in spans} - {None}
            new |= ids
            if not ids:
                lost.append(message["rendered"])
        print(f"check {turn}: {len(new - dropped)} do not compile ({time.time() - begun:.0f} s)", flush=True)
        if check.returncode == 0:
            dropped_file.write_text(json.dumps({"ids": sorted(dropped), "of": key}))
            break
        if not new - dropped:
            sys.exit("errors that belong to no mutant:\n" + "\n".join(lost[:5]) + check.stderr[-2000:])
        dropped |= new
    begun = time.time()
    out = sh(["cargo", "test", "--workspace", "--lib", "--test", "it", "--test", "ops", "--no-run", "--message-format=json", "--quiet", f"-j{jobs}"],
             cwd=copy, env=env, stdout=subprocess.PIPE, text=True).stdout
    found = [json.loads(line) for line in out.splitlines()]
    paths = [m["executable"] for m in found if m.get("executable") and m["profile"]["test"]]
    names = []
    for path in paths:
        name = pathlib.Path(path).name.rsplit("-", 1)[0]
        shutil.copy2(path, work / f"{name}.new")
        os.replace(work / f"{name}.new", work / name)
        names.append(name)
    (work / "binaries.json").write_text(json.dumps(names))
    shutil.copyfile(copy / "mutants.json", work / "mutants.json")
    print(f"built {names} in {time.time() - begun:.0f} s", flush=True)


# ---- running tests


def confined(work):
    """A broken library may write or remove any file that its user may: one that replaced devices is how we know. As root
    the tests run as nobody, who can only write to the scratch folder; anyone else must say that it is all right."""
    scratch = work / "scratch"
    scratch.mkdir(exist_ok=True)
    if os.geteuid() == 0:
        os.chown(scratch, NOBODY, NOBODY)
        return dict(user=NOBODY, group=NOBODY, extra_groups=[])
    if os.environ.get("MUTANTS_UNCONFINED") == "1":
        return {}
    sys.exit("run this as root, so that tests can run as nobody, or in a container with MUTANTS_UNCONFINED=1:"
             " a mutant may write or remove any file that you may")


def limited():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_tests(work, binary, tests, timeout, **env):
    """Runs tests of a binary in one process. (outcome: ok, failed or timeout; seconds; the test that failed, if it says so)."""
    clean = {k: v for k, v in os.environ.items() if k not in ("DITTOGRAD_BLESS", "MUTANT", "MUTANT_TRACE")}
    # A folder of its own, as a mutant may leave anything behind.
    scratch, user = str(work / "scratch" / str(threading.get_ident())), confined(work)
    shutil.rmtree(scratch, ignore_errors=True)
    os.mkdir(scratch)
    if user:
        os.chown(scratch, NOBODY, NOBODY)
    begun = time.time()
    child = subprocess.Popen([work / binary, "--exact", "--test-threads=1", *tests], cwd=work / "copy",
                             env=dict(clean, TMPDIR=scratch, HOME=scratch, XDG_CACHE_HOME=scratch, RUST_BACKTRACE="0", **env),
                             preexec_fn=limited, start_new_session=True, **user, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        out, _ = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return "timeout", time.time() - begun, None
    text = out.decode(errors="replace")
    failed = re.search(r"^test (\S+)(?: - should panic)? \.\.\. FAILED", text, re.M)
    started = re.findall(r"^test (\S+)(?: - should panic)? \.\.\. ", text, re.M)
    by = failed.group(1) if failed else (started[-1] if started else tests[0])
    return ("ok", time.time() - begun, None) if child.returncode == 0 else ("failed", time.time() - begun, by)


def trace(work, jobs):
    """One line per test: name, seconds, mutants reached."""
    confined(work)
    path = work / "trace.jsonl"
    done = {(t["binary"], t["test"]) for t in map(json.loads, path.read_text().splitlines())} if path.exists() else set()
    todo = []
    for binary in json.loads((work / "binaries.json").read_text()):
        out = sh([work / binary, "--list", "--format=terse"], cwd=work / "copy", capture_output=True, text=True).stdout
        todo += [(binary, line[: -len(": test")]) for line in out.splitlines() if line.endswith(": test")]
    lock, file = threading.Lock(), path.open("a")

    def one(item):
        binary, test = item
        reached = work / "scratch" / f"reached-{threading.get_ident()}"
        reached.unlink(missing_ok=True)
        outcome, seconds, _ = run_tests(work, binary, [test], 600, MUTANT_TRACE=str(reached))
        ids = sorted({i for (i,) in struct.iter_unpack("<I", reached.read_bytes())}) if reached.exists() else []
        with lock:
            print(json.dumps(dict(binary=binary, test=test, outcome=outcome, seconds=round(seconds, 4), reached=ids)), file=file, flush=True)
        if outcome != "ok":
            print(f"{binary} {test}: {outcome} without any mutant", flush=True)

    todo = [t for t in todo if t not in done]
    begun = time.time()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, todo))
    print(f"{len(todo)} tests traced in {time.time() - begun:.0f} s")


def asked(work):
    """All mutants by number, but those of functions that are left out."""
    lines = [line for line in (TOOL / "left-out.txt").read_text().splitlines() if line and not line.startswith("#")]
    left_out = re.compile("|".join(f"(?:{line})" for line in lines))
    mutants = json.loads((work / "mutants.json").read_text())
    return {m["id"]: m for m in mutants if not left_out.fullmatch(f"{m['file']} {m['function']}")}


def results(work):
    path = work / "results.jsonl"
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else []
    return {r["id"]: r for r in lines}


def run(work, jobs, every, ids, inside, again, most, minutes):
    confined(work)
    mutants = asked(work)
    reaching, seconds, breadth = collections.defaultdict(list), {}, {}
    for t in map(json.loads, (work / "trace.jsonl").read_text().splitlines()):
        if t["outcome"] == "ok":
            key = (t["binary"], t["test"])
            seconds[key], breadth[key] = t["seconds"], len(t["reached"])
            for i in t["reached"]:
                reaching[i].append(key)
    done = {i for i, r in results(work).items() if not again or r["outcome"] in ("caught", "timeout")}
    wanted = ids or [i for n, i in enumerate(sorted(mutants)) if n % every == 0]
    meant = lambda i: i in mutants and (not inside or mutants[i]["file"].startswith(tuple(inside)))
    todo = [i for i in wanted if meant(i) and (i not in done or i in ids)]
    # Tests that caught a mutant of a function are asked first about the next one of it, then those of the file.
    caught_by = collections.defaultdict(collections.Counter)
    for i, r in results(work).items():
        for key in {(binary, r["by"]) for binary, _ in seconds} & seconds.keys() if i in mutants else ():
            caught_by[mutants[i]["file"], mutants[i]["function"]][key] += 1
            caught_by[mutants[i]["file"], ""][key] += 1
    lock, file, count, begun = threading.Lock(), (work / "results.jsonl").open("a"), collections.Counter(), time.time()

    def note(i, outcome, by=None, ran=0, took=0.0):
        with lock:
            count[outcome] += 1
            print(json.dumps(dict(id=i, outcome=outcome, by=by, ran=ran, of=len(reaching[i]), seconds=round(took, 2))), file=file, flush=True)
            if sum(count.values()) % 100 == 0:
                print(f"{sum(count.values())}/{len(todo)} {dict(count)} {time.time() - begun:.0f} s", flush=True)

    def one(i):
        if minutes and time.time() - begun > 60 * minutes:
            return
        m, ran, took = mutants[i], 0, 0.0
        if not reaching[i]:
            return note(i, "unreached")
        places = [(m["file"], m["function"]), (m["file"], "")]
        with lock:
            score = {t: (-caught_by[places[0]][t], -caught_by[places[1]][t], seconds[t]) for t in reaching[i]}
        order = sorted(reaching[i], key=lambda t: (score[t][0], score[t][1], round(seconds[t], 2), breadth[t]))
        # The long tests are the last ones, and seldom the only ones that would notice.
        size, left = 1, most
        while order and left > 0:
            # One process runs tests of one binary.
            group, rest = [order[0]], []
            for t in order[1:]:
                together = len(group) < size and t[0] == order[0][0] and sum(seconds[g] for g in group) < 5
                (group if together else rest).append(t)
            usual = sum(seconds[t] for t in group)
            outcome, s, by = run_tests(work, group[0][0], [t[1] for t in group], 5 + 10 * usual, MUTANT=str(i))
            left -= usual
            ran, took, order, size = ran + len(group), took + s, rest, size * 3
            if outcome != "ok":
                key = (group[0][0], by) if (group[0][0], by) in seconds else group[0]
                with lock:
                    for p in places:
                        caught_by[p][key] += 1
                return note(i, "caught" if outcome == "failed" else "timeout", key[1], ran, took)
        note(i, "survived", None, ran, took)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, todo))
    print(f"{dict(count)} in {time.time() - begun:.0f} s")


def report(work):
    mutants = asked(work)
    by_area, known = collections.defaultdict(collections.Counter), results(work)
    for m in mutants.values():
        by_area[m["area"]]["viable"] += 1
        if m["id"] in known:
            by_area[m["area"]][known[m["id"]]["outcome"]] += 1
            by_area[m["area"]]["run"] += 1
    made = len(json.loads((work / "mutants.json").read_text()))
    print(f"{made} mutants compile, {made - len(mutants)} of them are left out")
    columns = ["viable", "run", "caught", "timeout", "survived", "unreached"]
    total = collections.Counter()
    print(f"{'area':10}" + "".join(f"{c:>10}" for c in columns) + f"{'share':>10}")
    for area, row in list(by_area.items()) + [("all", total)]:
        if row is not total:
            total.update(row)
        share = 100 * (row["caught"] + row["timeout"]) / max(row["run"], 1)
        print(f"{area:10}" + "".join(f"{row[c]:>10}" for c in columns) + f"{share:9.1f}%")
    for i in sorted(known):
        if i in mutants and known[i]["outcome"] in ("survived", "unreached"):
            m = mutants[i]
            print(f"{i} {m['file']}:{m['line']} {m['function']}: {m['what']} [{known[i]['outcome']}, {known[i]['ran']} of {known[i].get('of', 0)} tests]")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["build", "trace", "run", "report", "all"])
    parser.add_argument("ids", nargs="*", type=int, help="mutants to run; all if none is given")
    parser.add_argument("--dir", type=pathlib.Path, default=ROOT / "target/mutants")
    parser.add_argument("-j", "--jobs", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="only every K-th mutant")
    parser.add_argument("--inside", action="append", default=[], help="only files whose path begins so; may be given several times")
    parser.add_argument("--again", action="store_true", help="run also mutants that survived before")
    parser.add_argument("--most", type=float, default=60, help="seconds of tests, at their usual speed, after which a mutant has survived")
    parser.add_argument("--minutes", type=float, help="begin no mutant after so long")
    a = parser.parse_intermixed_args()
    work = a.dir.resolve()
    work.mkdir(parents=True, exist_ok=True)
    if a.command in ("build", "all"):
        build(work, a.jobs)
    if a.command in ("trace", "all"):
        trace(work, a.jobs)
    if a.command in ("run", "all"):
        run(work, a.jobs, a.every, a.ids, a.inside, a.again, a.most, a.minutes)
    if a.command in ("report", "all"):
        report(work)


main()
