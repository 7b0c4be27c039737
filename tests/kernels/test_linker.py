"""The linker: object code by LLVM against what the functions compute, and damaged objects."""
import ctypes

import llvmlite.binding as llvm
import pytest

from graphq.errors import KernelError
from graphq.kernels import linker
from graphq.kernels.linker import link

SOURCE = """
@table = internal constant [3 x i64] [i64 5, i64 7, i64 11]
@places = internal constant [2 x ptr] [ptr @table, ptr getelementptr (i64, ptr @table, i64 2)]
declare ptr @memset(ptr, i32, i64)
declare i64 @strlen(ptr)

define i64 @entry(i64 %k) { %a = getelementptr [3 x i64], ptr @table, i64 0, i64 %k
  %x = load i64, ptr %a
  ret i64 %x }
define i64 @indirect(i64 %k) { %a = getelementptr [2 x ptr], ptr @places, i64 0, i64 %k
  %p = load ptr, ptr %a
  %x = load i64, ptr %p
  ret i64 %x }
define i64 @calls(i64 %k) { %room = alloca [16 x i8]
  %a = call ptr @memset(ptr %room, i32 0, i64 16)
  %b = call ptr @memset(ptr %room, i32 65, i64 %k)
  %n = call i64 @strlen(ptr %room)
  %x = call i64 @twice(i64 %n)
  ret i64 %x }
define internal i64 @twice(i64 %k) noinline { %x = mul i64 %k, 2
  ret i64 %x }
"""


def compiled(source=SOURCE):
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="small")
    return machine.emit_object(llvm.parse_assembly(source))


def test_functions_data_and_calls():
    found = link(compiled())
    assert sorted(found) == ["calls", "entry", "indirect"]  # what is internal stays so
    entry, indirect, calls = (ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(found[n])
                              for n in ("entry", "indirect", "calls"))
    assert [entry(k) for k in range(3)] == [5, 7, 11]
    assert [indirect(k) for k in range(2)] == [5, 11]
    assert calls(6) == 12


def test_llvm_links_the_same_where_we_cannot(monkeypatch):
    monkeypatch.setattr(linker, "_X86_64", 0)
    found = link(compiled())
    assert sorted(found) == ["calls", "entry", "indirect"]
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(found["calls"])(6) == 12


def test_the_same_object_twice_is_two_copies():
    data = compiled()
    assert link(data)["entry"] != link(data)["entry"]


def test_unknown_symbols_are_named():
    code = compiled("declare void @no_such_name()\ndefine void @f() { call void @no_such_name()\n ret void }")
    with pytest.raises(KernelError, match="calls 'no_such_name'"):
        link(code)


def test_damaged_objects_are_refused_or_linked_but_never_crash():
    data = compiled()
    for size in range(0, len(data), 7):
        with pytest.raises(KernelError):
            link(data[:size])
    for at in range(0, len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0xFF
        try:
            link(bytes(damaged))
        except KernelError:
            pass


def test_what_is_no_object_of_this_machine():
    data = compiled()
    for foreign in (b"", b"text", data[:18] + b"\xb7\0" + data[20:], data[:4] + b"\x01" + data[5:]):
        with pytest.raises(KernelError):
            link(foreign)
