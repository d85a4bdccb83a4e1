"""Checks for the test scripts in Python, whose last line tests/run.sh adds up."""
import sys

passed = failed = 0


def check(condition, name):
    """Counts a check; prints the name of one that fails. Returns the condition."""
    global passed, failed
    if condition:
        passed += 1
    else:
        failed += 1
        print("FAILED", name)
    return condition


def finish():
    """Prints the counts, and ends the program; without any check it has failed."""
    print("%d passed, %d failed" % (passed, failed))
    sys.exit(failed > 0 or passed == 0)
