#!/usr/bin/env python3
"""Would a test notice? Changes one operator, constant or comparison of jem.h at a time, and runs
the tests. `make mutate` does it with 250 changes; build/mutate.csv has a row for each.

A mutant is known by its text, never by the number of its line: --seed draws lines by their text,
and tests/mutants.txt lists by text those that no test can tell from the original, each with the
reason. The tests are run once with gcov, so that a mutant meets only those that reach its line;
those of its room come first. What compiles to the same code as the original does not count, nor
what does not compile. A hang is a failure, as is a program that takes too much memory. What no
test of a room notices is tried again under the sanitizers.

Mutated is what the preprocessor leaves on this machine, but no comment, text, or declaration of
the API: one change of a line, so that lines count alike.
"""
import argparse
import concurrent.futures
import csv
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build", "mutate")
TABLE = os.path.join(ROOT, "build", "mutate.csv")
CC = os.environ.get("CC", "gcc")
FLAGS = ["-std=c99", "-O1", "-w", "-I.", "-idirafter", os.path.join(ROOT, "build")]
FIELDS = ["room", "result", "test", "seconds", "change", "line", "mutant", "nth", "why"]

# Whose failure is likeliest, the quickest first. What only looks at texts or files is in no list;
# what takes as long as all others together, or tests a tool, is left out.
ROOMS = {
    "platform": "uses misuse calls finite kernels", "rng": "rng kernels",
    "memory": "uses calls ops", "tape": "uses calls ops", "plan": "uses golden ops kernels score",
    "ops": "uses golden ops kernels", "nets": "golden io misuse ops",
    "losses": "uses ways samplers golden score", "samplers": "samplers ways uses score",
    "optim": "samplers golden misuse ways", "train": "samplers ways misuse ranks score",
    "eval": "uses pictures samplers misuse", "io": "io misuse",
    "checkpoint": "io misuse", "engine": "uses golden kernels ops",
}
LEFT_OUT = ["house", "data", "faults", "divergence", "amx", "exact_samplers"]
SANITIZED = 4                          # number of a survivor's tests that also run under the sanitizers
SANITIZE = ["-g0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def digest(*what):
    return hashlib.sha256("|".join(map(str, what)).encode()).hexdigest()


# ---- what to change ------------------------------------------------------------------------------

def masked(text):
    """The text with comments and literals blanked, as long as before."""
    blank = lambda m: re.sub(r"[^\n]", " ", m.group())
    return re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'", blank, text,
                  flags=re.S)


def live_lines(path):
    """Numbers of the lines that the preprocessor leaves."""
    out = subprocess.run([CC, "-std=c99", "-O1", "-E", "-dD", "-x", "c", "-DJEM_IMPLEMENTATION",
                          path], capture_output=True, text=True, check=True).stdout
    live, here, line = set(), False, 0
    for row in out.split("\n"):
        mark = re.match(r'# (\d+) "([^"]*)"', row)
        if mark:
            here = os.path.basename(mark.group(2)) == os.path.basename(path)
            line = int(mark.group(1))
            continue
        if here and row.strip():
            live.add(line)
        line += 1
    return live


SWAPS = [  # kind, what, instead; surrounded by spaces, as all binary operators in jem.h are
    ("arithmetic", " + ", " - "), ("arithmetic", " - ", " + "), ("arithmetic", " * ", " / "),
    ("arithmetic", " / ", " * "), ("arithmetic", " % ", " / "),
    ("arithmetic", " += ", " -= "), ("arithmetic", " -= ", " += "), ("arithmetic", " *= ", " /= "),
    ("bound", " < ", " <= "), ("bound", " <= ", " < "), ("bound", " > ", " >= "),
    ("bound", " >= ", " > "),
    ("comparison", " < ", " >= "), ("comparison", " > ", " <= "),
    ("comparison", " == ", " != "), ("comparison", " != ", " == "),
    ("logic", " && ", " || "), ("logic", " || ", " && "),
    ("bits", " & ", " | "), ("bits", " | ", " & "), ("bits", " << ", " >> "),
    ("bits", " >> ", " << "), ("bits", " ^ ", " | "), ("bits", " |= ", " &= "),
]


def changes(line, code):
    """All single changes of a line: kind, where, how long, what instead. code: the line, masked."""
    found = []
    for kind, what, instead in SWAPS:
        found += [(kind, m.start(), len(what), instead) for m in re.finditer(re.escape(what), code)]
    for m in re.finditer(r"(?<![\w.#])(\d+)(?![\w.])", code):
        value = int(m.group())
        others = [value + 1] + ([value - 1] if value else []) + ([-1] if value == 1 else [])
        if not re.match(r"\s*#|.*\[\s*$", code[:m.start()]) or value < 2:
            found += [("constant", m.start(), len(m.group()), str(v)) for v in others]
    for m in re.finditer(r"(?<![\w.])(\d+\.\d*|\d*\.\d+)(?:e-?\d+)?(f?)(?!\w)", code):
        found.append(("constant", m.start(), len(m.group()), "(2 * %s)" % m.group()))
    for m in re.finditer(r"!(?=[\w(*])", code):
        found.append(("not", m.start(), 1, ""))
    for m in re.finditer(r"(?<=[(,=] )-(?=[\w(])|(?<=[(?])-(?=[\w(])", code):
        found.append(("sign", m.start(), 1, ""))
    for m in re.finditer(r"\b(JEM__FMA|jem__fmaf?|fmaf?)\((?=.*[,;])", code):
        found.append(("sign of a product", m.end(), 0, "-"))
    for m in re.finditer(r"\b(break|continue)\b", code):
        found.append(("jump", m.start(), len(m.group()), ""))
    guarded = re.match(r"\s*(?:\}\s*)?(?:else )?(?:if|while) ?\(.*\) (return\b)([^;]*);\s*$", code)
    if guarded:
        found.append(("jump", guarded.start(1), 6, "(void)" if guarded.group(2).strip() else ""))
    for m in re.finditer(r"(\+\+|--)", code):
        if not re.search(r"\b(for|while)\b", code):            # most would only hang
            found.append(("step", m.start(), 2, "--" if m.group() == "++" else "++"))
    return found


def candidates(text, live):
    """One list of changes for each line that is implementation: room, line, nth, changes."""
    code = masked(text).split("\n")
    lines, room, rows, seen, on = text.split("\n"), None, [], {}, False
    for i, line in enumerate(lines):
        on = on or "STOP HERE" in line
        mark = re.match(r"/\* ==== >>(\w+)", line)
        room = mark.group(1) if mark else room
        if not on or room == "changelog" or i + 1 not in live:
            continue
        if re.match(r"\s*#\s*(?!define)|\s*(typedef )?(struct|union|enum)\b[^=(;]*\{", line):
            continue
        nth = seen[line.strip()] = seen.get(line.strip(), -1) + 1
        found = changes(line, code[i])
        if found:
            rows.append({"room": room, "at": i, "line": line, "nth": nth, "changes": found})
    return rows


def draw(rows, number, seed, room):
    """The mutants whose texts have the lowest hashes: one change of a line."""
    key = lambda *what: digest(seed, *what)
    picked = []
    for row in rows:
        if room and row["room"] != room:
            continue
        where = (row["line"].strip(), row["nth"])
        kind, at, length, instead = min(row["changes"], key=lambda c: key(*where, *c[1:]))
        picked.append(dict(row, change=kind, order=key(*where),
                           mutant=row["line"][:at] + instead + row["line"][at + length:]))
    return sorted(picked, key=lambda m: m["order"])[:number]


def listed(path):
    """tests/mutants.txt: (line, mutant) -> why no test can tell them apart."""
    known, line = {}, None
    for row in open(path) if os.path.exists(path) else []:
        if row.startswith("- "):
            line = row[2:].strip()
        elif row.startswith("+ "):
            mutant, known[(line, row[2:].strip())] = row[2:].strip(), ""
        elif row.startswith("  ") and line:
            known[(line, mutant)] = (known[(line, mutant)] + " " + row.strip()).strip()
    return known


# ---- running -------------------------------------------------------------------------------------

class Bench:
    """Compiles and runs the tests in copies of what they need."""

    def __init__(self):
        self.inside, self.tests = {}, {}
        self.well, self.lock = {}, threading.Lock()
        for path in sorted(glob.glob(os.path.join(ROOT, "tests", "*", "test_*.c"))):
            name = os.path.basename(path)[5:-2]
            if name not in LEFT_OUT:
                self.tests[name] = os.path.relpath(path, ROOT)
                self.inside[name] = bool(re.search(r"jem__|JEM__|->node", open(path).read()))

    def command(self, words, cwd, seconds):
        """Status and output."""
        env = dict(os.environ, OMP_NUM_THREADS="1", TMPDIR=cwd)
        done = subprocess.run(["timeout", "-k", "2", "%d" % seconds] + words, cwd=cwd, env=env,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        return done.returncode, done.stdout.decode("utf-8", "replace")

    def copy(self, name):
        """A folder with all that tests read; tests write there, too."""
        place = os.path.join(BUILD, name)
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
        for part in ("tests", "examples", "tools"):
            shutil.copytree(os.path.join(ROOT, part), os.path.join(place, part),
                            ignore=shutil.ignore_patterns("gallery", "fuzz", "__pycache__"))
        for part in ("jem.h", "README.md", "Makefile"):
            shutil.copy(os.path.join(ROOT, part), place)
        os.makedirs(os.path.join(place, "build"))
        return place

    def library(self, place, extra=()):
        return self.command([CC] + FLAGS + list(extra) + ["-x", "c", "-DJEM_IMPLEMENTATION", "-c",
                                                          "jem.h", "-o", "build/jem.o"], place, 300)

    def sanitized_is_well(self, name):
        """Does the original pass this test under the sanitizers? Tried once."""
        with self.lock:
            if name not in self.well:
                place = os.path.join(BUILD, "survey")
                if not self.well:
                    self.library(place, SANITIZE)
                self.well[name] = (not self.program(place, name, SANITIZE)[0] and
                                   not self.run(place, name, 300, ""))
            return self.well[name]

    def support(self, place):
        """Compiles what tests share, into an archive."""
        for part in sorted(glob.glob(ROOT + "/tools/support/*.c") +
                           glob.glob(ROOT + "/tools/cli/*.c")):
            part = os.path.relpath(part, ROOT)
            if part == "tools/cli/jem.c":
                continue
            ready = "../support_%s.o" % part[:-2].replace("/", "_")
            status, said = self.command([CC] + FLAGS + ["-c", part, "-o", ready], place, 300)
            if status:
                sys.exit("%s: %s" % (part, said))
        self.command(["sh", "-c", "ar rcs ../support.a ../support_tools_*.o"], place, 300)

    def objects(self, place, names):
        """What does not look inside is compiled once, and again when a text has changed."""
        texts = sorted(glob.glob(ROOT + "/tests/*/*.[ch]") + glob.glob(ROOT + "/examples/*.[ch]") +
                       glob.glob(ROOT + "/tools/*/*.[ch]"))
        api = open(ROOT + "/jem.h").read().split("STOP HERE")[0]
        mark = digest(api, *[open(t).read() for t in texts])
        if os.path.exists(BUILD + "/mark") and open(BUILD + "/mark").read() == mark:
            return
        self.support(place)
        for name in names:
            if not self.inside[name]:
                status, said = self.command([CC] + FLAGS + [
                    "-DJEM_DECLARATIONS", "-c", self.tests[name], "-o", "../%s.o" % name],
                    place, 300)
                if status:
                    sys.exit("%s: %s" % (self.tests[name], said))
        open(BUILD + "/mark", "w").write(mark)

    def program(self, place, name, extra=()):
        words = [self.tests[name], "../support.a"] if self.inside[name] else [
            "../%s.o" % name, "../support.a", "build/jem.o"]
        return self.command([CC] + FLAGS + list(extra) + words +
                            ["-o", "build/test_" + name, "-lm"], place, 300)

    def run(self, place, name, seconds, limit="ulimit -v 6000000;"):
        """None if all passed, or how it failed."""
        status, said = self.command(["sh", "-c", limit + "exec build/test_" + name], place, seconds)
        last = said.rstrip("\n").rsplit("\n", 1)[-1]
        if status == 0 and re.fullmatch(r"[1-9]\d* passed, 0 failed", last):
            return None
        return "hangs" if status in (124, 137) else "fails"

    def covered(self, place):
        """What gcov says of the run before: the numbers of the lines of jem.h, and of those run."""
        there, run = set(), set()
        notes = glob.glob(os.path.join(place, "build", "*.gcda"))
        for note in notes:
            out = subprocess.run(["gcov", "--json-format", "--stdout", note], cwd=place,
                                 capture_output=True, text=True).stdout
            for row in out.splitlines():
                for f in json.loads(row)["files"]:
                    if os.path.basename(f["file"]) == "jem.h":
                        for line in f["lines"]:
                            there.add(line["line_number"])
                            if line["count"]:
                                run.add(line["line_number"])
            os.remove(note)
        return there, run


def survey(bench, names, until):
    """For each test its seconds and the lines it runs. Kept until its text or jem.h change."""
    path, kept = os.path.join(BUILD, "survey.json"), {}
    if os.path.exists(path):
        kept = json.load(open(path))
    header = open(ROOT + "/jem.h").read()
    mark = {n: digest(header, open(os.path.join(ROOT, bench.tests[n])).read()) for n in names}
    missing = [n for n in names if kept.get(n, {}).get("mark") != mark[n]]
    if missing:
        place, extra = os.path.join(BUILD, "survey"), ["--coverage"]
        status, said = bench.library(place, extra)
        if status:
            sys.exit("jem.h does not compile: " + said)
    for k, name in enumerate(missing):
        if time.time() > until:
            sys.exit("time is up")
        status, said = bench.program(place, name, extra)
        for old in glob.glob(os.path.join(place, "build", "*.gcda")):
            os.remove(old)
        begin = time.time()
        wrong = "does not compile: " + said if status else bench.run(place, name, 600)
        took = time.time() - begin
        there, run = bench.covered(place)
        print("survey %d/%d: test_%s: %.1f s, %d of %d lines%s" % (
            k + 1, len(missing), name, took, len(run), len(there), ": " + wrong if wrong else ""),
            flush=True)
        kept[name] = {"mark": mark[name], "seconds": took, "run": sorted(run),
                      "there": sorted(there), "wrong": wrong}
        json.dump(kept, open(path, "w"))
    return {n: kept[n] for n in names if not kept[n]["wrong"]}


def order(mutant, known, bench):
    """The tests that reach the line: its room's first, then the quickest. If gcov saw none (it does
    not see a line of a table, nor what a fork did), those of the room."""
    first = [n for n in ROOMS.get(mutant["room"], "").split() if n in known]
    line = mutant["at"] + 1
    if not any(line in known[n]["run"] for n in known):
        return first
    cost = lambda n: known[n]["seconds"] + (4 if bench.inside[n] else .3)
    reach = sorted((n for n in known if line in known[n]["run"]), key=cost)
    return [n for n in first if n in reach] + [n for n in reach if n not in first]


def tried(bench, place, mutant, known, original, quick):
    """result, test"""
    lines = open(os.path.join(ROOT, "jem.h")).read().split("\n")
    lines[mutant["at"]] = mutant["mutant"]
    with open(os.path.join(place, "jem.h"), "w") as f:
        f.write("\n".join(lines))
    tests, compiled, begin = order(mutant, known, bench), False, time.time()
    for name in tests + [None]:
        if not compiled and not (name and bench.inside[name]):
            if bench.library(place)[0]:
                return "does not compile", ""
            if open(os.path.join(place, "build", "jem.o"), "rb").read() == original:
                return "same code", ""
            compiled = True
        if name is None or (quick and time.time() > begin + 45):
            break
        if bench.program(place, name)[0]:
            return "does not compile", name
        wrong = bench.run(place, name, 10 + 2 * known[name]["seconds"])
        if wrong:
            return "caught" if wrong == "fails" else "caught: hangs", name
    if quick or bench.library(place, SANITIZE)[0]:
        return "survived", ""
    for name in tests[:SANITIZED]:
        if (not bench.program(place, name, SANITIZE)[0] and
                bench.run(place, name, 20 + 20 * known[name]["seconds"], "") and
                bench.sanitized_is_well(name)):
            return "caught: sanitized", name
    return "survived", ""


# ---- the whole -----------------------------------------------------------------------------------

def report(rows):
    count = lambda what: sum(r["result"].startswith(what) for r in rows)
    caught, survived = count("caught"), count("survived")
    equivalent = count("equivalent")
    tests = {}
    for r in rows:
        if r["result"].startswith("caught"):
            tests[r["test"]] = tests.get(r["test"], 0) + 1
    for room in ROOMS:
        mine = [r for r in rows if r["room"] == room]
        good = sum(r["result"].startswith("caught") for r in mine)
        bad = sum(r["result"] == "survived" for r in mine)
        if good + bad:
            print("  >>%-10s %3d of %3d caught" % (room, good, good + bad))
    most = sorted(tests, key=lambda t: -tests[t])
    print("by: " + ", ".join("%s %d" % (t, tests[t]) for t in most))
    for r in rows:
        if r["result"] == "survived":
            print("survived in >>%s:\n- %s\n+ %s" % (r["room"], r["line"], r["mutant"]))
    print("%d tried; not counted: %d do not compile, %d are the same code" %
          (len(rows), count("does not"), count("same")))
    print("%d caught (%d by hanging, %d by sanitizers), %d equivalent, %d survived: %.1f%% caught" %
          (caught, count("caught: hangs"), count("caught: sanitized"), equivalent,
           survived,
           100 * caught / max(1, caught + survived)))
    print("                       %.1f%% with those listed as equivalent counted as survivors" %
          (100 * caught / max(1, caught + survived + equivalent)))


def save(rows):
    with open(TABLE + ".part", "w", newline="") as f:
        out = csv.DictWriter(f, FIELDS, extrasaction="ignore")
        out.writeheader()
        out.writerows(rows)
    os.replace(TABLE + ".part", TABLE)


def smoke():
    """Three mutants whose fate is known, at -O0: does this program tell them apart?"""
    FLAGS[FLAGS.index("-O1")] = "-O0"
    bench, failed = Bench(), 0
    place = bench.copy("smoke")
    lines = open(ROOT + "/jem.h").read().split("\n")
    at = next(i for i, line in enumerate(lines) if "/ 16777216.0f" in line)
    bench.support(place)
    bench.library(place)
    original = open(place + "/build/jem.o", "rb").read()
    known = {"rng": {"seconds": 120, "run": [at + 1], "there": [at + 1]}}
    for instead, want in (("33554432.0f", "caught"), ("16777216.00f", "same code"),
                          ("16777216.0f +", "does not compile")):
        mutant = {"room": "rng", "at": at, "mutant": lines[at].replace("16777216.0f", instead)}
        got = tried(bench, place, mutant, known, original, True)[0]
        print("%s: %s" % (instead, got))
        failed += got != want
    print("%d passed, %d failed" % (3 - failed, failed))
    return failed > 0


def main():
    ask = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    ask.add_argument("--number", type=int, default=250, help="mutants to try: 250")
    ask.add_argument("--skip", type=int, default=0, help="number of mutants to skip: 0")
    ask.add_argument("--seed", type=int, default=1, help="another seed, other mutants: 1")
    ask.add_argument("--room", help="only of this room: " + " ".join(ROOMS))
    ask.add_argument("--jobs", type=int, default=1, help="at the same time: 1")
    ask.add_argument("--most", type=float, default=100, help="no test that takes longer: 100 s")
    ask.add_argument("--quick", action="store_true", help="three quarters of a minute, "
                     "no sanitizers: more survive, to be tried --survivors later")
    ask.add_argument("--minutes", type=float, default=1e9, help="time limit; --go-on continues")
    ask.add_argument("--go-on", action="store_true", help="keep what build/mutate.csv has of these")
    ask.add_argument("--survivors", action="store_true", help="try again those that survived there")
    ask.add_argument("--smoke", action="store_true", help="test this program itself")
    ask.add_argument("--list", action="store_true", help="show the mutants, try none")
    o = ask.parse_args()
    os.makedirs(BUILD, exist_ok=True)
    if o.smoke:
        return smoke()

    path = os.path.join(ROOT, "jem.h")
    text = open(path).read()
    mutants = draw(candidates(text, live_lines(path)), o.number, o.seed, o.room)[o.skip:]
    known = listed(os.path.join(ROOT, "tests", "mutants.txt"))
    key = lambda m: (m["line"].strip(), m["mutant"].strip(), str(m["nth"]))
    before = {}
    if (o.go_on or o.survivors) and os.path.exists(TABLE):
        before = {key(r): r for r in csv.DictReader(open(TABLE))}
    if o.survivors:
        again = {k for k, r in before.items() if r["result"] == "survived"}
        mutants = [m for m in mutants if key(m) in before]
        before = {k: r for k, r in before.items() if k not in again}
    if o.list:
        for m in mutants:
            print("%s, %s:\n- %s\n+ %s" % (m["room"], m["change"], m["line"], m["mutant"]))
        return 0

    until = time.time() + 60 * o.minutes
    bench = Bench()
    place = bench.copy("survey")
    bench.objects(place, bench.tests)
    surveyed = survey(bench, bench.tests, until)
    surveyed = {n: s for n, s in surveyed.items() if s["seconds"] <= o.most}
    jobs = [bench.copy("job%d" % k) for k in range(o.jobs)]
    if bench.library(jobs[0])[0]:
        sys.exit("jem.h does not compile")
    original = open(os.path.join(jobs[0], "build", "jem.o"), "rb").read()
    rows, free, lock, begin = [], list(jobs), threading.Lock(), time.time()

    def keep(row):
        row["why"] = known.get(key(row)[:2], "")
        if row["result"] in ("survived", "equivalent"):
            row["result"] = "equivalent" if row["why"] else "survived"
        rows.append(dict(row, line=row["line"].strip(), mutant=row["mutant"].strip()))

    def one(m):
        if time.time() > until:
            return
        with lock:
            where = free.pop()
        at = time.time()
        m["result"], m["test"] = tried(bench, where, m, surveyed, original, o.quick)
        m["seconds"] = "%.1f" % (time.time() - at)
        with lock:
            free.append(where)
            keep(m)
            save(rows)
            print("[%*d/%d] >>%s: %s%s (%s s): %s" % (
                len(str(len(mutants))), len(rows), len(mutants), m["room"], m["result"],
                " by " + m["test"] if m["test"] else "", m["seconds"], m["mutant"].strip()),
                flush=True)

    for m in mutants:
        if key(m) in before:
            keep(before[key(m)])
    with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        list(pool.map(one, [m for m in mutants if key(m) not in before]))
    save(rows)
    print("%d minutes" % ((time.time() - begin) / 60))
    report(rows)
    if len(rows) < len(mutants):
        print("%d are left: --go-on" % (len(mutants) - len(rows)))
    return 3 if len(rows) < len(mutants) else 0


if __name__ == "__main__":
    sys.exit(main())
