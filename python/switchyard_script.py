#!python
"""The command `switchyard` of a Python installation: it becomes the program in the package, which needs no Python."""

import importlib.util
import os
import sys

package = importlib.util.find_spec("switchyard")  # finds it without importing it
for folder in package.submodule_search_locations if package else ():
    program = os.path.join(folder, "bin", "switchyard")
    if os.path.exists(program):
        os.execv(program, ["switchyard", *sys.argv[1:]])
sys.exit("switchyard: this Python has no package switchyard with a program in it; install it again")
