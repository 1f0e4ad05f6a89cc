# SPDX-License-Identifier: Apache-2.0
"""Loads the compiled modules, and keeps in words why one could not be loaded.

`import treeattn` never fails because of a broken extension: the ops then raise an ImportError that
names the cause and the command that mends it, and `treeattn doctor` shows the same.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from treeattn import _gpus

OLDEST_TORCH = (2, 11)
INSTALL_TORCH = "pip install torch==2.13.0"
CUDA_TORCH = "a CUDA build of torch, see https://pytorch.org/get-started/locally"
REBUILD_CUDA = "TREEATTN_CUDA=1 pip install --no-build-isolation --force-reinstall --no-deps ."
OLDEST_GPU = (8, 0)
REBUILD = "pip install --no-build-isolation --force-reinstall --no-deps ."

_SYMBOL = re.compile(r"undefined symbol|symbol lookup error|symbol not found", re.IGNORECASE)
_TOO_NEW = re.compile(r"version [`'](?P<need>(GLIBC|GLIBCXX|CXXABI)_[\d.]+)' not found")


@dataclass(frozen=True)
class Module:
    """One compiled module: loaded, or the reason in words and the command that mends it."""

    name: str
    reason: str | None = None
    remedy: str | None = None
    detail: str | None = None  # what the loader said, for a bug report
    absent: bool = False  # not there, which is no fault

    @property
    def loaded(self) -> bool:
        return self.reason is None


def load(name: str, folder: Path | None = None) -> Module:
    """Import `treeattn.<name>` and say what happened; never raises."""
    folder = folder or Path(__file__).parent
    try:
        import torch  # puts libtorch into the process, where the extension looks for it
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        reason = "torch is not installed" if missing else "torch itself could not be imported"
        return Module(name, reason, INSTALL_TORCH, str(error))
    if _major_minor(torch.__version__) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        reason = f"torch {torch.__version__} is older than {oldest}, the oldest that is supported"
        return Module(name, reason, INSTALL_TORCH)
    try:
        importlib.import_module(f"treeattn.{name}")
    except Exception as error:
        return Module(name, _reason(name, error, folder, torch.__version__), REBUILD, str(error))
    return Module(name)


def load_cuda(folder: Path | None = None) -> Module:
    """Import the CUDA kernels where torch has CUDA, and warn of GPUs they were not built for."""
    folder = folder or Path(__file__).parent
    try:
        import torch
    except Exception:
        return Module("_cuda", "torch could not be imported", absent=True)
    built = any(folder.glob("_cuda.*"))
    if torch.version.cuda is None:
        if built:
            reason = "it is there, but this torch has no CUDA"
            return Module("_cuda", reason, CUDA_TORCH, absent=True)
        return Module("_cuda", "this torch has no CUDA", absent=True)
    if not built:
        return Module("_cuda", "it was not built", REBUILD_CUDA, absent=True)
    module = load("_cuda", folder)
    if module.loaded:
        for sentence in uncovered(archs() or "", _gpus.visible()):
            warnings.warn(sentence, stacklevel=2)
    return module


def archs() -> str | None:
    """The TORCH_CUDA_ARCH_LIST that the loaded CUDA kernels were compiled for."""
    module = sys.modules.get("treeattn._cuda")
    return None if module is None else str(module.ARCHS)


def uncovered(archs: str, gpus: Sequence[_gpus.Gpu]) -> list[str]:
    """One sentence, with the remedy, per kind of GPU that runs none of `archs`."""
    sentences = {}
    for gpu in gpus:
        capability = f"{gpu.capability[0]}.{gpu.capability[1]}"
        if any(_runs(gpu.capability, arch) for arch in re.split(r"[;,\s]+", archs)):
            continue
        remedy = (
            f"mend it with: TORCH_CUDA_ARCH_LIST={capability} {REBUILD_CUDA}"
            if gpu.capability >= OLDEST_GPU
            else "they need compute capability 8.0 or newer"
        )
        sentences[gpu] = (
            f"treeattn: {gpu.name} has compute capability {capability}, for which the CUDA kernels "
            f"were not built ({archs}); {remedy}"
        )
    return list(sentences.values())


def _runs(capability: tuple[int, int], arch: str) -> bool:
    """Machine code runs within its major version, from its minor on; PTX runs on all that follow.

    Suffixes a and f tie the code to one version.
    """
    match = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", arch)
    if match is None:
        return False
    built = int(match[1]), int(match[2])
    if match[3]:
        return capability == built
    same_major = capability[0] == built[0]
    return capability >= built and (same_major or match[4] is not None)


def _reason(name: str, error: Exception, folder: Path, torch_version: str) -> str:
    """The loader's complaint in plain words, without raw symbol names."""
    text = str(error)
    files = sorted(path.name for path in folder.glob(f"{name}.*") if path.suffix in (".so", ".pyd"))
    usable = [f for f in files if f.removeprefix(name) in importlib.machinery.EXTENSION_SUFFIXES]
    if not files:
        return f"it was not built: {folder} holds no {name} library"
    if not usable:
        ours = importlib.machinery.EXTENSION_SUFFIXES[0]
        return f"it was built for another Python: {', '.join(files)}; this one loads *{ours}"
    if _SYMBOL.search(text):
        return (
            f"it does not fit the installed torch {torch_version} (a symbol is missing), "
            "or it is left over from another build"
        )
    too_new = _TOO_NEW.search(text)
    if too_new:
        return f"it was built on a newer system: {too_new['need']} is missing here"
    if "cannot open shared object file" in text:
        return f"a library it needs is missing: {text.split(':')[0]}"
    if re.search(r"invalid ELF header|file too short|wrong ELF class|not a mach-o", text):
        return f"{usable[0]} is damaged, or was built for another kind of machine"
    if "does not define module export function" in text:
        return f"{usable[0]} is not a Python module of this name"
    return f"{type(error).__name__} while loading it: {text}"


def _major_minor(text: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def package_version() -> str:
    """The installed version, or "source tree" when the package is used without installation."""
    try:
        return version("treeattn")
    except PackageNotFoundError:
        return "source tree"


OPS = load("_C")  # torch.ops.treeattn
HOST = load("_host")  # BlockPool, suffix trie, tree merging
CUDA = load_cuda()  # kernels of torch.ops.treeattn for CUDA tensors


def require(module: Module = OPS) -> None:
    """Raise ImportError with cause and remedy when `module` could not be loaded."""
    if not module.loaded:
        raise ImportError(
            f"treeattn.{module.name} could not be loaded: {module.reason}. Mend it with: "
            f"{module.remedy} (`treeattn doctor` tells more)"
        )
