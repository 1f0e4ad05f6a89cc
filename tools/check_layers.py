# SPDX-License-Identifier: Apache-2.0
"""Enforces the rules of the house: who may include or import whom, and that every op is complete.

  csrc/include < csrc/cpu  < csrc/bindings (torch stable ABI), csrc/host (pybind11)
               < csrc/cuda < python/treeattn; bench/micro (neither torch nor Python)
  csrc/simt runs csrc/cuda on the host, for tests

Run as a program it prints each breach and exits with 1 when there is one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OPS = ("plan_tree", "write_kv", "tree_attention", "accept_path", "remap_kv", "merge_states")
MAX_LINES = 400
SOURCES = (".h", ".cpp", ".cuh", ".cu", ".py")
CODE = ("csrc", "python", "tests", "tools", "bench", "examples", "setup.py")
_INCLUDE = re.compile(r'^\s*#\s*include\s*(<[^>]+>|"[^"]+")', re.MULTILINE)
_SIMD = ("immintrin.h", "arm_neon.h", "x86intrin.h", "arm_bf16.h", "cpuid.h", "unistd.h")
_TORCH = ("torch/csrc/stable/", "torch/headeronly/", "torch/csrc/inductor/aoti_torch/", "Python.h")


@dataclass(frozen=True)
class Layer:
    """One folder of C++: which of our folders and which foreign headers it may include."""

    own: tuple[str, ...]  # prefixes of quoted includes
    foreign: tuple[str, ...] = ()  # prefixes of angle includes besides the C++ standard library


LAYERS = {
    "csrc/include": Layer(("treeattn/",)),
    "csrc/cpu": Layer(("treeattn/", "cpu/"), _SIMD),
    "csrc/cuda": Layer(("treeattn/", "cuda/"), ("cuda_runtime.h",)),
    # Takes the place of the CUDA runtime and of ptx.cuh, and knows of no kernel.
    "csrc/simt": Layer(
        ("treeattn/", "simt/", "cuda/common/"),
        ("cuda_runtime.h", "dlfcn.h", "sys/mman.h", "sanitizer/"),
    ),
    "csrc/bindings": Layer(("treeattn/", "bindings/"), _TORCH),
    "csrc/bindings/cpu": Layer(("treeattn/", "bindings/", "cpu/"), _TORCH),
    # Device ops come from either compiler; the emulator is named by its test module only.
    "csrc/bindings/device": Layer(
        ("treeattn/", "bindings/", "cuda/", "simt/graph.h", "simt/machine.h"), _TORCH
    ),
    "csrc/host": Layer(("treeattn/", "host/"), ("pybind11/",)),
    "bench/micro": Layer(("treeattn/", "cpu/", "micro/")),
    "bench/micro/cuda": Layer(("treeattn/", "cpu/", "cuda/", "micro/"), ("cuda_runtime.h",)),
}

# Python: a module may import ours from its own row and the rows above it.
PYTHON_ROWS = (
    ("_library", "_gpus", "_namespace", "_C", "_host", "_cuda", "draw"),
    ("plan", "accept", "ops", "tree", "sampling", "kv_cache", "cost", "cost_file"),
    ("schedule", "reference", "_selftest", "doctor"),
    ("decoder", "adapters"),
    ("cli", "tune", "__main__"),
)
TOP_LEVEL_THIRD_PARTY = ("torch", "numpy")  # anything else is an extra: import it in a function
_WHAT_IT_CHECKS = ("accept", "ops", "_C", "_cuda", "_host", "_library", "_namespace")
ORACLE_AVOIDS = tuple(f"treeattn.{name}" for name in _WHAT_IT_CHECKS)


def breaches(root: Path) -> list[str]:
    """Every breach under `root`, one line each, sorted by file."""
    found: list[str] = []
    for path in sorted(_sources(root)):
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        found += [f"{name}: {breach}" for breach in _file_breaches(text)]
        if name.startswith(("csrc/", "bench/micro/")):
            found += [f"{name}: {breach}" for breach in _include_breaches(name, text)]
        if name.startswith("python/treeattn/"):
            found += [f"{name}: {breach}" for breach in _import_breaches(name, text)]
    return found + [f"op {op}: lacks {part}" for op in OPS for part in _missing_parts(root, op)]


def _sources(root: Path) -> Iterator[Path]:
    for top in CODE:
        start = root / top
        if start.is_file():
            yield start
        for path in start.rglob("*") if start.is_dir() else ():
            if path.suffix in SOURCES or path.name == "CMakeLists.txt":
                yield path


def _file_breaches(text: str) -> Iterator[str]:
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        yield f"{len(lines)} lines, at most {MAX_LINES} are allowed"
    if "SPDX-License-Identifier: Apache-2.0" not in "".join(lines[:1]):
        yield "the first line must be the SPDX line"


def _include_breaches(name: str, text: str) -> Iterator[str]:
    parents = name.split("/")[:-1]
    folders = ["/".join(parents[:depth]) for depth in range(len(parents), 1, -1)]
    folder = next((folder for folder in folders if folder in LAYERS), None)
    if folder is None:
        if not name.endswith("CMakeLists.txt"):
            yield f"{folders[-1]} is no layer of this house"
        return
    layer = LAYERS[folder]
    for include in _INCLUDE.findall(text):
        target = include[1:-1]
        if include[0] == '"':
            allowed = target.startswith(layer.own)
        else:
            allowed = target.startswith(layer.foreign) or _is_standard(target)
        if not allowed:
            yield f"includes {include}, which {folder} may not know"


def _is_standard(header: str) -> bool:
    """C++ standard headers have neither a folder nor a suffix."""
    return "/" not in header and "." not in header


def _import_breaches(name: str, text: str) -> Iterator[str]:
    module = name.removeprefix("python/treeattn/").removesuffix(".py").split("/")[0]
    tree = ast.parse(text)
    at_top = {id(node) for node in _top_level(tree.body)}
    for_types = {id(node) for node in _type_checking(tree)}
    for node in ast.walk(tree):
        for target in _imported(node):
            package, _, rest = target.partition(".")
            ours = rest.split(".")[0]
            if package == "treeattn":
                if module != "__init__" and _row(ours) > _row(module):
                    yield f"imports {target}, which lies above it"
                shared = target.startswith(ORACLE_AVOIDS) and id(node) not in for_types
                if module == "reference" and shared:
                    yield f"imports {target}; the oracle shares no code with what it checks"
            elif id(node) in at_top and not _always_there(package):
                yield f"imports {package} at top level; extras are imported inside functions"
    if module == "reference" and "torch.ops.treeattn" in text:
        yield "calls torch.ops.treeattn; the oracle shares no code with what it checks"


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run at import, those under `if` and `try` included."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With) and not _is_type_checking(node):
            for field in ("body", "orelse", "finalbody"):
                yield from _top_level(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from _top_level(handler.body)


def _type_checking(tree: ast.Module) -> Iterator[ast.AST]:
    """What only a type checker sees."""
    for node in ast.walk(tree):
        if _is_type_checking(node):
            yield from ast.walk(node)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        source = node.module or ""
        if source == "treeattn":
            yield from (f"treeattn.{alias.name}" for alias in node.names)
        else:
            yield source


def _row(module: str) -> int:
    rows = (index for index, row in enumerate(PYTHON_ROWS) if module in row)
    return next(rows, 1 if module else len(PYTHON_ROWS))


def _always_there(package: str) -> bool:
    return package in sys.stdlib_module_names or package in TOP_LEVEL_THIRD_PARTY


def _missing_parts(root: Path, op: str) -> Iterator[str]:
    """One op, one name: params, kernel, binding, Python wrapper, reference, test."""
    for path in (
        f"csrc/include/treeattn/{op}.h",
        f"csrc/cpu/{op}.cpp",
        f"csrc/bindings/{op}.cpp",
        f"tests/test_{op}.py",
    ):
        if not (root / path).is_file():
            yield path
    package = root / "python" / "treeattn"
    wrappers = [package / name for name in ("ops.py", "plan.py", "accept.py")]
    if not any(_defines(path, op) for path in wrappers):
        yield f"def {op} in python/treeattn/ops.py"
    oracle = [package / "reference.py", *(package / "reference").glob("*.py")]
    if not any(_defines(path, op) for path in oracle):
        yield f"def {op} in python/treeattn/reference.py"


def _defines(path: Path, function: str) -> bool:
    if not path.is_file():
        return False
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body)


def main() -> int:
    """Check the tree this file belongs to."""
    found = breaches(Path(__file__).resolve().parent.parent)
    print("\n".join(found) if found else "layers: no breach")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
