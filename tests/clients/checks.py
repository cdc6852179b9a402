"""Checks that print one line each. A check is a function of what it is given; its name tells what holds."""

import traceback

all_checks = []


def check(function):
    all_checks.append(function)
    return function


def expect(holds, *shown):
    """Fails the check that calls it. `shown` says what was found."""
    if not holds:
        raise AssertionError(" ".join(repr(one)[:600] for one in shown) or "does not hold")


def expect_equal(got, wanted):
    expect(got == wanted, "got", got, "expected", wanted)


def expect_raises(kind, ask, **fields):
    """Calls `ask`, which must raise `kind` whose attributes are `fields`; returns the exception."""
    try:
        answer = ask()
    except kind as error:
        for name, wanted in fields.items():
            got = getattr(error, name)
            expect(got == wanted, name, got, "expected", wanted, str(error))
        return error
    raise AssertionError(f"no {kind.__name__}, but {answer!r}"[:600])


def run_all(given, least, only=""):
    """Runs the checks whose names have `only`. Returns an exit status: 1 where one failed or fewer than `least` ran."""
    failed = ran = 0
    for function in all_checks:
        if only not in function.__name__:
            continue
        name = function.__name__.replace("_", " ")
        ran += 1
        try:
            function(given)
            print(f"PASS {name}", flush=True)
        except Exception as error:
            failed += 1
            place = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith("_checks.py")][-1:]
            where = f"line {place[0].lineno}" if place else "?"
            print(f"FAIL {name} ({where}): {type(error).__name__}: {str(error)[:900]}", flush=True)
    print(f"{ran} checks, {ran - failed} passed")
    if ran < least and not only:
        print(f"FAIL: {least} checks were expected")
        return 1
    return 1 if failed else 0
