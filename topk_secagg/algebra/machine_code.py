"""Compiles all kernels for this processor. Loads numba; `library` runs it in a process of its own.

numba translates the kernels to LLVM's language, without optimising them (NUMBA_OPT=0). LLVM makes
one object file of all, through llvmlite. Between the two, the text is changed in two points:

- Every pointer that one of our functions takes becomes `noalias`, which is C's `restrict`. It holds
  by the rule in `kernels`. Without it, each loop would first compare all its arrays.
- `noinline` is taken back. numba marks its reference counting so, but no array here is counted:
  once it is inlined, LLVM sees that it does nothing, and leaves it out.

The result calls nothing from outside but C's memory functions: no Python, and no numba.
"""

from __future__ import annotations

import re
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba

# they list their kernels
from . import kernels, recovery, selection_kernels, sketch_kernels  # noqa: F401
from .entry import KERNELS, compiled
from .library import features, symbol

FASTEST = 3  # of LLVM's levels of optimisation

_OUR_FUNCTION = re.compile(r"^define [^@]*@[^(]*topk_secagg.*$", re.MULTILINE)
# an argument without attributes, as LLVM 15 and 22 write it
_POINTER = re.compile(r"(\bptr|\*) (?=%)")
_NOT_INLINED = re.compile(r"\bnoinline\b")


def compilers() -> str:
    """The versions of what compiles here."""
    return f"numba {numba.__version__} and llvmlite {llvmlite.__version__}"


def object_code() -> bytes:
    """An object file in which every kernel is a C function; see `library.symbol` for its name."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=features(),
        opt=FASTEST,
        reloc="pic",
    )
    module = _linked()
    _optimise(module, machine)
    _check_complete(module)
    return bytes(machine.emit_object(module))


def _linked() -> Any:
    """One module with all kernels, of which only the kernels can be seen from outside.

    All else is internal to it: LLVM may inline that, and leaves out what is not used.
    """
    module = llvm.parse_assembly("")
    exported = set()
    for function in KERNELS.values():
        c_function = compiled(function)
        kernel_module = llvm.parse_assembly(_changed(c_function.inspect_llvm()))
        c_entry = kernel_module.get_function(c_function.native_name)
        c_entry.name = symbol(function.__name__, len(list(c_entry.arguments)))
        exported.add(c_entry.name)
        module.link_in(kernel_module)
    for defined in (*module.functions, *module.global_variables):
        if not defined.is_declaration and defined.name not in exported:
            defined.linkage = "internal"
    return module


def _changed(text: str) -> str:
    """LLVM's text of a kernel with the two changes that the docstring of this module names."""
    text = _NOT_INLINED.sub("inlinehint", text)
    return _OUR_FUNCTION.sub(lambda line: _POINTER.sub(r"\1 noalias ", line[0]), text)


def _optimise(module: Any, machine: Any) -> None:
    """LLVM's usual passes."""
    options = llvm.create_pipeline_tuning_options(speed_level=FASTEST)
    options.loop_vectorization = True
    options.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


def _check_complete(module: Any) -> None:
    """RuntimeError if a kernel calls something that a process without numba does not have."""
    outside = [f.name for f in module.functions if f.is_declaration]
    missing = [name for name in outside if not name.startswith("llvm.")]
    if missing:
        raise RuntimeError(f"kernels need {', '.join(missing)}: compiled with {compilers()}")


def main() -> None:
    """Write the versions, a line, and the object file to the standard output."""
    code = object_code()
    with open(1, "wb") as out:
        out.write(compilers().encode() + b"\n" + code)


if __name__ == "__main__":
    main()
