# SPDX-License-Identifier: Apache-2.0
"""A27: "it does not install". Builds from an sdist, with little on PATH, in fresh environments.

The environments borrow the running one's packages through a .pth file, so nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.install, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent.parent
SITE = Path(sysconfig.get_paths()["purelib"])
COMPILER = ("c++", "g++", "gcc", "cc", "as", "ld", "ar", "nm", "ranlib", "strip", "objcopy", "make")
SHELL = ("sh", "bash", "env", "uname", "cat", "sed", "grep", "rm", "mkdir", "cp", "mv", "tr")
BUILD_PACKAGES = ("setuptools", "setuptools-*.dist-info", "pip", "_distutils_hack", "wheel")


def find_tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=os.path.dirname(sys.executable))


def path_with(folder: Path, *names: str) -> str:
    """A PATH that holds the named tools and no other: no nvcc, no ninja."""
    folder.mkdir()
    for name in names:
        tool = find_tool(name)
        if tool is not None:
            (folder / name).symlink_to(tool)
    return str(folder)


def new_python(folder: Path, packages: Path) -> str:
    """A virtual environment that also sees the packages in `packages`; its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    query = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = subprocess.run([python, "-c", query], capture_output=True, text=True, check=True)
    Path(site.stdout.strip(), "borrowed.pth").write_text(f"{packages}\n")
    return str(python)


def run(command: list[str], cwd: Path, path: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run with only PATH, HOME and `env` set; output and errors together."""
    whole = {"PATH": path, "HOME": os.environ.get("HOME", str(cwd)), **env}
    return subprocess.run(
        command,
        cwd=cwd,
        env=whole,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("install")


@pytest.fixture(scope="module")
def tools(folder: Path) -> str:
    return path_with(folder / "tools", "cmake", *COMPILER, *SHELL)


@pytest.fixture(scope="module")
def sdist(folder: Path) -> Path:
    """The source distribution, made in a copy of the tree so that the tree stays clean."""
    copy = folder / "checkout"
    ignored = shutil.ignore_patterns(".*", "build", "*.so", "__pycache__", "*.egg-info", "tests")
    shutil.copytree(ROOT, copy, ignore=ignored)
    made = run([sys.executable, "setup.py", "-q", "sdist"], copy, os.environ["PATH"])
    assert made.returncode == 0, made.stdout
    (archive,) = (copy / "dist").glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def source(folder: Path, sdist: Path) -> Path:
    """What the sdist holds, unpacked."""
    filters = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # 3.10.12, 3.11.4
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", **filters)
    (inner,) = (folder / "source").iterdir()
    return inner


@pytest.fixture(scope="module")
def python(folder: Path) -> str:
    return new_python(folder / "venv", SITE)


@pytest.fixture(scope="module")
def wheel(folder: Path, source: Path, python: str, tools: str) -> tuple[Path, str]:
    """The wheel built from the sdist without ninja and nvcc on PATH, and what was printed."""
    command = [python, "-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-deps"]
    built = run([*command, "-w", str(folder / "wheels"), "."], source, tools, MAX_JOBS="2")
    assert built.returncode == 0, built.stdout[-4000:]
    (file,) = (folder / "wheels").glob("*.whl")
    return file, built.stdout


def test_sdist_is_small_and_complete(sdist: Path) -> None:
    assert sdist.stat().st_size < 1_000_000
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    ours = {
        path.relative_to(ROOT).as_posix()
        for top in ("bench/micro", "csrc", "python", "tools")
        for path in (ROOT / top).rglob("*")
        if path.is_file() and path.suffix in (".cpp", ".h", ".py", ".json", ".typed")
    }
    assert ours <= names
    assert {"CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "setup.py"} <= names


def test_wheel_builds_without_nvcc_and_ninja(wheel: tuple[Path, str]) -> None:
    file, output = wheel
    lines = [line.strip() for line in output.splitlines() if "CPU part only" in line]
    assert len(lines) == 1 and lines[0].startswith("treeattn: ") and lines[0].endswith("2 jobs")
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
    assert "treeattn/_C.abi3.so" in names
    assert "treeattn/cli/demo_prompts.json" in names and "treeattn/py.typed" in names
    assert [name for name in names if name.startswith("treeattn/_host.cpython-")]


def test_installed_wheel_passes_the_doctor(
    folder: Path, wheel: tuple[Path, str], python: str, tools: str
) -> None:
    # --ignore-installed: the borrowed packages may hold a treeattn, which must stay as it is.
    command = [python, "-m", "pip", "install", "--no-deps", "--ignore-installed", str(wheel[0])]
    installed = run(command, folder, tools)
    assert installed.returncode == 0, installed.stdout
    script = str(Path(python).parent / "treeattn")
    result = run([script, "doctor", "--json"], folder, tools)
    assert result.returncode == 0, result.stdout
    report = json.loads(result.stdout)
    assert Path(report["treeattn"]["path"]).is_relative_to(folder / "venv")
    assert report["treeattn"]["version"] != "source tree"
    assert {state["cpu"] for state in report["ops"].values()} == {"available"}


def test_build_in_place(source: Path, wheel: tuple[Path, str], python: str, tools: str) -> None:
    """What an editable install does; after the wheel, so that little is compiled again."""
    built = run([python, "setup.py", "build_ext", "--inplace"], source, tools)
    assert built.returncode == 0, built.stdout[-4000:]
    code = "import treeattn; print(treeattn.doctor()['treeattn']['path'])"
    package = source / "python"
    result = run([python, "-c", code], source, tools, PYTHONPATH=str(package))
    assert result.stdout.strip() == str(package / "treeattn")
    assert (package / "treeattn" / "_C.abi3.so").is_file()


def test_missing_torch_is_two_lines(folder: Path, source: Path, tools: str) -> None:
    lean = folder / "lean"
    lean.mkdir()
    for pattern in BUILD_PACKAGES:
        for path in SITE.glob(pattern):
            (lean / path.name).symlink_to(path)
    python = new_python(folder / "lean_venv", lean)
    command = [python, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "."]
    result = run(command, source, tools)
    assert result.returncode != 0
    lines = [line.strip() for line in result.stdout.splitlines()]
    first = lines.index("treeattn: torch is not installed here, and the build needs its headers.")
    assert lines[first + 1].startswith("Run: pip install torch==")
    assert "Traceback" not in result.stdout


def test_missing_cmake_names_the_command(folder: Path, source: Path, python: str) -> None:
    path = path_with(folder / "no_cmake", *COMPILER, *SHELL)
    result = run([python, "setup.py", "build_ext"], source, path)
    assert result.returncode != 0
    assert "treeattn: the build needs cmake.\nRun: pip install cmake" in result.stdout


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TREEATTN_CUDA", "maybe", "TREEATTN_CUDA must be 0, 1 or auto, got 'maybe'"),
        ("TORCH_CUDA_ARCH_LIST", "Hopper", "TORCH_CUDA_ARCH_LIST must list archs"),
        ("MAX_JOBS", "many", "MAX_JOBS must be a positive integer, got 'many'"),
    ],
)
def test_bad_environment_stops_before_compiling(
    source: Path, python: str, tools: str, name: str, value: str, words: str
) -> None:
    result = run([python, "setup.py", "build_ext"], source, tools, **{name: value})
    assert result.returncode != 0
    assert words in result.stdout and "Building CXX" not in result.stdout


def test_undefined_symbol_is_told_in_words(folder: Path, python: str, tools: str) -> None:
    """What a C++ ABI change looks like: no raw symbol in the reason, and the command."""
    import treeattn

    package = folder / "broken" / "treeattn"
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(Path(treeattn.__file__).parent, package, ignore=ignored)
    source = folder / "broken" / "module.c"
    source.write_text("void at_moved(void);\nvoid *PyInit__C(void) { at_moved(); return 0; }\n")
    library = str(package / "_C.abi3.so")
    compiled = run(["gcc", "-shared", "-fPIC", str(source), "-o", library], folder, tools)
    assert compiled.returncode == 0, compiled.stdout
    command = [python, "-m", "treeattn", "doctor", "--json"]
    result = run(command, folder, tools, PYTHONPATH=str(folder / "broken"))
    assert result.returncode == 1
    module = json.loads(result.stdout)["modules"]["_C"]
    assert "does not fit the installed torch" in module["reason"]
    assert "at_moved" not in module["reason"] and "at_moved" in module["detail"]
    assert module["remedy"].startswith("pip install --no-build-isolation")
    code = "import treeattn.ops as ops, torch; ops.merge_states(*[torch.zeros(1, 1, 1)] * 4)"
    used = run([python, "-c", code], folder, tools, PYTHONPATH=str(folder / "broken"))
    last = used.stdout.strip().splitlines()[-1]
    assert last.startswith("ImportError: treeattn._C could not be loaded: it does not fit")
