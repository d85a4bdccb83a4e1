#!/usr/bin/env python3
"""Lines and branches of jem.h that ran, added up over all programs that were compiled with --coverage
into one folder: `make coverage`. A line is covered if it ran in any of them, for any instruction set;
so is a way out of a branch.

    tests/coverage.py build/coverage [--least PERCENT]

What did not run is listed in build/coverage/uncovered.txt, room by room."""
import glob
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile


def merged(folder):
    """{line: times}, {line: {ways out: [times]}}; each instance of a line counts."""
    lines, branches = {}, {}
    notes = [os.path.abspath(n) for n in glob.glob(folder + '/*.gcno')]
    with tempfile.TemporaryDirectory() as place:
        for note in notes:
            if not os.path.exists(note[:-5] + '.gcda'):
                continue                           # built, never run
            subprocess.run(['gcov', '--json-format', '--branch-probabilities', note], cwd=place,
                           check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for found in glob.glob(place + '/*.gcov.json.gz'):
                with gzip.open(found, 'rt') as f:
                    add(json.load(f), lines, branches)
                os.remove(found)
    return lines, branches


def add(data, lines, branches):
    for source in data['files']:
        if os.path.basename(source['file']) != 'jem.h':
            continue
        for entry in source['lines']:
            n = entry['line_number']
            lines[n] = lines.get(n, 0) + entry['count']
            times = [b['count'] for b in entry['branches']]
            if times:
                so_far = branches.setdefault(n, {}).setdefault(len(times), [0] * len(times))
                for i, t in enumerate(times):
                    so_far[i] += t


def main():
    folder = sys.argv[1]
    least = float(sys.argv[3]) if sys.argv[2:3] == ['--least'] else 0
    lines, branches = merged(folder)
    with open('jem.h') as f:
        text = f.read().split('\n')
    if not lines:
        sys.exit('no program in %s was compiled with --coverage, and run' % folder)
    room, rooms, report = '', {}, []
    for n, line in enumerate(text, 1):
        mark = re.match(r'/\* ==== >>(\w+)', line)
        room = mark.group(1) if mark else room
        if n not in lines:
            continue
        seen = rooms.setdefault(room, [0, 0, 0, 0])
        seen[0] += lines[n] > 0
        seen[1] += 1
        # Instances that were optimised differently have other branches: the one with the most.
        ways = branches.get(n, {0: []})
        ways = ways[max(ways)]
        seen[2] += sum(t > 0 for t in ways)
        seen[3] += len(ways)
        if not lines[n]:
            report.append('%s %5d %s' % (room, n, line))
    with open(folder + '/uncovered.txt', 'w') as f:
        f.write('\n'.join(report) + '\n')
    print('%-10s %16s %18s' % ('room', 'lines', 'branches'))
    total = [sum(r[i] for r in rooms.values()) for i in range(4)]
    for name, r in list(rooms.items()) + [('jem.h', total)]:
        print('%-10s %5d of %5d %3.0f%% %6d of %6d %3.0f%%' % (
            name, r[0], r[1], 100 * r[0] / r[1], r[2], r[3], 100 * r[2] / max(1, r[3])))
    share = 100 * total[0] / total[1]
    print('%.1f%% of the lines, %.1f%% of the branches; the others: %s/uncovered.txt' % (
        share, 100 * total[2] / total[3], folder))
    good = share >= least
    print('%d passed, %d failed' % (good, not good))
    return not good


sys.exit(main())
