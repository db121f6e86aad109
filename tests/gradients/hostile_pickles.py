"""Payloads that scanners of models know, made anew: what they call, how that is spelled in a
pickle, and what the pickle is hidden in.

The calls are those of the test files and advisories (GHSA) of picklescan and the lists of modelscan
and fickling; their source distributions hold no such files. The ways to hide are theirs too. As a
script, this reads every file of a folder and prints, as JSON, what came of it and what happened
meanwhile, as Python's audit hook sees it.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import pickle
import struct
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HARM = "touch HARM"
CODE = "open('HARM', 'w')"
# what is called with which arguments, by module
CALLS: dict[str, dict[str, tuple[Any, ...]]] = {
    "__builtin__": {
        "eval": (CODE,), "exec": (CODE,), "compile": (CODE, "x", "exec"), "apply": (), "file": (),
        "getattr": ("os", "system"), "open": ("HARM", "w"), "breakpoint": (),
        "__import__": ("antigravity",), "globals": (), "dict": (), "execfile": ("HARM",),
    },
    "builtins": {
        "eval": (CODE,), "exec": (CODE,), "compile": (CODE, "x", "exec"), "getattr": ("os", "x"),
        "open": ("HARM", "w"), "breakpoint": (), "__import__": ("antigravity",), "print": ("x",),
        "setattr": ("os", "x", 1), "vars": (), "input": (), "exit": (0,), "memoryview": (b"x",),
    },
    "os": {"system": (HARM,), "popen": (HARM,), "execv": ("/bin/sh", ["sh"]), "remove": ("x",),
           "_exit": (0,), "putenv": ("A", "b"), "spawnlp": (0, "sh")},
    "posix": {"system": (HARM,), "fork": ()},
    "nt": {"system": (HARM,)},
    "commands": {"getoutput": (HARM,)},
    "subprocess": {"run": (HARM,), "Popen": (HARM,), "check_output": (HARM,), "getoutput": (HARM,)},
    "_posixsubprocess": {"fork_exec": ()},
    "pty": {"spawn": (HARM,)},
    "sys": {"exit": (0,), "setrecursionlimit": (1 << 30,), "settrace": (None,)},
    "socket": {"create_connection": (("127.0.0.1", 9),), "socket": ()},
    "ssl": {"get_server_certificate": (("127.0.0.1", 9),)},
    "httplib": {"HTTPSConnection": ("127.0.0.1",)},
    "http.client": {"HTTPSConnection": ("127.0.0.1",)},
    "urllib.request": {"urlopen": ("http://127.0.0.1:9",)},
    "requests.api": {"get": ("http://127.0.0.1:9",)},
    "aiohttp.client": {"ClientSession": ()},
    "webbrowser": {"open": ("http://127.0.0.1:9",)},
    "imaplib": {"IMAP4_stream": (HARM,)},
    "smtplib": {"SMTP": ("127.0.0.1", 9)},
    "asyncio.unix_events": {"_UnixSubprocessTransport._start": (HARM,)},
    "multiprocessing.util": {"spawnv_passfds": ("/bin/sh", ["sh"], ())},
    "runpy": {"_run_code": (CODE, {}), "run_path": ("HARM",)},
    "importlib": {"import_module": ("antigravity",)},
    "importlib.util": {"_LazyModule": ()},
    "pkgutil": {"resolve_name": ("os:system",)},
    "pydoc": {"locate": ("os.system",), "pipepager": ("x", HARM)},
    "zipimport": {"zipimporter": ("HARM.zip",)},
    "marshal": {"loads": (b"\xe3",)},
    "types": {"CodeType": (0,) * 16, "FunctionType": ()},
    "code": {"InteractiveInterpreter.runcode": (CODE,)},
    "codeop": {"compile_command": (CODE,)},
    "operator": {"attrgetter": ("system",), "methodcaller": ("system", HARM), "itemgetter": (0,)},
    "_operator": {"attrgetter": ("system",), "methodcaller": ("system", HARM)},
    "functools": {"partial": (HARM,), "reduce": (HARM,)},
    "inspect": {"getattr_static": ("os", "system")},
    "gc": {"get_objects": ()},
    "ctypes": {"CDLL": ("libc.so.6",), "string_at": (0,), "memset": (0, 0, 8)},
    "pickle": {"loads": (b"cos\nsystem\n.",), "Unpickler": ()},
    "_pickle": {"loads": (b"cos\nsystem\n.",), "load": ()},
    "dill": {"loads": (b"x",)},
    "cloudpickle.cloudpickle": {
        "_builtin_type": ("CodeType",), "_make_function": (), "_function_setstate": (),
        "_make_cell": (), "_make_empty_cell": (), "subimport": ("os",),
    },
    "joblib": {"load": ("HARM",)},
    "shelve": {"open": ("HARM",)},
    "shutil": {"rmtree": ("HARM",), "copyfile": ("a", "b")},
    "_io": {"FileIO": ("HARM", "w"), "open": ("HARM", "w")},
    "io": {"FileIO": ("HARM", "w"), "open": ("HARM", "w")},
    "logging": {"FileHandler": ("HARM",)},
    "logging.config": {"listen": (9,)},
    "distutils.file_util": {"write_file": ("HARM", ["x"])},
    "tempfile": {"mkdtemp": ()},
    "timeit": {"timeit": (CODE,)},
    "trace": {"Trace.run": (CODE,), "Trace.runctx": (CODE,)},
    "profile": {"run": (CODE,), "runctx": (CODE,), "Profile.run": (CODE,), "Profile.runctx": ()},
    "cProfile": {"run": (CODE,), "runctx": (CODE, {}, {})},
    "bdb": {"Bdb": (), "Bdb.run": (CODE,)},
    "pdb": {"run": (CODE,), "set_trace": ()},
    "doctest": {"debug_script": (CODE,)},
    "unittest.mock": {"_importer": ("os.system",)},
    "test.support.script_helper": {"assert_python_ok": ("-c", CODE)},
    "venv": {"create": ("HARM",)},
    "ensurepip": {"_run_pip": (["x"],)},
    "pip": {"main": (["x"],)},
    "site": {"addsitedir": (".",)},
    "uuid": {"_get_command_stdout": ("touch", "HARM")},
    "_osx_support": {"_read_output": (HARM,)},
    "_aix_support": {"_read_cmd_output": (HARM,)},
    "_pyrepl.pager": {"pipe_pager": ("x", HARM)},
    "lib2to3.pgen2.grammar": {"Grammar.loads": (b"x",)},
    "lib2to3.pgen2.pgen": {"ParserGenerator.make_label": (CODE,)},
    "idlelib.autocomplete": {"AutoComplete.get_entity": (CODE,),
                             "AutoComplete.fetch_completions": (CODE,)},
    "idlelib.calltip": {"Calltip.fetch_tip": (CODE,), "get_entity": (CODE,)},
    "idlelib.debugobj": {"ObjectTreeItem.SetText": (CODE,)},
    "idlelib.pyshell": {"ModifiedInterpreter.runcode": (CODE,),
                        "ModifiedInterpreter.runcommand": (CODE,)},
    "idlelib.run": {"Executive.runcode": (CODE,)},
    "numpy": {"load": ("HARM.npy", None, True), "fromfile": ("HARM",), "core.os.system": (HARM,)},
    "numpy.f2py.crackfortran": {"getlincoef": (CODE, {}), "_eval_length": (CODE, {})},
    "numpy.f2py.diagnose": {"run_command": (HARM,)},
    "numpy.testing._private.utils": {"runstring": (CODE, {})},
    "numpy.distutils": {"exec_command": (HARM,)},
    "pandas": {"read_pickle": ("HARM",)},
    "picklescan.scanner": {"scan_file_path": ("HARM",)},  # to switch a scanner off
    "fickling.hook": {"run_hook": ()},
    "torch": {"load": ("HARM",), "compile": (HARM,), "classes.load_library": ("HARM.so",)},
    "torch.hub": {"load": ("a/b", "c"), "load_state_dict_from_url": ("http://127.0.0.1:9",)},
    "torch.jit": {"load": ("HARM",)},
    "torch.jit.unsupported_tensor_ops": {"execWrapper": (CODE, {}, {})},
    "torch.ops": {"load_library": ("HARM.so",)},
    "torch.serialization": {"load": ("HARM",)},
    "torch.storage": {"_load_from_bytes": (b"cos\nsystem\n.",)},
    "torch.package": {"PackageImporter": ("HARM",)},
    "torch.distributed.rpc.internal": {"_run_function": (b"x",)},
    "torch._dynamo.guards": {"GuardBuilder.get": (CODE,)},
    "torch._inductor.codecache": {"compile_file": ("", "", ["sh", "-c", HARM])},
    "torch.fx.experimental.symbolic_shapes": {"ShapeEnv.evaluate_guards_expression": (CODE,)},
    "torch.fx.graph_module": {"reduce_graph_module": ({}, CODE)},
    "torch.utils._config_module": {"ConfigModule.load_config": (b"x",)},
    "torch.utils.bottleneck.__main__": {"run_cprofile": (CODE, {}), "run_autograd_prof": (CODE,)},
    "torch.utils.collect_env": {"run": (HARM,), "run_and_read_all": (HARM,)},
    "torch.utils.data.datapipes.utils.decoder": {"basichandlers": ("x.pkl", b"x")},
    "torch.distributed.elastic.rendezvous.api": {"basichandlers": ()},
    "transformers.utils.hub": {"http_get": ("http://127.0.0.1:9",)},
    "tensorflow.io": {"read_file": ("HARM",)},
    "keras.layers": {"Lambda": (CODE,)},
    # what a scanner lets through, called as no tensor does
    "collections": {"Counter": ([1, 2, 3],), "OrderedDict": ([("a", 1)],), "UserDict": ()},
    "_codecs": {"encode": (HARM, "latin1"), "lookup": ("x",)},
    "torch._utils": {"_rebuild_tensor": (HARM,), "_rebuild_parameter": (HARM,),
                     "_element_size": ()},
    "torch._tensor": {"_rebuild_from_type_v2": (HARM, "os", (), None)},
    "torch.nn.parameter": {"Parameter": (HARM,)},
}  # fmt: skip


# how a call is spelled, without PROTO and STOP


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _pushed(value: Any, protocol: int) -> bytes:
    """The part of a pickle that pushes a plain value."""
    code = pickle.dumps(value, protocol=protocol)
    if protocol >= 4:  # after PROTO and, in a longer one, FRAME
        return code[11:-1] if code[2:3] == pickle.FRAME else code[2:-1]
    return code[2:-1] if protocol >= 2 else code[:-1]


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def _short(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


Spelling = Callable[[str, str, tuple[Any, ...]], bytes]
SPELLINGS: dict[str, tuple[bytes, Spelling]] = {
    "protocol 0": (b"", lambda m, n, a: _global(m, n) + _pushed(a, 0) + b"R"),
    "protocol 1, OBJ": (
        b"",
        lambda m, n, a: b"(" + _global(m, n) + b"".join(_pushed(x, 1) for x in a) + b"o",
    ),
    "protocol 0, INST": (
        b"",
        lambda m, n, a: b"(" + b"".join(_pushed(x, 0) for x in a) + f"i{m}\n{n}\n".encode(),
    ),
    "protocol 2": (b"\x80\x02", lambda m, n, a: _global(m, n) + _pushed(a, 2) + b"R"),
    "protocol 2, NEWOBJ": (b"\x80\x02", lambda m, n, a: _global(m, n) + _pushed(a, 2) + b"\x81"),
    "protocol 2, BUILD": (
        b"\x80\x02",
        lambda m, n, a: _global(m, n) + b")R" + _pushed({"x": list(a)}, 2) + b"b",
    ),
    "protocol 4": (
        b"\x80\x04",
        lambda m, n, a: _short(m) + b"\x94" + _short(n) + b"\x94\x93" + _pushed(a, 4) + b"R",
    ),
    "protocol 4, NEWOBJ_EX": (
        b"\x80\x04",
        lambda m, n, a: _short(m) + _short(n) + b"\x93" + _pushed(a, 4) + b"}\x92",
    ),
}

_SYSTEM = _global("os", "system") + _text(HARM) + b"\x85R"
_LOCATE = (
    _global("operator", "methodcaller")
    + _text("system")
    + _text(HARM)
    + b"\x86R"
    + _global("pydoc", "locate")
    + _text("os")
    + b"\x85R\x85R"
)
_STORAGE = b"(" + _text("storage") + _global("torch", "FloatStorage") + _text("0") + _text("cpu")
_TENSOR = (
    _global("torch._utils", "_rebuild_tensor_v2")
    + b"(("
    + _STORAGE[1:]
    + b"K\x04tQK\x00K\x04\x85K\x01\x85\x89"
    + _global("collections", "OrderedDict")
    + b")RtR"
)
_REBUILD = _global("torch._utils", "_rebuild_tensor_v2")
# whole pickles that hide a call, or do harm without one
TRICKS = {
    "a chain of calls": b"\x80\x02" + _LOCATE + b".",
    "a call in the value of a state_dict": b"\x80\x02}" + _text("a") + _SYSTEM + b"s.",
    "a call in the key of a state_dict": b"\x80\x02}" + _SYSTEM + _TENSOR + b"s.",
    "a call beside a tensor": (
        b"\x80\x02}(" + _text("a") + _TENSOR + _text("b") + _SYSTEM + b"u."
    ),
    "a call that is thrown away": b"\x80\x02" + _SYSTEM + b"0" + _TENSOR + b".",
    "a call in a list that is kept in the memo alone": (
        b"\x80\x02(" + _SYSTEM + b"lq\x000" + _TENSOR + b"."
    ),
    "a call among the arguments of a tensor": b"\x80\x02" + _REBUILD + b"(" + _SYSTEM + b"tR.",
    "a call as the storage of a tensor": (
        b"\x80\x02" + _REBUILD + b"(" + _SYSTEM + b"QK\x00K\x04\x85K\x01\x85\x89)tR."
    ),
    "a call as the hooks of a tensor": (
        b"\x80\x02" + _TENSOR.removesuffix(_global("collections", "OrderedDict") + b")RtR")
        + _SYSTEM + b"tR."
    ),
    "a call as the state of a tensor": b"\x80\x02" + _TENSOR + _SYSTEM + b"b.",
    "a call as the persistent id": b"\x80\x02" + _SYSTEM + b"Q.",
    "a persistent id in text": b"Pcos.system\n.",
    "another pickle after the end": b"\x80\x02N.\x80\x02" + _SYSTEM + b".",
    "a pickle that breaks after the call": b"\x80\x02" + _SYSTEM + b"\xff\xff",
    "a pickle that ends after the call": b"\x80\x02" + _SYSTEM,
    "an opcode that is none": b"\x80\x02\xfe" + _SYSTEM + b".",
    "two protocols": b"\x80\x02\x80\x04" + _SYSTEM + b".",
    "a protocol in the middle": b"\x80\x02]" + b"\x80\x02" + _SYSTEM + b"a.",
    "a protocol of the future": b"\x80\x7f" + _SYSTEM + b".",
    "a name from the memo": (
        b"\x80\x04" + _short("os") + b"\x940" + _short("system") + b"\x940h\x00h\x01\x93"
        + _short(HARM) + b"\x85R."
    ),
    "a name from a slot that is not there": b"\x80\x04h\x07" + _short("os") + b"\x93" + _SYSTEM
    + b".",
    "a module that is a number": b"\x80\x04K*" + _short("os") + b"\x93" + _SYSTEM + b".",
    "a name that is no text": b"\x80\x02c\xff\xfe\nsystem\n" + _text(HARM) + b"\x85R.",
    "a name of many parts": (
        b"\x80\x04" + _short("torch") + _short("serialization.os.system") + b"\x93"
        + _short(HARM) + b"\x85R."
    ),
    "a name with a space": b"\x80\x02cos system\nx\n" + _text(HARM) + b"\x85R.",
    "a name over a known module": b"\x80\x02ctorch._utils\n_rebuild_x.__globals__\n)R.",
    "an entry of the extension registry": b"\x80\x02\x82\x01)R.",
    "a large extension code": b"\x80\x02\x84\xff\xff\xff\x7f)R.",
    "a pickle in a pickle": (
        b"\x80\x02" + _global("pickle", "loads")
        + _pushed((pickle.dumps(("x",), 0) + _SYSTEM,), 2) + b"R."
    ),
    "a buffer out of band": b"\x80\x05\x97.",
    "a billion laughs by the memo": (
        b"\x80\x02]q\x00" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(60)) + b"."
    ),
    "a billion laughs by DUP": b"\x80\x02]" + b"(]2ee" * 50 + b".",
    "numbers of a million digits": b"I" + b"9" * 1_000_000 + b"\n.",
    "a number of two gigabytes": b"\x80\x02\x8b\xff\xff\xff\x7f\x00.",
    "a text of four gigabytes": b"\x80\x02X\xff\xff\xff\xffx.",
    "bytes of an exabyte": b"\x80\x04\x8e" + b"\xff" * 7 + b"\x0f.",
    "a memo slot far away": b"\x80\x02Nr\xff\xff\xff\xff.",
    "tuples that are hard to hash": b"\x80\x02}" + b")" + b"\x85" * 5_000 + b"Ns.",
    "the magic number by a call": (
        b"\x80\x02" + _global("__builtin__", "eval") + _text("0x1950A86A20F9469CFC6C") + b"\x85R."
        + pickle.dumps(1001, 2) + pickle.dumps({}, 2) + b"\x80\x02" + _SYSTEM + b"."
    ),
}  # fmt: skip


def pickles() -> Iterator[tuple[str, bytes]]:
    """Every payload, each call in every spelling."""
    for module, own in CALLS.items():
        for name, arguments in own.items():
            for how, (start, spell) in SPELLINGS.items():
                yield f"{module}.{name} {how}", start + spell(module, name, arguments) + b"."
    yield from TRICKS.items()


# what a pickle is in


def for_protocol_2(code: bytes) -> bytes:
    """The same pickle behind the mark of protocol 2, as torch.save begins."""
    if code[:1] == b"\x80":
        return b"\x80\x02" + code[2:]
    return b"\x80\x02" + code


def in_torch_zip(code: bytes, **changes: Any) -> bytes:
    """A file of torch.save with this pickle and a storage of four numbers."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", changes.get("compression", zipfile.ZIP_STORED)) as archive:
        archive.writestr(f"{changes.get('root', 'archive')}/data.pkl", code)
        archive.writestr("archive/byteorder", b"little")
        archive.writestr("archive/data/0", bytes(16))
        for name in changes.get("more", ()):
            archive.writestr(name, code)
    return stream.getvalue()


def _with_flag(flag: int) -> Callable[[bytes], bytes]:
    """Set a flag in the headers of the first member: scanners then cannot read it, torch does."""

    def make(code: bytes) -> bytes:
        raw = bytearray(in_torch_zip(code))
        raw[6] |= flag
        raw[raw.index(b"PK\x01\x02") + 8] |= flag
        return bytes(raw)

    return make


def _with_crc(code: bytes) -> bytes:
    raw = bytearray(in_torch_zip(code))
    at = raw.index(b"PK\x01\x02") + 16
    raw[14:18] = raw[at : at + 4] = b"\0\0\0\0"
    return bytes(raw)


def _with_other_name(code: bytes) -> bytes:
    """The directory calls the pickle otherwise than its own header does."""
    raw = in_torch_zip(code)
    at = raw.index(b"PK\x01\x02")
    return raw[:at] + raw[at:].replace(b"archive/data.pkl", b"archive/data.txt", 1)


def _in_tar(code: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            member = tarfile.TarInfo(name)
            member.size = len(code)
            archive.addfile(member, io.BytesIO(code))
    return stream.getvalue()


def _as_npy(code: bytes) -> bytes:
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + code


def _as_npz(code: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.npy", _as_npy(code))
    return stream.getvalue()


# the suffix of a file, and how it is made of a pickle
IN_EVERY_WAY: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "as it is": (".pt", lambda code: code),
    "in a torch zip": (".pt", in_torch_zip),
    "for protocol 2": (".bin", for_protocol_2),
    "for protocol 2 in a torch zip": (".ckpt", lambda code: in_torch_zip(for_protocol_2(code))),
}
# and more for the tricks alone
IN_ARCHIVES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    **{f"in a zip with flag {flag:#x}": (".pt", _with_flag(flag)) for flag in (1, 0x20, 0x40)},
    "in a zip with a wrong CRC": (".pt", _with_crc),
    "in a zip with two names": (".pt", _with_other_name),
    "in a compressed zip": (".pt", lambda code: in_torch_zip(code, compression=8)),
    "in a zip with two roots": (".pt", lambda code: in_torch_zip(code, root="other")),
    "twice in a zip": (".pt", lambda code: in_torch_zip(code, more=["archive/data/data.pkl"])),
    "behind another file": (".pt", lambda code: b"\x89PNG\r\n\x1a\n" + in_torch_zip(code)),
    "in a 7z archive": (".pt", lambda code: b"7z\xbc\xaf\x27\x1c\x00\x04" + code),
    "in a tar archive": (".pth", _in_tar),
    "as an array of objects": (".npy", _as_npy),
    "as an archive of arrays of objects": (".npz", _as_npz),
    "as safetensors": (".safetensors", lambda code: code),
    "as an index of shards": (".bin.index.json", lambda code: code),
}


def files() -> Iterator[tuple[str, str, bytes]]:
    """The name of a case, the suffix of its file, and its bytes."""
    for what, code in pickles():
        ways = IN_EVERY_WAY | (IN_ARCHIVES if what in TRICKS else {})
        for way, (suffix, make) in ways.items():
            yield f"{what}, {way}", suffix, make(code)


# reading them, in a process of its own: a hook of the audit stays for good


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Watch:
    """What happens while a file is read, but for opening that file, and parsing numpy's headers
    as Python."""

    def __init__(self) -> None:
        self.file = ""
        self.events: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.file:
            return
        if event == "open" and arguments[0] == self.file and not arguments[2] & _WRITES:
            return
        if event == "compile" and arguments[1] == "<unknown>":  # ast.parse, which runs nothing
            return
        self.events.append(f"{event} {arguments!r:.80}")

    def watched(self, path: Path, read: Callable[[Path], Any]) -> dict[str, Any]:
        """What came of reading a file, and the seconds of a core that it took, at best."""
        from topk_secagg.errors import BadData

        self.events = []
        best = float("inf")
        outcome = ""
        for _ in range(3):
            started = time.process_time()
            self.file = str(path)
            try:
                read(path)
                outcome = "read"
            except BadData:
                outcome = "BadData"
            except BaseException as error:
                outcome = type(error).__name__
            self.file = ""
            best = min(best, time.process_time() - started)
        return {"outcome": outcome, "seconds": best, "events": self.events}


def main(folder: Path, how: str) -> None:
    """Read what cases.json of a folder lists, with our reader or, to compare, with pickle's."""
    from topk_secagg.gradients.files import read_gradient

    cases: dict[str, str] = json.loads((folder / "cases.json").read_text())
    readers: dict[str, Callable[[Path], Any]] = {
        "ours": read_gradient,
        "pickle": lambda path: pickle.loads(path.read_bytes()),
    }
    read = readers[how]
    watch = Watch()
    codecs.lookup("raw_unicode_escape")  # with which pickletools decodes the text of protocol 0
    for name in sorted(set(map(suffix_of, cases.values()))):  # loads what reads each format
        watch.watched(folder / f"first{name}", read)
    found = {case: watch.watched(folder / name, read) for case, name in cases.items()}
    print(json.dumps(found))


def suffix_of(name: str) -> str:
    """The suffix of a file, from its first dot."""
    return name[name.index(".") :]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
