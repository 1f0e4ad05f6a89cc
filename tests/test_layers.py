# SPDX-License-Identifier: Apache-2.0
"""The rules of the house hold, and each check of them can fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import check_layers  # noqa: E402

SPDX = "SPDX-License-Identifier: Apache-2.0\n"


def test_this_tree_has_no_breach() -> None:
    assert check_layers.breaches(ROOT) == []


def write(root: Path, name: str, text: str = "") -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    mark = "//" if path.suffix in (".h", ".cpp", ".cu", ".cuh") else "#"
    path.write_text(f"{mark} {SPDX}{text}")


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """The smallest tree without a breach."""
    functions = "".join(f"def {op}(): ...\n" for op in check_layers.OPS)
    write(tmp_path, "python/treeattn/ops.py", functions)
    write(tmp_path, "python/treeattn/reference.py", functions)
    for op in check_layers.OPS:
        write(tmp_path, f"csrc/include/treeattn/{op}.h", "#include <cstdint>\n")
        write(tmp_path, f"csrc/cpu/{op}.cpp", f'#include "treeattn/{op}.h"\n')
        write(tmp_path, f"csrc/bindings/{op}.cpp", f'#include "treeattn/{op}.h"\n')
        write(tmp_path, f"tests/test_{op}.py")
    assert check_layers.breaches(tmp_path) == []
    return tmp_path


@pytest.mark.parametrize(
    ("file", "include"),
    [
        ("csrc/include/treeattn/a.h", '"cpu/isa.h"'),
        ("csrc/include/treeattn/a.h", "<torch/csrc/stable/tensor.h>"),
        ("csrc/include/treeattn/a.h", "<immintrin.h>"),
        ("csrc/cpu/a.cpp", "<torch/csrc/stable/tensor.h>"),
        ("csrc/cpu/a.cpp", "<Python.h>"),
        ("csrc/cpu/a.cpp", '"bindings/match.h"'),
        ("csrc/bindings/a.cpp", "<torch/extension.h>"),
        ("csrc/bindings/a.cpp", "<ATen/ATen.h>"),
        ("csrc/bindings/a.cpp", '"host/block_pool.h"'),
        ("csrc/bindings/a.cpp", '"cpu/isa.h"'),
        ("csrc/bindings/a.cpp", '"cuda/write_kv/write_kv.h"'),
        ("csrc/bindings/cpu/a.cpp", '"cuda/write_kv/write_kv.h"'),
        ("csrc/bindings/device/a.cpp", '"cpu/isa.h"'),
        ("csrc/bindings/device/a.cpp", '"simt/fiber.h"'),
        ("csrc/bindings/device/a.cpp", "<cuda_runtime.h>"),
        ("csrc/cuda/write_kv/a.cu", '"simt/machine.h"'),
        ("csrc/cuda/write_kv/a.cu", '"cpu/isa.h"'),
        ("csrc/cuda/write_kv/a.cuh", "<torch/csrc/stable/tensor.h>"),
        ("csrc/cuda/common/a.cuh", "<cuda_fp16.h>"),
        ("csrc/simt/a.cpp", '"cuda/write_kv/write_kv.h"'),
        ("csrc/simt/shadow/cuda_runtime.h", '"bindings/match.h"'),
        ("csrc/simt/a.cpp", "<ucontext.h>"),
        ("csrc/host/a.cpp", "<torch/csrc/stable/tensor.h>"),
        ("csrc/host/a.cpp", '"bindings/match.h"'),
        ("csrc/host/a.cpp", '"../cpu/isa.h"'),
        ("csrc/cpu/a.cpp", '"micro/common/table.h"'),
        ("bench/micro/a.cpp", "<torch/csrc/stable/tensor.h>"),
        ("bench/micro/common/a.h", "<Python.h>"),
        ("bench/micro/common/a.h", '"bindings/threads.h"'),
    ],
)
def test_forbidden_include(house: Path, file: str, include: str) -> None:
    parts = file.split("/")[:-1]
    folders = ["/".join(parts[:depth]) for depth in (3, 2)]
    folder = next(folder for folder in folders if folder in check_layers.LAYERS)
    write(house, file, f"#  include {include}\n")
    assert check_layers.breaches(house) == [
        f"{file}: includes {include}, which {folder} may not know"
    ]


def test_unknown_layer(house: Path) -> None:
    write(house, "csrc/misc/a.cpp")
    assert check_layers.breaches(house) == ["csrc/misc/a.cpp: csrc/misc is no layer of this house"]


@pytest.mark.parametrize(
    ("module", "line", "words"),
    [
        ("ops.py", "from treeattn.decoder import Decoder", "lies above it"),
        ("ops.py", "from treeattn import cli", "lies above it"),
        ("_library.py", "def f():\n    import treeattn.ops", "lies above it"),
        ("decoder/step.py", "import treeattn.cli.main", "lies above it"),
        ("draw/svg.py", "from treeattn.tree import DraftTree", "lies above it"),
        ("decoder/gguf.py", "import gguf", "imports gguf at top level"),
        ("draw/text.py", "try:\n    from rich.tree import Tree\nexcept ImportError: ...", "rich"),
        ("draw/text.py", "try:\n    import re\nexcept ImportError:\n    import rich", "rich"),
    ],
)
def test_forbidden_import(house: Path, module: str, line: str, words: str) -> None:
    functions = (house / "python/treeattn/ops.py").read_text() if module == "ops.py" else ""
    write(house, f"python/treeattn/{module}", f"{line}\n{functions}")
    (breach,) = check_layers.breaches(house)
    assert breach.startswith(f"python/treeattn/{module}: ") and words in breach


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("decoder/gguf.py", "def read():\n    import gguf"),
        ("decoder/step.py", "import numpy\nimport torch.nn\nfrom treeattn.ops import plan_tree"),
        ("tree.py", "if TYPE_CHECKING:\n    import rich"),
        ("cli/main.py", "from treeattn import decoder, draw"),
        ("reference/remap_kv.py", "if TYPE_CHECKING:\n    from treeattn.ops import AcceptedPath"),
    ],
)
def test_allowed_import(house: Path, module: str, line: str) -> None:
    write(house, f"python/treeattn/{module}", line)
    assert check_layers.breaches(house) == []


@pytest.mark.parametrize(
    "line", ["import treeattn.ops", "from treeattn import _C", "x = torch.ops.treeattn.write_kv"]
)
def test_oracle_shares_no_code(house: Path, line: str) -> None:
    oracle = house / "python/treeattn/reference.py"
    oracle.write_text(f"{oracle.read_text()}{line}\n")
    assert "the oracle shares no code" in check_layers.breaches(house)[0]


def test_long_file(house: Path) -> None:
    write(house, "tests/test_long.py", "\n" * check_layers.MAX_LINES)
    assert check_layers.breaches(house) == [
        "tests/test_long.py: 401 lines, at most 400 are allowed"
    ]


@pytest.mark.parametrize("name", ["tests/a.py", "csrc/cpu/a.h", "csrc/cpu/CMakeLists.txt"])
def test_missing_spdx(house: Path, name: str) -> None:
    (house / name).write_text("\n// SPDX-License-Identifier: Apache-2.0\n")
    assert check_layers.breaches(house) == [f"{name}: the first line must be the SPDX line"]


@pytest.mark.parametrize("op", check_layers.OPS)
@pytest.mark.parametrize(
    "part",
    [
        "csrc/include/treeattn/{op}.h",
        "csrc/cpu/{op}.cpp",
        "csrc/bindings/{op}.cpp",
        "tests/test_{op}.py",
    ],
)
def test_op_lacks_a_file(house: Path, op: str, part: str) -> None:
    (house / part.format(op=op)).unlink()
    assert check_layers.breaches(house) == [f"op {op}: lacks {part.format(op=op)}"]


@pytest.mark.parametrize("op", check_layers.OPS)
@pytest.mark.parametrize("module", ["ops.py", "reference.py"])
def test_op_lacks_a_function(house: Path, op: str, module: str) -> None:
    path = house / "python/treeattn" / module
    path.write_text(path.read_text().replace(f"def {op}(", f"def {op}_old("))
    assert check_layers.breaches(house) == [f"op {op}: lacks def {op} in python/treeattn/{module}"]
